"""Worker processes for independent tasks: the death of one costs no other task its result."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Generic, NoReturn, TypeVar

from verifier.audit.news import News, heard_by
from verifier.execution.backend import Backend
from verifier.execution.child_main import settle
from verifier.execution.child_request import ChildSettings
from verifier.execution.preloaded import Child, Preloaded, copy_ahead, taken
from verifier.execution.process_tree import death_message

WORKERS = f"{__name__}:work"
"""What the preloaded process makes of its children, see `preloaded`."""
LOOK_SECONDS = 1.0
"""How often it is asked whether workers live: what a dead one started may hold its pipe, and its sentinel."""


@dataclass(frozen=True, kw_only=True)
class Died:
    """What takes the place of a result: the worker died of this task, twice."""

    message: str


Task = tuple[int, tuple[object, ...]]
Result = TypeVar("Result")
"""What the function of a pool returns."""
NewsListener = Callable[[News], None]


def _nobody(_: News) -> None:
    """Listen to nothing."""


@dataclass(kw_only=True)
class _Worker(Generic[Result]):
    server: Preloaded
    child: Child
    task: Task | None = None

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it died before: seen when its result is asked for
            self.child.connection.send_bytes(pickle.dumps(task[1], protocol=5))

    def lives(self) -> bool:
        return not self.server.has_ended(self.child)

    def result(self) -> Result | News | Died:
        """Return the result of the task that has ended, or `Died`; or news of one that goes on."""
        with suppress(EOFError, ConnectionError):
            if self.child.connection.poll():
                found: Result | News = pickle.loads(self.child.connection.recv_bytes())  # noqa: S301 (our own)
                return found
        code = self.server.wait_for(self.child)
        return Died(message=death_message(code))

    def end(self) -> None:
        """End a worker that died, with all that it started."""
        self.server.end(self.child)
        self.child.close()


def pooled(
    function: Callable[..., Result],
    tasks: Iterator[Task],
    workers: int,
    *,
    backends: Sequence[str] = (),
    on_news: NewsListener = _nobody,
) -> Generator[tuple[int, Result | Died], None, None]:
    """Yield (number, result) of the tasks, each a number and arguments, as they end.

    function: of a module, so that a worker finds it. tasks: asked for the next when a worker is free.
    backends: those that workers will run subjects on; others cost each worker a start of its own.
    on_news: told of the progress of tasks, see `news`.
    A task whose worker dies is run once more when all others have ended, alone; the result of one that kills
    its worker then, too, is `Died`. Closing the iterator, Ctrl-C included, kills the workers.
    """
    pool = _Pool(function, workers, backends, on_news)
    again: list[Task] = []
    try:
        for task, result in pool.run(tasks):
            if isinstance(result, Died):
                again.append(task)
            else:
                yield task[0], result
        for one in again:
            for task, result in pool.run(iter([one])):
                yield task[0], result
        pool.end(kill=False)
    finally:
        pool.end(kill=True)


class _Pool(Generic[Result]):
    def __init__(
        self, function: Callable[..., Result], workers: int, backends: Sequence[str], on_news: NewsListener
    ) -> None:
        self.on_news = on_news
        self.function = pickle.dumps(function)
        self.backends = tuple(backends)
        self.size = workers
        self.server = taken(WORKERS)
        self.workers: list[_Worker[Result]] = []

    def run(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Result | Died]]:
        """Yield each task with its result, or with `Died`."""
        while True:
            while len(self.busy()) < self.size and (task := next(tasks, None)) is not None:
                self.free().begin(task)
            busy = self.busy()
            if not busy:
                return
            ready = wait([worker.child.connection for worker in busy], LOOK_SECONDS)
            for worker in (w for w in busy if w.child.connection in ready or not w.lives()):
                task, result = worker.task, worker.result()
                if isinstance(result, News):
                    self.on_news(result)
                    continue
                worker.task = None
                if isinstance(result, Died):
                    self.workers.remove(worker)
                    worker.end()
                assert task is not None
                yield task, result

    def busy(self) -> list[_Worker[Result]]:
        return [worker for worker in self.workers if worker.task is not None]

    def free(self) -> _Worker[Result]:
        """Return a worker without a task, a new one if there is none."""
        idle = next((w for w in self.workers if w.task is None and w.lives()), None)
        if idle is None:
            idle = _Worker[Result](
                server=self.server, child=self.server.fork(function=self.function, backends=self.backends)
            )
            self.workers.append(idle)
        return idle

    def end(self, *, kill: bool) -> None:
        if kill:  # with the process that forked them: all at once, each takes time to give its memory back
            self.server.close()
        while self.workers:
            worker = self.workers.pop()
            worker.child.connection.close()
            if not kill:
                self.server.wait_for(worker.child)
            worker.child.close()


def work(connection: Connection, _place: Backend | None, told: ChildSettings) -> NoReturn:
    """Do tasks until the pipe closes, in a process that was just forked.

    A terminal's Ctrl-C does not come here: the process has a session of its own.
    """
    status = 1
    try:
        settle(told)
        copy_ahead(*told["backends"])
        function = pickle.loads(told["function"])  # noqa: S301 (our own parent)

        def send(what: object) -> None:
            connection.send_bytes(pickle.dumps(what, protocol=5))

        with heard_by(send):
            while True:
                try:
                    arguments = pickle.loads(connection.recv_bytes())  # noqa: S301
                except EOFError:
                    break
                send(function(*arguments))
        atexit._run_exitfuncs()
        status = 0
    except BaseException:  # nothing may return into the server's code
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)

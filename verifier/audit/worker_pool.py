"""Worker processes for independent tasks: the death of one costs no other task its result."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from verifier.execution.process_tree import death_message, end_with

END_SECONDS = 5.0
"""A worker that is told to end has this long to end the processes that it started."""
LOOK_SECONDS = 1.0
"""How often it is asked whether workers live: what a dead one started may hold its pipe, and its sentinel."""


@dataclass(frozen=True, kw_only=True)
class Died:
    """What takes the place of a result: the worker died of this task, twice."""

    message: str


Task = tuple[int, tuple[Any, ...]]


@dataclass(kw_only=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    task: Task | None = None

    def begin(self, task: Task) -> None:
        self.task = task
        with suppress(ConnectionError):  # it died before: seen when its result is asked for
            self.connection.send_bytes(pickle.dumps(task[1], protocol=5))

    def result(self) -> Any:
        """Return the result of the task that has ended, or `Died`."""
        with suppress(EOFError, ConnectionError):
            if self.connection.poll():
                return pickle.loads(self.connection.recv_bytes())  # noqa: S301 (our own worker)
        self.process.join(END_SECONDS)
        return Died(message=death_message(self.process.exitcode))

    def end(self, *, kill: bool) -> None:
        self.connection.close()
        if not kill:
            self.process.join(END_SECONDS)
        self.process.kill()
        self.process.join()


def pooled(
    function: Callable[..., Any], tasks: Iterator[Task], workers: int
) -> Generator[tuple[int, Any], None, None]:
    """Yield (number, result) of the tasks, each a number and arguments, as they end.

    function: of a module, so that a worker finds it. tasks: asked for the next when a worker is free.
    A task whose worker dies is run once more when all others have ended, alone; the result of one that kills
    its worker then, too, is `Died`. Closing the iterator, Ctrl-C included, kills the workers.
    """
    pool = _Pool(function, workers)
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


class _Pool:
    def __init__(self, function: Callable[..., Any], workers: int) -> None:
        self.function, self.size = function, workers
        self.workers: list[_Worker] = []

    def run(self, tasks: Iterator[Task]) -> Iterator[tuple[Task, Any]]:
        """Yield each task with its result, or with `Died`."""
        while True:
            while len(self.busy()) < self.size and (task := next(tasks, None)) is not None:
                self.free().begin(task)
            busy = self.busy()
            if not busy:
                return
            ready = wait([worker.connection for worker in busy], LOOK_SECONDS)
            for worker in (w for w in busy if w.connection in ready or not w.process.is_alive()):
                task, result = worker.task, worker.result()
                worker.task = None
                if isinstance(result, Died):
                    self.workers.remove(worker)
                    worker.end(kill=True)
                assert task is not None
                yield task, result

    def busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.task is not None]

    def free(self) -> _Worker:
        """Return a worker without a task, a new one if there is none."""
        idle = next((w for w in self.workers if w.task is None and w.process.is_alive()), None)
        if idle is None:
            idle = _start(self.function)
            self.workers.append(idle)
        return idle

    def end(self, *, kill: bool) -> None:
        if kill:  # all at once: each takes its time to give its memory back
            for worker in self.workers:
                worker.process.kill()
        while self.workers:
            self.workers.pop().end(kill=kill)


def _start(function: Callable[..., Any]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, function), daemon=False)
    # A terminal's Ctrl-C goes to workers, too, even to one that is just starting: this process ends them.
    resource_tracker.ensure_running()  # whoever starts it lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process=process, connection=ours)


def _work(connection: Connection, function: Callable[..., Any]) -> None:
    """Do tasks until the pipe closes; in the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    end_with(parent.pid if parent is not None and parent.pid is not None else 0)
    while True:
        try:
            arguments = pickle.loads(connection.recv_bytes())  # noqa: S301 (our own parent)
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(function(*arguments), protocol=5))

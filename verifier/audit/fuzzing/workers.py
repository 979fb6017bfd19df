"""Processes that batches run in, behind the interface of `concurrent.futures`: those of this machine."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol, TypeVar

from verifier.audit.news import News, heard_by
from verifier.audit.worker_pool import WORKERS, Died
from verifier.execution.preloaded import Child, Preloaded, StartError, taken
from verifier.execution.process_tree import death_message

LOOK_SECONDS = 1.0
"""How often it is asked whether a worker lives: what a dead one started may hold its pipe."""
ATTEMPTS = 2
"""How often a task is begun: one that kills its worker twice is given up."""

Given = TypeVar("Given")
Result = TypeVar("Result")
Hearing = Callable[[News], None]


class Workers(Protocol):
    """What a campaign asks of an executor, besides what every executor has."""

    @property
    def count(self) -> int:
        """How many batches run side by side."""

    @property
    def room(self) -> int:
        """How many may be begun: where they have a way to go, some wait beside their workers."""

    @property
    def where(self) -> str:
        """Where they run, in words."""

    def begin(self, function: Callable[[Given], Result], argument: Given) -> Future[Result]:
        """Begin a task; its future has the result, or `WorkerDiedError`."""

    def close(self) -> None:
        """End all workers, whatever they do."""


class WorkerDiedError(RuntimeError):
    """A task killed every worker that it was given to."""


class WorkersLostError(RuntimeError):
    """There are no workers any more; what has no result is to be begun again later."""


class HereAlone:
    """No worker: each task is done at once, in this process."""

    count = room = 1
    where = "this process"

    def __init__(self, on_news: Hearing) -> None:
        """Remember who is told of progress."""
        self._on_news = on_news

    def begin(self, function: Callable[[Given], Result], argument: Given) -> Future[Result]:
        """Do a task."""
        future: Future[Result] = Future()
        with heard_by(self._on_news):
            future.set_result(function(argument))
        return future

    def close(self) -> None:
        """End nothing."""


class LocalWorkers:
    """Worker processes of this machine, forked from one preloaded process.

    The standard library's pool of processes breaks with the first of them that dies. Here another one takes
    its place and does the task again.
    """

    def __init__(self, count: int, on_news: Hearing, backends: Sequence[str] = ()) -> None:
        """Start nothing yet; on_news is told of progress, in other threads than this.

        backends: those that subjects will run on; others cost each worker a start of its own.
        """
        self.count = self.room = count
        self.where = f"{count} processes of this machine"
        self._server: Preloaded = taken(WORKERS)
        self._lock = threading.Lock()
        self._on_news = on_news
        self._backends = tuple(backends)
        self._closed = False
        self._threads: Executor = ThreadPoolExecutor(count, thread_name_prefix="worker")
        self._own = threading.local()

    def begin(self, function: Callable[[Given], Result], argument: Given) -> Future[Result]:
        """Begin a task in the first process that is free."""
        return self._threads.submit(self._done, function, argument)

    def close(self) -> None:
        """Kill the workers, with all that they started."""
        self._closed = True
        with self._lock:
            self._server.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _done(self, function: Callable[[Given], Result], argument: Given) -> Result:
        """Return the result of a task, from the process that belongs to this thread."""
        told = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                break
            found = self._tried(function, argument)
            if not isinstance(found, Died):
                return found
            told = found.message
        raise WorkerDiedError(told or "the workers were ended")

    def _tried(self, function: Callable[[Given], Result], argument: Given) -> Result | Died:
        child = self._child(function)
        with suppress(OSError):
            child.connection.send_bytes(pickle.dumps((argument,), protocol=5))
        while True:
            try:
                if child.connection.poll(LOOK_SECONDS):
                    found = pickle.loads(child.connection.recv_bytes())  # noqa: S301 (our own worker)
                    if isinstance(found, News):
                        self._on_news(found)
                        continue
                    result: Result = found
                    return result
            except (EOFError, OSError):
                return self._ended(child)
            if self._closed or self._has_ended(child):
                return self._ended(child)

    def _child(self, function: Callable[[Given], Result]) -> Child:
        """Return this thread's process, a new one if there is none."""
        child: Child | None = getattr(self._own, "child", None)
        if child is None:
            with self._lock:
                if self._closed:
                    raise StartError("the workers were ended")
                child = self._server.fork(function=pickle.dumps(function), backends=self._backends)
            self._own.child = child
        return child

    def _has_ended(self, child: Child) -> bool:
        with self._lock:
            return self._server.has_ended(child)

    def _ended(self, child: Child) -> Died:
        """End a worker that died, and say how."""
        self._own.child = None
        with self._lock:
            code = None if self._closed else self._server.wait_for(child)
            if not self._closed:
                self._server.end(child)
        child.close()
        return Died(message=death_message(code))

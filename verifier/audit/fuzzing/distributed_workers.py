"""Workers of a cluster: batches run wherever a dask worker is, through the scheduler that knows them."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from verifier.audit.fuzzing.workers import LocalWorkers, WorkerDiedError, WorkersLostError
from verifier.audit.request import SelectionError

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 30.0
"""A scheduler, and its first worker, have this long to answer at the beginning."""
LOST_SECONDS = 600.0
"""A scheduler that went away has this long to come back."""
AGAIN_SECONDS = 1.0
"""Between two attempts to reach it."""

_own: list[LocalWorkers] = []
_starting = threading.Lock()

Given = TypeVar("Given")
Result = TypeVar("Result")


def in_own_process(backends: Sequence[str], function: Callable[[Given], Result], argument: Given) -> Result:
    """Do a task in a process that belongs to this dask worker, and stays for its next tasks.

    A worker has to answer its scheduler whatever a kernel does; and Hypothesis sets the state of `random`.
    """
    with _starting:
        if not _own:
            from distributed import get_worker

            _own.append(LocalWorkers(get_worker().state.nthreads, lambda _: None, backends))
            atexit.register(_own[0].close)
    return _own[0].begin(function, argument).result()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Task:
    """What was begun and has no result yet: a function of an argument, for a future."""

    function: Callable[[object], object]
    argument: object
    future: Future[object]


class ClusterError(SelectionError):
    """The cluster cannot be used; the text says why."""


class ClusterWorkers:
    """The workers behind a dask scheduler.

    A worker that dies costs nothing: the scheduler gives its batch to another. When the scheduler itself
    ends, all batches that have no result are handed to the one that takes its place. Which batches count is
    not its business, so that one that ran twice counts once.
    """

    def __init__(
        self, address: str, *, backends: Sequence[str] = (), say: Callable[[str], None] = lambda _: None
    ) -> None:
        """Connect to a scheduler and wait for a worker.

        address: such as tcp://host:8786. backends: those that subjects will run on.

        Raises:
            ClusterError: the package is not installed, or nothing answers there.

        """
        try:
            import distributed
        except ImportError:
            raise ClusterError(
                "--scheduler: needs dask.distributed: pip install 'norm-verifier[distributed]'"
            ) from None
        del distributed
        self.address, self._say, self._backends = address, say, tuple(backends)
        self._reconnecting, self._state = threading.Lock(), threading.Lock()
        self._open: dict[_Task, Client] = {}
        self._closed = False
        self._client, self._executor = self._connected(CONNECT_SECONDS)
        self._seen = self._threads()

    @property
    def where(self) -> str:
        """Where they run, in words."""
        return f"{self._seen} worker{'s' if self._seen != 1 else ''} behind {self.address}"

    @property
    def count(self) -> int:
        """How many batches run side by side; at least one, while workers come back."""
        with suppress(Exception):
            self._seen = self._threads() or self._seen
        return max(1, self._seen)

    @property
    def room(self) -> int:
        """How many may be begun: one waits beside each that runs."""
        return 2 * self.count

    def _threads(self) -> int:
        # The client's own copy lags behind a worker that came or went, by some seconds.
        return sum(self._client.nthreads().values())

    def begin(self, function: Callable[[Given], Result], argument: Given) -> Future[Result]:
        """Begin a task somewhere; its future waits as long as the scheduler may need to come back."""
        future: Future[Result] = Future()
        task = _Task(
            function=cast("Callable[[object], object]", function),
            argument=argument,
            future=cast("Future[object]", future),
        )
        self._hand_over(task)
        return future

    def close(self) -> None:
        """Leave the cluster, which goes on; batches without a result are called off."""
        self._closed = True
        with suppress(Exception):
            self._client.close(timeout=5)

    def _hand_over(self, task: _Task) -> None:
        with self._state:  # what is noted of a client is handed over by whoever takes its place
            client, executor = self._client, self._executor
            self._open[task] = client
        try:
            inner = executor.submit(in_own_process, self._backends, task.function, task.argument)
        except Exception as error:
            self._again(client, error)
            return
        inner.add_done_callback(lambda done: self._pass_on(client, done, task))

    def _pass_on(self, client: Client, done: Future[object], task: _Task) -> None:
        """Take what came of a task, or hand it over again where its scheduler is gone."""
        try:
            result = done.result()
        except (CancelledError, OSError) as error:
            if not self._closed:
                threading.Thread(target=self._again, args=(client, error), daemon=True).start()
        except Exception as error:
            if self._ends(task):
                task.future.set_exception(WorkerDiedError(f"{type(error).__name__}: {error}"))
        else:
            if self._ends(task):
                task.future.set_result(result)

    def _ends(self, task: _Task) -> bool:
        """Return whether a task has no result yet; from then on it has."""
        with self._state:
            return self._open.pop(task, None) is not None

    def _again(self, lost: Client, why: BaseException) -> None:
        """Connect anew, once for a client that was lost, and hand over all tasks that it had.

        Those that it was given while it looked for its scheduler it never ends by itself.
        """
        with self._reconnecting:
            if self._client is not lost or self._closed:
                return
            self._say(f"the scheduler {self.address} is gone ({type(why).__name__}); waiting for it")
            with suppress(Exception):
                lost.close(timeout=1)
            try:
                client, executor = self._connected(LOST_SECONDS)
            except ClusterError as error:
                for task in self._taken_from(lost):
                    task.future.set_exception(WorkersLostError(str(error)))
                return
            with self._state:
                self._client, self._executor = client, executor
            self._say(f"the scheduler {self.address} is back")
            tasks = self._taken_from(lost)
        for task in tasks:
            if not self._closed:
                self._hand_over(task)

    def _taken_from(self, lost: Client) -> list[_Task]:
        """Return the open tasks of a client, which has them no longer."""
        with self._state:
            held = [task for task, client in self._open.items() if client is lost]
            for task in held:
                del self._open[task]
        return held

    def _connected(self, seconds: float) -> tuple[Client, Executor]:
        from distributed import Client

        until = time.monotonic() + seconds
        while True:
            client = None
            try:
                client = Client(self.address, timeout=5, set_as_default=False)
                client.wait_for_workers(1, timeout=max(1.0, until - time.monotonic()))
                # pure: dask would take two batches of the same words for one.
                return client, client.get_executor(pure=False)
            except (OSError, TimeoutError, ValueError) as error:
                if client is not None:
                    with suppress(Exception):
                        client.close(timeout=1)
                if time.monotonic() > until or self._closed or isinstance(error, ValueError):
                    raise ClusterError(
                        f"--scheduler {self.address}: no scheduler with a worker answers there: {error}"
                    ) from None
                time.sleep(AGAIN_SECONDS)

"""The verifier's end of a preloaded process, which forks a child for each kernel file or for each worker."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Protocol

from verifier.execution.child_request import ChildSettings
from verifier.execution.fork_server import SUBJECTS, Start, serve_forked
from verifier.execution.process_tree import Copy, single_threaded
from verifier.records.garbage import look_for_circles_seldom

START_SECONDS = 120.0
"""The server imports torch and Triton before its first answer; on a busy machine that takes a while."""
END_SECONDS = 5.0
"""A process whose pipe closed has this long to end."""
STDERR_CHARACTERS = 2000
_SAYING_NOTHING = ("Extension modules: ", "frame #")
"""How lines begin that are long and tell nothing of an end: all that is loaded, addresses in C++."""


class StartError(RuntimeError):
    """No child started: an error of the verifier or the installation, never of a subject."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process forked for one kernel file: its pipe, and the file that its standard error goes to."""

    pid: int
    connection: Connection
    stderr: IO[bytes]

    def last_words(self) -> str:
        """Return the end of what it wrote."""
        return _last_words(self.stderr)

    def words_since(self, place: int) -> bytes:
        """Return what it wrote since its output was so many bytes long, but no more than 64 KiB of it."""
        return os.pread(self.stderr.fileno(), 1 << 16, place)

    def close(self) -> None:
        """Close what is ours of it."""
        self.connection.close()
        self.stderr.close()


class _Process(Protocol):
    """What is asked of the process, be it a program of its own or a copy of this one."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


class Preloaded:
    """A preloaded process with its options; it starts at once and is waited for later.

    backend: which one its children run subjects on, or None where they are workers. children: what a child
    does, see `fork_server.Start`. copied: the process is a copy of this one instead of a program that imports
    everything again; only where `can_be_copied`, and before a kernel file is loaded here.
    """

    def __init__(
        self,
        backend: str | None,
        options: Mapping[str, object],
        *,
        children: str = SUBJECTS,
        copied: bool = False,
    ) -> None:
        """Start the process."""
        self.name = backend or "worker"
        self.backend = backend
        self._owner = os.getpid()
        ours, theirs = socket.socketpair()
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        begin = self._copy if copied else self._execute
        self._process: _Process = begin(theirs)
        theirs.close()
        self._control = Connection(ours.detach())
        self._ended: dict[int, int] = {}
        self._ready = False
        start = Start(
            backend=backend, options=dict(options), modules=tuple(sorted(_experiments)), children=children
        )
        with contextlib.suppress(OSError):
            self._control.send_bytes(pickle.dumps(start, protocol=5))

    def _execute(self, control: socket.socket) -> _Process:
        return subprocess.Popen(  # noqa: S603 (our own module)
            [sys.executable, "-m", "verifier.execution.fork_server", str(control.fileno())],
            env=self._environment(),
            pass_fds=(control.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )

    def _copy(self, control: socket.socket) -> _Process:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what waits there is ours to write
        environment = self._environment()
        pid = os.fork()
        if pid == 0:
            serve_forked(control.fileno(), self._stderr.fileno(), environment)
        return Copy(pid)

    @property
    def usable(self) -> bool:
        """Whether it lives, and was started by this very process and not by one that this was forked from."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, *, function: bytes = b"", backends: tuple[str, ...] = ()) -> Child:
        """Start a child; it is told this, and the environment, the path and the folder of this process.

        function, backends: of a worker, see `ChildSettings`.

        Raises:
            StartError: the process did not start, or cannot fork.

        """
        self._wait_for_start()
        ours, theirs = socket.socketpair()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        told: ChildSettings = {
            "environment": self._environment(),
            "path": sys.path,
            "folder": str(Path.cwd()),
            "function": function,
            "backends": backends,
        }
        try:
            self._control.send_bytes(pickle.dumps(("fork", told), protocol=5))
            with socket.socket(fileno=os.dup(self._control.fileno())) as plain:
                socket.send_fds(plain, [b"."], [theirs.fileno(), stderr.fileno()])
            theirs.close()
            pid_or_reason = self._next("forked", "failed")
        except (EOFError, OSError) as error:
            pid_or_reason = f"{error}\n{_last_words(self._stderr)}"
        if not isinstance(pid_or_reason, int):
            ours.close()
            stderr.close()
            self.close()
            raise StartError(f"the {self.name} process did not start a child:\n{pid_or_reason}")
        self._ended.pop(pid_or_reason, None)  # of another process that had this number
        return Child(pid=pid_or_reason, connection=Connection(ours.detach()), stderr=stderr)

    def has_ended(self, child: Child) -> bool:
        """Return whether a child has ended by itself."""
        return self._status(child, 0.0) is not None

    def wait_for(self, child: Child) -> int | None:
        """Return the exit status of a child that ends by itself, or None if it does not or nobody knows."""
        return self._status(child, END_SECONDS)

    def end(self, child: Child) -> None:
        """Kill a child with everything that it started."""
        with contextlib.suppress(OSError):
            self._control.send_bytes(pickle.dumps(("end", child.pid)))
            self._status(child, END_SECONDS)

    def close(self) -> None:
        """End the process; it ends its children."""
        self._control.close()
        if self._owner != os.getpid():
            return
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._stderr.close()

    def _wait_for_start(self) -> None:
        if self._ready:
            return
        with contextlib.suppress(EOFError, OSError):
            self._ready = self._control.poll(START_SECONDS) and self._control.recv_bytes() == b"ready"
        if not self._ready:
            words = _last_words(self._stderr)
            self.close()
            raise StartError(f"the {self.name} process did not start:\n{words}")

    def _status(self, child: Child, seconds: float) -> int | None:
        with contextlib.suppress(EOFError, OSError):
            while child.pid not in self._ended and self._control.poll(seconds):
                self._next("ended")
        return self._ended.get(child.pid)

    def _next(self, *words: str) -> object:
        """Return what the next message of these kinds tells; ends of children that come before are kept."""
        while True:
            word, told = pickle.loads(self._control.recv_bytes())  # noqa: S301 (our own process)
            if word == "ended":
                self._ended[told[0]] = told[1]
            if word in words:
                return told

    def _environment(self) -> dict[str, str]:
        from verifier.execution.backends import backend

        wanted = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": "1"}
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        own = backend(self.backend).environment() if self.backend is not None else {}
        return {**os.environ, **threads, **wanted, **own}


_started: dict[str, Preloaded] = {}
_experiments: set[str] = set()


def preload(modules: Iterable[str]) -> None:
    """Let servers that start from now on import modules whose experiments their children will run."""
    _experiments.update(modules)


def preloaded(backend: str, options: Mapping[str, object]) -> Preloaded:
    """Return the process for a backend: one for all that ask without options, one for each that has some."""
    if options:
        return Preloaded(backend, options)
    if backend not in _started or not _started[backend].usable:
        _keep(backend, Preloaded(backend, options))
    return _started[backend]


def copy_ahead(*backends: str, children: str = "") -> None:
    """Start processes as copies of this one, which has imported the verifier and nothing else.

    backends: those that subjects will run on. children: of another process, which `taken` gives.
    To be called before a kernel file is loaded. Where this process is not fit to be copied, nothing is done:
    programs are started when they are asked for.
    """
    from verifier.execution.backends import backend

    if not can_be_copied():
        return
    look_for_circles_seldom()  # in what was imported: neither here nor in the copies, which would write to it
    for name in backends:
        if backend(name).copied:
            _keep(name, Preloaded(name, {}, copied=True))
    if children:
        _keep(children, Preloaded(None, {}, children=children, copied=True))


def taken(children: str) -> Preloaded:
    """Return a process with children of this kind, the one that was started ahead if there is one.

    Whoever takes it closes it.
    """
    ahead = _started.pop(children, None)
    return ahead if ahead is not None and ahead.usable else Preloaded(None, {}, children=children)


def can_be_copied() -> bool:
    """Return whether a copy of this process would work: Linux, with one thread."""
    return sys.platform == "linux" and single_threaded()


def _keep(backend: str, server: Preloaded) -> None:
    _started[backend] = server
    atexit.register(end_all)


def end_all() -> None:
    """End the processes that this process started."""
    while _started:
        _started.popitem()[1].close()


def _last_words(stderr: IO[bytes]) -> str:
    """Return the end of a file that others write to: its offset, which is theirs too, stays.

    Where faulthandler tells of a death, that is what came before and the innermost frames: its first ones.
    """
    size, wanted = os.fstat(stderr.fileno()).st_size, 32 * STDERR_CHARACTERS
    text = os.pread(stderr.fileno(), wanted, max(0, size - wanted)).decode(errors="replace")
    told = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(_SAYING_NOTHING))
    before, death, dump = told.rpartition("Fatal Python error: ")
    if not death or len(told) <= STDERR_CHARACTERS:
        return told[-STDERR_CHARACTERS:]
    kind, _, threads = dump.partition("\n")
    frames = threads[max(0, threads.find("Current thread ")) :]
    before = before[-(STDERR_CHARACTERS // 2) :]
    room = STDERR_CHARACTERS - len(before) - len(death) - len(kind)
    return f"{before}{death}{kind}\n\n{frames[: frames.rfind(chr(10), 0, room) + 1]}"

"""The preloaded process: imports everything once and forks a child for each kernel file, or for each worker.

It runs no subject itself and keeps a single thread, so that a fork copies everything that there is. On a
device nothing of CUDA is touched here: a context does not survive a fork.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

import torch

from strategies.registry import imported
from verifier.execution.backend import Backend
from verifier.execution.backends import backend
from verifier.execution.child_request import ChildSettings
from verifier.execution.process_tree import adopt_orphans, children, kill
from verifier.ops import ops
from verifier.records.garbage import keep_freed_memory, look_for_circles_seldom

SUBJECTS = "verifier.execution.child_main:main"
"""Children that run subjects."""

_IMPORTED_LATE = (
    "torch.fx.experimental.symbolic_shapes",  # by torch.autograd.grad
    "torch._subclasses.schema_check_mode",  # where modes of dispatch are taken off
    "numpy.ma",  # by np.unique
    "verifier.subjects.declare",  # by the first declaration
)
"""Modules that others import when they are first asked for something."""

ChildFunction = Callable[[Connection, Backend | None, ChildSettings], NoReturn]


@dataclass(frozen=True, kw_only=True)
class Start:
    """What the process is for.

    backend: prepared with its options before any child is forked; None for children that are workers.
    modules: imported before. children: "module:function" of what a child does with its pipe, the backend
    and what it is told; the function does not return.
    """

    backend: str | None
    options: Mapping[str, object]
    modules: tuple[str, ...]
    children: str


def main() -> None:
    """Serve in a program of its own, whose argument is the number of the verifier's socket."""
    _serve(Connection(int(sys.argv[1])))


def serve_forked(control: int, words: int, environment: Mapping[str, str]) -> NoReturn:
    """Serve in a copy of the verifier's process.

    control, words: file descriptors of the socket and of the file for output; the copy lets go of all others.
    """
    try:
        atexit._clear()  # what the verifier does at its end is not to be done twice
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        os.dup2(words, 1)
        os.dup2(words, 2)
        _let_go(keep={1, 2, control})
        os.environ.clear()
        os.environ.update(environment)
        _serve(Connection(control))
    except BaseException:  # nothing may return into the verifier's code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def _let_go(keep: set[int]) -> None:
    """Put nothing in the place of each other open file: objects that close theirs close nothing else then."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            os.fstat(number)  # the list itself was read through one that is closed again
            if number not in keep | {nothing}:
                os.dup2(nothing, number, inheritable=False)
    os.dup2(nothing, 0)


def _serve(control: Connection) -> NoReturn:
    """Import, say "ready" and serve until the verifier is gone."""
    faulthandler.enable()
    keep_freed_memory()
    start: Start = pickle.loads(control.recv_bytes())  # noqa: S301 (our own parent)

    torch.set_num_threads(1)
    place = None
    if start.backend is not None:
        place = backend(start.backend)
        place.prepare(**start.options)
    _preload(place, start.modules)
    module, function = start.children.split(":")
    child: ChildFunction = getattr(imported(module), function)
    adopt_orphans()
    look_for_circles_seldom()  # hence nothing touches and copies what all children share
    control.send_bytes(b"ready")
    _Server(control, place, child).serve()
    os._exit(0)  # nothing is left to be done, and torch takes its time to end


def _preload(place: Backend | None, modules: Iterable[str]) -> None:
    """Do once what every child would do at its first call, besides the imports above."""
    for module in modules:
        imported(module)
    ops()
    for name in _IMPORTED_LATE:
        importlib.import_module(name)
    if place is None and os.environ.get("TRITON_INTERPRET", "0") == "0":
        place = backend("machine")  # most workers run subjects there, by copies of themselves
    if place is not None:
        place.preload()


class _Server:
    """The children that live, by their process id."""

    def __init__(self, control: Connection, backend: Backend | None, child: ChildFunction) -> None:
        self.control, self.backend, self.child = control, backend, child
        self.living: set[int] = set()
        self.woken, self.waker = socket.socketpair()
        for end in (self.woken, self.waker):
            end.setblocking(False)

    def serve(self) -> None:
        """Fork and end children as asked, and tell of those that end by themselves."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        while True:
            ready = wait([self.control, self.woken])
            if self.woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self.woken.recv(4096)
                self.reap()
            if self.control in ready and not self.answer():
                kill(self.living)
                self.living.clear()
                self.clear()
                return

    def answer(self) -> bool:
        """Do what the verifier asks for; return whether it is still there."""
        try:
            word, told = pickle.loads(self.control.recv_bytes())  # noqa: S301
        except (EOFError, ConnectionError):
            return False
        if word == "fork":
            self.fork(told)
        elif told in self.living:
            kill([told])
            self.reap(told)
        return True

    def fork(self, told: ChildSettings) -> None:
        """Fork a child that takes its pipe and its standard error from the verifier; send its number."""
        with socket.socket(fileno=os.dup(self.control.fileno())) as plain:
            _, (pipe, stderr), _, _ = socket.recv_fds(plain, 1, 2)
        pid, reason = -1, ""
        try:
            pid = os.fork()
        except OSError as error:
            reason = str(error)
        if pid == 0:
            self.become_child(pipe, stderr, told)
        os.close(pipe)
        os.close(stderr)
        if pid < 0:
            self.send("failed", reason)
            return
        self.living.add(pid)
        self.send("forked", pid)

    def become_child(self, pipe: int, stderr: int, told: ChildSettings) -> NoReturn:
        """Leave what is the server's behind and serve requests on the pipe."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.close()
        self.woken.close()
        self.waker.close()
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        os.close(stderr)
        # A copy's first use of torch's threads makes their pool anew, which torch does not guard: the threads
        # of two devices, at the first backward, would meet there, and abort ("Invalid thread pool!").
        torch.set_num_threads(torch.get_num_threads())
        self.child(Connection(pipe), self.backend, told)

    def reap(self, pid: int = -1) -> None:
        """Wait for children that have ended, or for this one, and tell how they ended.

        What a child started and left behind is killed first: nothing keeps its pipe open.
        """
        while True:
            try:
                ended, status = os.waitpid(pid, os.WNOHANG if pid == -1 else 0)
            except ChildProcessError:
                return
            if ended == 0:
                return
            if ended in self.living:
                self.living.remove(ended)
                self.clear()
                self.send("ended", (ended, os.waitstatus_to_exitcode(status)))
            if pid != -1:
                return

    def clear(self) -> None:
        """Kill and forget the orphans that became ours."""
        while strays := [one for one in children(os.getpid()) if one not in self.living]:
            kill(strays)
            for one in strays:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(one, 0)

    def send(self, word: str, told: object) -> None:
        """Tell the verifier; one that is gone is noticed when it is read from."""
        with contextlib.suppress(ConnectionError):
            self.control.send_bytes(pickle.dumps((word, told)))


if __name__ == "__main__":
    main()

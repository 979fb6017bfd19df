"""The preloaded process: imports everything once and forks a child for each kernel file.

It runs no subject itself and keeps a single thread, so that a fork copies everything that there is. On a
device nothing of CUDA is touched here: a context does not survive a fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import torch

from strategies.registry import imported
from verifier.execution import child_main
from verifier.execution.backend import Backend
from verifier.execution.backends import backend
from verifier.execution.process_tree import adopt_orphans, children, kill


def main() -> None:
    """Import, say "ready" and serve until the verifier is gone."""
    faulthandler.enable()
    control = Connection(int(sys.argv[1]))
    options, modules = pickle.loads(control.recv_bytes())  # noqa: S301 (our own parent)

    torch.set_num_threads(1)
    place = backend(sys.argv[2])
    place.prepare(**options)
    _preload(place, modules)
    adopt_orphans()
    gc.freeze()  # no collection touches, hence copies, what all children share
    control.send_bytes(b"ready")
    _Server(control, place).serve()
    os._exit(0)  # nothing is left to be done, and torch takes its time to end


def _preload(place: Backend, modules: Iterable[str]) -> None:
    """Do once what every child would do at its first call, besides the imports above."""
    for module in modules:
        imported(module)
    importlib.import_module("torch.fx.experimental.symbolic_shapes")  # for torch.autograd.grad
    place.preload()


class _Server:
    """The children that live, by their process id."""

    def __init__(self, control: Connection, place: Backend) -> None:
        self.control, self.place = control, place
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

    def fork(self, told: dict[str, Any]) -> None:
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

    def become_child(self, pipe: int, stderr: int, told: dict[str, Any]) -> NoReturn:
        """Leave what is the server's behind and serve requests on the pipe."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.close()
        self.woken.close()
        self.waker.close()
        os.dup2(stderr, 1)
        os.dup2(stderr, 2)
        os.close(stderr)
        child_main.main(Connection(pipe), self.place, told)

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

    def send(self, word: str, told: Any) -> None:
        """Tell the verifier; one that is gone is noticed when it is read from."""
        with contextlib.suppress(ConnectionError):
            self.control.send_bytes(pickle.dumps((word, told)))


if __name__ == "__main__":
    main()

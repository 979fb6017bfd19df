"""Python programs for tests that run many of them: forked from a process that has imported the verifier.

A program that starts afresh imports torch for two seconds. What a fresh start itself does, imports or leaves
undone is asked of programs that start afresh. A program here has its own folder, environment, arguments and
standard streams, and ends as every program; of `PYTHONPATH` it sees what the process was started with.

So are processes that fork children for tests, but for those of a backend that serve all tests: they fork so
many that a program of its own pays, which has less to copy.

As a program of its own, this file asks for one: `python warm_python.py SOCKET ARGUMENTS...`.
"""

import array
import contextlib
import json
import os
import select
import socket
import sys
from pathlib import Path

STREAMS = (0, 1, 2)
NUMBER_BYTES = 16
ROOT = os.environ.get("PYTHONPATH", "")
"""In the process that programs are forked from: the root of the project, as it was told."""
REQUEST_BYTES = 1 << 20


SERVES = "import os; os.setsid(); from verifier.execution.fork_server import main; main()"


def ask(path, arguments, **surroundings):
    """Run `python ARGUMENTS` and return its exit status; negative: the signal that ended it.

    surroundings: as of `begin`.
    """
    return begin(path, arguments, **surroundings).wait()


def begin(path, arguments, *, folder, environment, streams=STREAMS):
    """Begin `python ARGUMENTS` and return it as a `Program`.

    streams: file descriptors of its standard input, output and error.
    """
    request = {
        "arguments": list(map(str, arguments)),
        "folder": str(folder),
        "environment": dict(environment),
    }
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    asking.connect(str(path))
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))
    asking.sendmsg([b"."], [rights])
    asking.sendall(json.dumps(request).encode())
    asking.shutdown(socket.SHUT_WR)
    return Program(asking)


class Program:
    """A program that was forked: what is asked of a process that one started."""

    def __init__(self, asking):
        self.asking, self.status = asking, None
        self.pid = int(self._said())

    def poll(self):
        """Return the exit status, or None while it runs."""
        return self.wait() if self.status is not None or self._tells(0.0) else None

    def wait(self, timeout=None):
        """Wait for its end, no longer than so many seconds, and return the exit status."""
        if self.status is None:
            if not self._tells(timeout):
                from subprocess import TimeoutExpired

                raise TimeoutExpired("a program that was forked", timeout)
            self.status = int(self._said())
            self.asking.close()
        return self.status

    def _tells(self, seconds):
        return bool(select.select([self.asking], [], [], seconds)[0])

    def _said(self):
        said = self.asking.recv(NUMBER_BYTES, socket.MSG_WAITALL)
        if len(said) < NUMBER_BYTES:
            raise RuntimeError("the process that programs are forked from has ended")
        return said


class WarmPython:
    """The process that programs are forked from, and where it is asked."""

    def __init__(self, folder, root):
        import subprocess

        self.path, self.root = folder / "warm", root
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that programs are forked from did not start")

    def run(self, *arguments, folder, environment=None):
        """Return what `subprocess.run` of `python ARGUMENTS` would, with its output as text.

        environment: without it that of the tests.
        """
        import subprocess
        import tempfile

        surroundings = os.environ if environment is None else environment
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            with Path(os.devnull).open() as nothing:
                streams = [one.fileno() for one in (nothing, output, errors)]
                status = ask(self.path, arguments, folder=folder, environment=surroundings, streams=streams)
            said = []
            for stream in (output, errors):
                stream.seek(0)
                said.append(stream.read().decode())
        return subprocess.CompletedProcess(arguments, status, *said)

    def serve(self, server, control):
        """Begin what `Preloaded` executes: the process that forks children, which has its end of a socket."""
        words = server._stderr.fileno()
        streams = (control.fileno(), words, words)
        surroundings = {"folder": Path.cwd(), "environment": server._environment(), "streams": streams}
        return begin(self.path, ("-c", SERVES, "0"), **surroundings)

    def asking(self, *arguments):
        """Return the words of a program that runs `python ARGUMENTS` so, and ends with its status."""
        return [sys.executable, "-I", "-S", __file__, *map(str, (self.path, *arguments))]

    def shell_script(self):
        """Return a script that runs `python ARGUMENTS` so: two hundredths of a second instead of two."""
        return f'#!/bin/sh\nexec {" ".join(self.asking())} "$@"\n'

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(path):
    """Import, say so, and fork a program for each that asks, until standard input ends."""
    import gc
    import signal

    load()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(path)
        listening.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            ready, _, _ = select.select([listening, 0], [], [])
            if 0 in ready:
                os._exit(0)
            asked, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                supervise(asked)
            asked.close()


def load():
    """Import what most programs of the tests do; without Triton there is less of it."""
    from importlib import import_module

    for name in ("audit_report", "bounds_page", "cost_of_dtype", "describe", "explain", "show_bounds"):
        import_module(f"verifier.commands.{name}")
    for name in ("audit.fuzzing.campaign", "audit.replay", "commands.command_line"):
        import_module(f"verifier.{name}")
    for name in ("hypothesis", "matplotlib.pyplot", "torch.fx.experimental.symbolic_shapes"):
        import_module(name)
    with contextlib.suppress(ImportError):
        import triton  # noqa: F401

        for name in ("session", "triton_driver", "triton_cache", "without_assembly", "without_memory"):
            import_module(f"verifier.machine.device.{name}")
    from strategies.hazards import discover

    discover.cache_clear()  # recipes have values by default; a program may know folders with more hazards


def supervise(asked):
    """Fork the program, wait for it, and tell how it ended."""
    import signal

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, rights, _, _ = asked.recvmsg(1, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    streams = array.array("i", rights[0][2])
    request = b""
    while part := asked.recv(REQUEST_BYTES):
        request += part
    program = os.fork()
    if program == 0:
        asked.close()
        become(streams, json.loads(request))
    for stream in streams:
        os.close(stream)  # who reads from the program waits for its end alone
    with contextlib.suppress(BrokenPipeError):  # nobody waits for one whose end nobody asks for
        asked.sendall(in_bytes(program))
        _, status = os.waitpid(program, 0)
        asked.sendall(in_bytes(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def in_bytes(number):
    return str(number).rjust(NUMBER_BYTES).encode()


def become(streams, request):
    """Be the program that is asked for."""
    import atexit
    import traceback

    status = 1
    try:
        for number, stream in zip(STREAMS, streams, strict=True):
            os.dup2(stream, number)
        for stream in streams:
            os.close(stream)
        opened = zip(STREAMS, "rww", strict=True)
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, encoding="utf-8", closefd=False) for number, mode in opened
        )
        sys.stderr.reconfigure(line_buffering=True)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        status = run(request["arguments"])
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def run(arguments):
    """Run as `python ARGUMENTS` does: a module, a text or a file; returns the exit status."""
    import runpy

    kind, *rest = arguments
    try:
        if kind == "-m":
            if rest[0] == "pytest":  # it warns of what is imported before it: it starts afresh
                os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, "PYTHONPATH": ROOT})
            sys.argv, sys.path[0] = rest, str(Path.cwd())
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv, sys.path[0] = arguments, str(Path(kind).resolve().parent)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    return 0


if __name__ == "__main__":
    where, *words = sys.argv[1:]
    if where == "--serve":
        serve(words[0])
    status = ask(where, words, folder=Path.cwd(), environment=os.environ)
    sys.exit(status if status >= 0 else 128 - status)

"""The verifier's end of a child process that executes subjects."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import IO, Any, Self

from verifier.case import Case
from verifier.runner.observation import Observation
from verifier.runner.wire import pack_case, unpack_observation
from verifier.subjects import Subject

START_SECONDS = 120.0
"""A child imports torch and Triton before its first answer; on a busy machine that takes a while."""
END_SECONDS = 5.0
"""A child that closed its pipe has this long to end before it is killed."""
CASE_SECONDS = 60.0
"""Wall limit of one execution; compiling a kernel for a new shape is part of it."""
STDERR_CHARACTERS = 2000


class StartError(RuntimeError):
    """The child did not start: an error of the verifier or the installation, never of a subject."""


class Runner:
    """A warm child process for one backend; it is replaced when it dies or hangs.

    Use as a context manager. `case_seconds` is the wall limit of one execution.
    """

    def __init__(
        self, backend: str, *, options: Mapping[str, Any] | None = None, case_seconds: float = CASE_SECONDS
    ) -> None:
        """Remember what to start; nothing is started yet."""
        self.backend = backend
        self.options = dict(options or {})
        self.case_seconds = case_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stderr: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Return the runner itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the child."""
        self.close()

    def run(
        self,
        subject: Subject,
        case: Case,
        *,
        experiment: str = "verifier.runner.execute:execute",
        **options: Any,
    ) -> Observation:
        """Run an experiment on a subject and a case in the child.

        experiment: "module:function" of a function (subject, case, **options) -> Observation.

        Raises:
            StartError: the child does not start.

        """
        request = {
            "experiment": experiment,
            "path": str(subject.path),
            "name": subject.name,
            "kind": (subject.op, subject.language, subject.dtypes),
            "case": pack_case(case),
            "options": options,
        }
        self._start()
        assert self._connection is not None
        try:
            self._connection.send_bytes(pickle.dumps(request, protocol=5))
            if not self._connection.poll(self.case_seconds):
                self.close()
                return Observation(
                    status="timeout",
                    message=f"no answer within {self.case_seconds:g} seconds; it was stopped",
                    facts={"died": True},
                )
            reply = pickle.loads(self._connection.recv_bytes())  # noqa: S301 (our own child)
            seen = unpack_observation(reply)
        except (EOFError, OSError):
            return self._death()
        if seen.facts.get("died"):  # it can still answer, but its device is lost to it
            self.close()
        return seen

    def close(self) -> None:
        """Kill the child with everything it started."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None

    def _start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        command = [sys.executable, "-m", "verifier.runner.child", str(theirs.fileno()), self.backend]
        self._process = subprocess.Popen(  # noqa: S603 (our own module)
            command,
            env=self._environment(),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=self._stderr,
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        try:
            self._connection.send_bytes(pickle.dumps(self.options, protocol=5))
            answered = self._connection.poll(START_SECONDS) and self._connection.recv_bytes()
        except (EOFError, OSError):
            answered = False
        if not answered:
            words = self._last_words()
            self.close()
            raise StartError(f"the {self.backend} process did not start:\n{words}")

    def _environment(self) -> dict[str, str]:
        from verifier.backends import backend

        wanted = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": "1"}
        threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        return {**os.environ, **threads, **wanted, **backend(self.backend).environment()}

    def _last_words(self) -> str:
        if self._stderr is None:
            return ""
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")[-STDERR_CHARACTERS:]

    def _death(self) -> Observation:
        code = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(END_SECONDS)
        detail = self._last_words()
        self.close()
        return Observation(
            status="crashed", message=_death_message(code), detail=detail, facts={"died": True}
        )


def _death_message(code: int | None) -> str:
    if code is None:
        return "the process ended"
    if code < 0:
        return f"the process was killed by {signal.Signals(-code).name}"
    return f"the process ended with exit status {code}"

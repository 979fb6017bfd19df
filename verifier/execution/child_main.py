"""The child process: loads the subjects of one file, runs experiments on them and answers through a pipe."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NoReturn

from strategies.registry import imported
from verifier.execution.backend import Backend
from verifier.execution.call_subject import answer, failure
from verifier.execution.child_request import ChildRequest, ChildSettings
from verifier.execution.process_tree import end_with
from verifier.execution.wire import PackedObservation, pack_observation
from verifier.machine.pace import PACE
from verifier.records.case import from_document
from verifier.records.observation import Observation
from verifier.records.printable import said
from verifier.records.subject import Claim, Subject
from verifier.subjects.compiling import mark_triton
from verifier.subjects.load_file import load
from verifier.subjects.process_settings import settings_kept


def main(connection: Connection, backend: Backend, told: ChildSettings) -> NoReturn:
    """Serve requests in a process that was just forked until the pipe closes; end it, whatever happens.

    told: see `settle`.
    """
    status = 1
    try:
        settle(told)
        mark_triton()
        _serve(connection, backend)
        status = 0
    except SystemExit as stop:
        status = _status(stop.code)
    except BaseException:  # nothing may return into the server's code
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


def settle(told: ChildSettings) -> None:
    """Make a process that was just forked one of its own, which ends with its parent."""
    parent = os.getppid()
    os.setsid()
    end_with(parent)
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.path[:] = told["path"]
    os.chdir(told["folder"])


def _status(code: object) -> int:
    """Return the exit status that Python gives SystemExit."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _serve(connection: Connection, backend: Backend) -> None:
    own = os.getpid()
    while True:
        try:
            number, request = pickle.loads(connection.recv_bytes())  # noqa: S301 (our own parent)
        except EOFError:
            return
        answer = _answer(request, backend)
        if os.getpid() != own:  # the subject forked, and this is the copy: it has nothing to say
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # what a subject prints is there when its answer is
        connection.send_bytes(pickle.dumps((number, answer), protocol=5))


def _answer(request: ChildRequest, backend: Backend) -> PackedObservation:
    try:
        subject = _subject(request)
    except Exception as error:
        seen = Observation(status="crashed", message=said(error), detail=traceback.format_exc())
        return pack_observation(seen)
    try:
        module, function = request["experiment"].split(":")
        experiment = getattr(imported(module), function)
        case = from_document(request["case"])
        with settings_kept():
            PACE.begin(request["case_seconds"])
            backend.begin()  # a launch that failed in an earlier case is not of this one
            seen = answer(experiment, subject, case, backend=backend, **request["options"])
    except Exception as error:
        seen = failure(error, backend)
    with backend.unfollowed():
        return pack_observation(seen)


def _subject(request: ChildRequest) -> Subject:
    """Return the subject; a function without a declaration gets a bare one."""
    loaded = load(request["path"])
    value = getattr(loaded.module, request["name"], None)
    if isinstance(value, Subject):
        return value
    declared = next((s for s in loaded.subjects if s.name == request["name"]), None)
    if declared is not None:
        return declared
    if not callable(value):
        raise TypeError(f"{request['path']} has no function {request['name']!r}")
    op, language, dtypes = request["kind"]
    return Subject(
        function=value,
        name=request["name"],
        path=loaded.path,
        op=op,
        language=language,
        dtypes=dtypes,
        claim=Claim(),
    )

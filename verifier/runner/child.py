"""The child process: loads subjects, runs experiments on them and answers through a pipe."""

from __future__ import annotations

import faulthandler
import importlib
import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Serve requests until the pipe closes."""
    faulthandler.enable()
    connection = Connection(int(sys.argv[1]))
    options = pickle.loads(connection.recv_bytes())  # noqa: S301 (our own parent)

    import torch

    from verifier.backends import backend

    torch.set_num_threads(1)
    place = backend(sys.argv[2])
    place.prepare(**options)
    connection.send_bytes(b"ready")
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())  # noqa: S301
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(_answer(request, place), protocol=5))


def _answer(request: dict[str, Any], place: Any) -> dict[str, Any]:
    from verifier.printable import said
    from verifier.runner.observation import Observation
    from verifier.runner.wire import pack_observation, unpack_case

    try:
        subject = _subject(request)
        module, function = request["experiment"].split(":")
        experiment = getattr(importlib.import_module(module), function)
        case = unpack_case(request["case"])
        seen = experiment(subject, case, place=place, **request["options"])
    except Exception as error:
        seen = Observation(
            status="crashed",
            message=said(error),
            detail=traceback.format_exc(),
        )
    return pack_observation(seen)


def _subject(request: dict[str, Any]) -> Any:
    """Return the subject; a function without a declaration gets a bare one."""
    from verifier.loading import load
    from verifier.subjects import Claim, Subject

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


if __name__ == "__main__":
    main()

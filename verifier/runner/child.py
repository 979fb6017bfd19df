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
    from verifier.loading import load
    from verifier.runner.observation import Observation
    from verifier.runner.wire import pack_observation, unpack_case

    try:
        subjects = {s.name: s for s in load(request["path"]).subjects}
        module, function = request["experiment"].split(":")
        experiment = getattr(importlib.import_module(module), function)
        case = unpack_case(request["case"])
        seen = experiment(subjects[request["name"]], case, place=place, **request["options"])
    except Exception as error:
        seen = Observation(
            status="crashed",
            message=f"{type(error).__name__}: {error}",
            detail=traceback.format_exc(),
        )
    return pack_observation(seen)


if __name__ == "__main__":
    main()

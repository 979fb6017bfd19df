"""How many things a function returns: asked where what it returns is no result that was expected."""

from __future__ import annotations

from dataclasses import dataclass

from verifier.commands.describing.trials import DTYPES, ordinary
from verifier.execution import Runner
from verifier.execution.backend import Backend
from verifier.execution.backends import backend as named_backend
from verifier.execution.call_subject import UnusableError, failure, forward, lay_out
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.printable import text_of
from verifier.records.subject import Subject

EXPERIMENT = "verifier.commands.describing.what_comes_back:experiment"


@dataclass(frozen=True, kw_only=True)
class Returned:
    """What a call returned: how many things, and whether it was None."""

    things: int
    nothing: bool


def what_comes_back(trial: Subject, runner: Runner) -> Returned | None:
    """Return what a call with ordinary numbers returns, None where none comes to its end."""
    for dtype in DTYPES:
        case = ordinary(trial, dtype, 0.0)
        if case is None or named_backend(runner.backend).refuses(trial, dtype):
            continue
        seen = runner.run(trial, case, experiment=EXPERIMENT)
        if seen.status == "ok":
            return seen.found_as(Returned)
    return None


def experiment(subject: Subject, case: Case, *, backend: Backend) -> Observation:
    """Call the subject once; what is found is a `Returned`. In the child."""
    try:
        call = lay_out(subject, case, device=backend.device())
    except UnusableError as error:
        return Observation(status="unusable", message=text_of(error))
    backend.begin()
    try:
        outputs = forward(subject, call)
        backend.finish()
    except Exception as error:
        return failure(error, backend)
    things = len(outputs) if isinstance(outputs, tuple | list) else 1
    return Observation(status="ok", found=Returned(things=things, nothing=outputs is None))

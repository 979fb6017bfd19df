"""Which of torch's operators compute a mean and a variance for a function: their algorithm is known."""

from __future__ import annotations

from dataclasses import replace

from verifier.commands.describing.trials import ordinary
from verifier.execution import Runner
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.execution.host_arithmetic import HostArithmetic
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject

WELFORD = (
    "native_layer_norm",
    "native_group_norm",
    "var_mean",
    "std_mean",
    "var",
    "std",
)
"""Operators that update mean and squares element by element on a CPU (ATen: RowwiseMoments, WelfordOps)."""
PLACE = "eager"
"""The backend on which they run on a CPU."""


def by_welford(trial: Subject, runner: Runner, dtype: str) -> str | None:
    """Return the operator of torch that computes the variance by Welford's updates, if one does."""
    case = ordinary(trial, dtype, 0.0) if runner.backend == PLACE else None
    if case is None:
        return None
    seen = runner.run(
        trial, case, experiment="verifier.commands.describing.operators:operators", gradients=False
    )
    if seen.status != "ok" or not isinstance(seen.found, frozenset):
        return None
    return next((name for name in WELFORD if name in seen.found), None)


def operators(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Run a case; `found` is the set of torch's operators that computed. Runs in the child."""
    with HostArithmetic() as host:
        seen = execute(subject, case, backend=backend, gradients=gradients)
    return replace(seen, found=frozenset(host.seen))

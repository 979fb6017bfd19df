"""The statistics that a kernel returns lie within their own bounds."""

from __future__ import annotations

import math

from verifier.checks import Session
from verifier.judge import judge
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "saved_statistics"
ORDER = 90
DEMANDS = "mean within its theorem, rstd within its own, each with one cast to the dtype they are saved in"
WHY = "a backward pass trusts what was saved; a wrong rstd beside a right output waits there"
CATCHES = ("saved_rstd_without_eps",)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for every hazard of the input: nothing else matters to statistics."""
    del subject, op
    return Plan(joint=False)


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to subjects that return statistics."""
    del dtype, backend
    if _statistics(subject, op):
        return None
    return "returns no statistics (returns=('output', 'mean', 'rstd') would say so)"


def check(session: Session) -> list[Outcome]:
    """Judge every statistic that is returned."""
    names = _statistics(session.subject, session.op)
    seen = session.execute()
    wrong = {name: text for name in names if (text := _misshapen(session, seen, name))}
    outcomes = [Outcome(verdict=Verdict.FAIL, output=n, message=f"{n}: {t}") for n, t in wrong.items()]
    return outcomes + judge(session.truth, seen, tuple(n for n in names if n not in wrong))


def _statistics(subject: Subject, op: Op) -> tuple[str, ...]:
    return tuple(name for name in subject.returns if name not in op.outputs)


def _misshapen(session: Session, seen: Observation, name: str) -> str:
    """Say what is wrong with the form of a statistic: any shape that holds its numbers will do."""
    tensor = seen.outputs.get(name)
    if name not in session.truth.exact:
        return ""
    wanted = math.prod(session.truth.shape_of(name))
    if tensor is None:
        return f"is None; {wanted} number(s) are declared"
    if not tensor.dtype.is_floating_point:
        return f"has dtype {str(tensor.dtype).removeprefix('torch.')}; floating point is expected"
    return "" if tensor.numel() == wanted else f"has {tensor.numel()} number(s); {wanted} are expected"

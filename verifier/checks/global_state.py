"""A call leaves the process as it found it: dtype, grad mode, flags, random numbers, environment."""

from __future__ import annotations

from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.ops import Op
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "global_state"
ORDER = 125
DEMANDS = (
    "the call leaves every setting of the process as it found it: dtype, modes, flags, threads, "
    "random numbers, environment"
)
WHY = (
    "after such a change the model around the kernel computes differently, and nobody looks for the reason "
    "in a norm"
)
CATCHES = (
    "default_dtype_left_changed",
    "grad_mode_left_off",
    "random_numbers_drawn",
    "random_numbers_seeded",
    "random_numbers_seeded_in_long_rows_triton",
    "flag_left_set",
)


MOST_CASES = 40
MOST_REACHING = 8
"""Shapes that reach other kernels or statements of the wrapper, most first: each may change something."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few shapes, and for those in which the wrapper takes another path."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        max_elements=8192,
        shapes=((4, 33), (2, 1000), (1, 1), (129, 16)),
        eps=(1e-5,),
        share=0.2,
        most=MOST_CASES,
        reaching=True,
        most_reaching=MOST_REACHING,
    )


def check(session: Session) -> list[Outcome]:
    """Look at what the call left changed."""
    backward = bool(session.op.differentiable) and session.subject.differentiable
    changed = session.execute(gradients=backward).settings
    if not changed:
        return [Outcome(verdict=Verdict.PASS, decided=1)]
    return [
        Outcome(
            verdict=Verdict.FAIL,
            output=name.replace(" ", "_"),
            message=f"the call leaves a setting of the process changed: {what}",
            decided=1,
            wrong=1,
        )
        for name, what in changed.items()
    ]

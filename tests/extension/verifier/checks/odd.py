"""The output of -x is minus that of x, where that is guaranteed."""

from __future__ import annotations

from dataclasses import replace

import torch

from verifier.cases.plan import Plan
from verifier.checks.support.bits import demanded
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

NAME = "odd"
GUARANTEE = "the output of -x is minus that of x, element by element"
ORDER = 200
DEMANDS = "the output of -x equals minus the output of x, where that is guaranteed"
WHY = "a constant that is added somewhere is small beside every tolerance"
CATCHES = ()

HAZARDS = ("saw_teeth", "antisymmetric_input")
"""A hazard of one tensor, and a joint one."""


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for the numbers of two hazards."""
    return Plan(hazards=HAZARDS[:1], max_elements=512, min_rows=1, min_columns=2)


def must_be_tried(_subject: Subject) -> list[str]:
    """Demand both hazards."""
    return [f"values of {name}" for name in HAZARDS]


def skips(_subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Leave out raw backward ops."""
    return None if "output" in op.outputs else f"{op.name} has no output of its own"


def check(session: Session) -> list[Outcome]:
    """Compare the outputs of x and of -x."""
    seen = session.execute(experiment="verifier.checks.odd:experiment")
    found = seen.found
    outcomes = demanded(session.subject, NAME, found, holds="odd outputs", broken="outputs that are not odd")
    return [replace(o, tried=(f"values of {session.case.hazard}",)) for o in outcomes]


def experiment(subject: Subject, case: Case, *, backend: Backend) -> Observation:
    """Execute on x and on -x; in the child."""
    turned = replace(case, tensors={**case.tensors, "input": -case.given["input"]})
    seen, other = (execute(subject, c, backend=backend, gradients=False) for c in (case, turned))
    if "ok" not in {seen.status} & {other.status}:
        return other if seen.status == "ok" else seen
    first, second = seen.outputs["output"], other.outputs["output"]
    assert first is not None
    assert second is not None
    found = (
        []
        if torch.equal(first, -second)
        else [Deviation("output", "output: of -x it is not minus that of x")]
    )
    return replace(seen, found=found)

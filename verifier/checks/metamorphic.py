"""Identities of the norm hold between two runs of a kernel, whatever the reference says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from verifier.arithmetic.formats import Array
from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.checks.support.truth import Truth
from verifier.checks.support.worst_element import ulp_of
from verifier.ops import Op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.oracle.enclosure import Mask
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict, Worst

NAME = "metamorphic"
ORDER = 140
NEEDS_A_NORM = "of a specification of the subject's own no identity is known"
DEMANDS = (
    "shifted, scaled and reordered inputs give the same output, within the sum of the bounds of both runs"
)
WHY = (
    "an error that the kernel, the reference and the claim have in common shows only where two runs of the "
    "kernel are compared"
)
CATCHES = ("not_shift_invariant",)

SHIFTS = (1.0, -4.0, 32.0)
SCALES = (8.0, 0.25)
"""Powers of two: scaling rounds nothing."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Another case that must have the output of the first, with its axes `flipped`."""

    words: str
    case: Case
    flipped: int | None = None


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for numbers that shifts and scales leave exact."""
    return Plan(
        hazards=("small_integers", "ordinary", "powers_of_two", "two_level"),
        joint=False,
        max_elements=4800,
        min_rows=1,
        min_columns=1,
        eps=(1e-5, 1e-3, 0.5),
        share=0.5,
    )


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Apply to forward ops of subjects that claim something."""
    if "output" not in op.outputs:
        return f"{op.name} returns gradients only; gradient judges them"
    if not op.claimed(subject.claim):
        return "no algorithm is declared, so no bound applies"
    return None


def check(session: Session) -> list[Outcome]:
    """Run the case and what its identities make of it; compare both outputs element by element."""
    if session.case.elements == 0:
        return []
    base = session.execute()
    outcomes = session.shape_outcomes(base, ("output",))
    if outcomes:
        return outcomes
    for identity in _identities(session.op, session.subject, session.case):
        if session.subject.domain is not None and session.subject.domain.excludes(identity.case):
            continue
        other = replace(session, case=identity.case)
        seen = other.execute()
        if not other.shape_outcomes(seen, ("output",)):
            outcomes.append(_compare(identity, (session.truth, base), (other.truth, seen)))
    return outcomes


def _identities(op: Op, subject: Subject, case: Case) -> Iterator[Identity]:
    """Yield what the identities make of a case, where it can be made without rounding.

    Scaling takes eps along, so that a kernel with an eps of its own is not scaled.
    """
    across = case.scalars.get("training", True)
    if op.shift_invariant and across:
        shifted = ((by, _shifted(case, by)) for by in SHIFTS)
        by, moved = next(((by, x) for by, x in shifted if x is not None), (0.0, None))
        if moved is not None:
            yield Identity(words=f"adding {by:g} to the input", case=_with_input(case, moved))
    if op.scale_invariant and across and "eps" in subject.signature:
        for by in SCALES:
            scaled = _scaled(case, by)
            if scaled is not None:
                eps = {**case.scalars, "eps": case.eps * by * by}
                words = f"multiplying the input by {by:g} and eps by {by * by:g}"
                yield Identity(words=words, case=_with_input(case, scaled, scalars=eps))
    for places in op.unordered(case).values():
        axes = [axis for name, axis in places if name == "input"]
        if axes and case.given["input"].shape[axes[0]] > 1:
            tensors = {**case.tensors, **{n: case.given[n].flip(axis) for n, axis in places}}
            turned = replace(case, tensors=tensors, layouts={})
            yield Identity(words=f"reversing axis {axes[0]}", case=turned, flipped=axes[0])


def _shifted(case: Case, by: float) -> torch.Tensor | None:
    """Return the input plus a number, or None if that rounds."""
    x = case.given["input"].to(torch.float64)
    moved = x + by
    back = moved - x
    lost = (x - (moved - back)) + (by - back)  # what the addition rounded off, exactly (Knuth's two-sum)
    return _held(case, moved) if bool((lost == 0).all()) else None


def _scaled(case: Case, by: float) -> torch.Tensor | None:
    """Return the input times a power of two, or None if that leaves the range of the dtype."""
    x = case.given["input"].to(torch.float64)
    return _held(case, x * by) if bool((x * by / by == x).all()) else None


def _held(case: Case, values: torch.Tensor) -> torch.Tensor | None:
    """Return values in the dtype of the input, or None if it does not hold them."""
    held = values.to(case.given["input"].dtype)
    back = held.to(torch.float64)
    return held if bool((back == values).all()) and bool(torch.isfinite(back).all()) else None


def _with_input(case: Case, x: torch.Tensor, **changes: object) -> Case:
    values = x.to(torch.float64)
    changed = replace(case, tensors={**case.tensors, "input": x}, layouts={})
    changed = replace(changed, largest=float(values.abs().max()))
    return replace(changed, **changes)  # type: ignore[arg-type]


IdentitySide = tuple[Truth, Observation]


def _compare(identity: Identity, base: IdentitySide, other: IdentitySide) -> Outcome:
    """Compare two outputs that are the same in exact arithmetic."""
    truth = base[0]
    if "output" not in truth.bounds or "output" not in other[0].bounds:
        return Outcome(verdict=Verdict.NO_THEOREM, output="output", message="output: no bound")
    first, bound, covered = _flat(base, None)
    second, more, too = _flat(other, identity.flipped)
    both = covered & too
    reasons = (*truth.bounds["output"].reasons, *other[0].bounds["output"].reasons)
    if not both.any():
        why = "; ".join(dict.fromkeys(reasons))
        return Outcome(
            verdict=Verdict.NO_THEOREM,
            output="output",
            uncovered=both.size,
            message=f"output: {why}",
            reasons=reasons,
        )
    with np.errstate(all="ignore"):
        difference = np.abs(first - second)
        difference = np.where(np.isnan(difference), np.inf, difference)
        # The sum of two bounds and the difference are each rounded once in float64.
        allowed = (bound + more) * (1.0 + 2.0**-51)
        utilisation = np.where(difference > 0, difference / allowed, 0.0)
    utilisation = np.where(np.isnan(utilisation), np.inf, utilisation)
    wrong = both & ~(difference <= allowed)
    place = int(np.argmax(np.where(both, utilisation, -1.0)))
    with np.errstate(over="ignore"):
        ulp = float((difference / ulp_of(np.abs(first), truth.case.dtype))[place])
    worst = Worst(
        output="output",
        index=tuple(int(i) for i in np.unravel_index(place, truth.shape_of("output"))),
        actual=float(second[place]),
        expected=float(first[place]),
        error=float(difference[place]),
        bound=float(allowed[place]),
        ulp=ulp,
        row_ulp=ulp,
        utilisation=float(utilisation[place]),
    )
    count = int(wrong.sum())
    message = f"output: {identity.words} changes {count} of {both.size} elements by more than both bounds"
    none = int((wrong & (np.isnan(first) | np.isnan(second))).sum())
    if none:
        message = f"output: {none} of {both.size} elements are NaN, before {identity.words} or after it"
    return Outcome(
        verdict=Verdict.FAIL if count else Verdict.PASS,
        output="output",
        message=message if count else "",
        worst=worst,
        decided=int(both.sum()),
        wrong=count,
        uncovered=int((~both).sum()),
        reasons=reasons,
    )


def _flat(side: IdentitySide, flipped: int | None) -> tuple[Array, Array, Mask]:
    """Return values, bounds and coverage in the order of the elements of the case before it was turned."""
    truth, seen = side
    actual = seen.outputs["output"]
    assert actual is not None
    shape = truth.shape_of("output")
    before = np.arange(actual.numel()).reshape(shape)
    before = before if flipped is None else np.flip(before, flipped)
    order = before.reshape(-1)[truth.op.flat_index(truth.case, "output", shape).reshape(-1)]
    values = truth.op.canonical(truth.case, "output", to_float64(actual))
    bounded = truth.bounds["output"]
    found, bound, covered = np.empty(order.size), np.empty(order.size), np.empty(order.size, dtype=np.bool_)
    for spread, part in ((found, values), (bound, bounded.bound), (covered, bounded.covered)):
        spread[order] = np.broadcast_to(part, values.shape).reshape(-1)
    return found, bound, covered

"""A finite input never gives NaN or infinity where the exact result fits the format or does not exist."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.formats import FORMATS, Format
from verifier.cases.plan import Plan
from verifier.checks.support.output_verdict import format_of, own_index
from verifier.checks.support.session import Session
from verifier.checks.support.tamed import tamed
from verifier.ops import Op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.oracle.enclosure import Mask
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict, Worst

NAME = "finite"
ORDER = 20
ONLY_INSIDE = True
DEMANDS = (
    "the output is finite wherever the inputs are finite and the exact value fits the dtype, even where no "
    "theorem applies; where a running statistic has no exact value, the kernel refuses the case or leaves "
    "the statistic finite"
)
WHY = (
    "squares overflow long before the result does: values of 300 in fp16, of 1e19 in fp32; and a running "
    "statistic that was NaN once stays NaN"
)
CATCHES = ("squares_in_input_dtype", "running_variance_of_one_value")

MARGIN = 2.0**-10
"""Room below the largest number, relative to it, where no theorem covers an element: an exact value nearer
to it may overflow in a right kernel, by the rounding of the value itself and of the few operations before
it (at least 4 u of the output's format: in bfloat16 one rounding alone is 2**-8)."""

_BEFORE_THE_PRODUCT = (
    "output: NaN or infinite with these arguments, and finite once all but the input are within 16: a row "
    "may have left the range of the format before its product with the matrix, which is not looked at"
)

_HAZARDS = (
    "overflow_of_squares",
    "max_magnitude",
    "underflow_of_squares",
    "subnormal",
    "wide_exponents",
    "constant_row",
    "single_nonzero",
    "zeros",
    "one_outlier",
    "ordinary",
)


MOST_REACHING = 2
"""Shapes at most that reach kernels which the others do not, with numbers as large as the domain has them."""


def plan(_subject: Subject, _op: Op) -> Plan:
    """Ask for magnitudes at both ends of the format, and large ones where other kernels run."""
    return Plan(
        hazards=_HAZARDS,
        joint=False,
        reaching=True,
        most_reaching=MOST_REACHING,
        reaching_hazards=("overflow_of_squares", "max_magnitude", "ordinary"),
    )


def skips(_subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Leave out raw backward ops: their given statistics decide what is representable."""
    return None if "output" in op.outputs else f"{op.name} has no output of its own"


def check(session: Session) -> list[Outcome]:
    """Look for non-finite elements whose exact value is representable."""
    if not session.case.finite:
        return []
    seen = session.execute()
    outcomes = _judge(session, seen)
    if any(o.verdict is Verdict.FAIL for o in outcomes) and LINEAR_WEIGHT in session.case.given:
        outcomes = _unless_tamed(session, outcomes)
    return outcomes + _undefined(session, seen)


def _unless_tamed(session: Session, outcomes: list[Outcome]) -> list[Outcome]:
    """Decide nothing where only large arguments beside the input show it: a domain speaks of the input.

    A row that is stored before it meets the matrix may overflow by weight, bias or gate in a right kernel. A
    kernel that overflows by these where it need not is not told apart.
    """
    small = tamed(session)
    if any(o.verdict is Verdict.FAIL for o in _judge(small, small.execute())):
        return outcomes
    return [Outcome(verdict=Verdict.SKIPPED, output="output", message=_BEFORE_THE_PRODUCT)]


def _undefined(session: Session, seen: Observation) -> list[Outcome]:
    """Look for what stays behind in place of results that the definition leaves open, domain or not."""
    outcomes = []
    for name in sorted(session.op.undefined(session.case)):
        actual = seen.outputs.get(name)
        if actual is None or actual.numel() == 0 or format_of(actual) not in FORMATS:
            continue
        bad = int((~np.isfinite(to_float64(actual))).sum())
        text = (
            f"{name}: {bad} of {actual.numel()} elements are NaN or infinite: "
            "the call kept a 0 / 0 instead of refusing the case"
        )
        outcomes.append(
            Outcome(
                verdict=Verdict.FAIL if bad else Verdict.PASS,
                output=name,
                message=text if bad else "",
                decided=actual.numel(),
                wrong=bad,
                kept=True,
            )
        )
    return outcomes


def _representable(session: Session, held: Format, shape: tuple[int, ...]) -> Mask:
    """Return where a right output is finite: its bound says so, or the exact value is well in range."""
    room = max(MARGIN, 4.0 * held.u)
    fits = np.broadcast_to(session.truth.exact["output"].magnitude(), shape) <= held.maximum * (1.0 - room)
    bounded = session.truth.bounds.get("output")
    if bounded is None:
        return np.asarray(fits)
    # A bound is proved only where the computed value, rounded to the output's format, stays in range.
    return np.asarray(fits | np.broadcast_to(bounded.covered & np.isfinite(bounded.bound), shape))


def _judge(session: Session, seen: Observation) -> list[Outcome]:
    actual = seen.outputs.get("output")
    wanted = session.op.expected(session.case, session.subject)["output"]
    if actual is None or tuple(actual.shape) != wanted.shape or actual.numel() == 0:
        return []
    if format_of(actual) not in FORMATS:  # forward_error says so
        return []
    values = session.truth.op.canonical(session.case, "output", to_float64(actual))
    exact = session.truth.exact["output"]
    fits = _representable(session, FORMATS[format_of(actual)], values.shape)
    if session.op.compared is not None:  # forward_error judges what is masked out, NaN or not
        fits = fits & ~session.op.untouched(session.case)
    if not fits.any():
        return []  # no exact value fits the format: nothing is demanded, hence nothing passes
    bad = ~np.isfinite(values) & fits
    if not bad.any():
        return [Outcome(verdict=Verdict.PASS, output="output", decided=int(fits.sum()))]
    place = int(np.argmax(bad))
    at = np.unravel_index(place, values.shape)
    expected = float(np.broadcast_to(exact.high, values.shape)[at])
    worst = Worst(
        output="output",
        index=own_index(session.truth, "output", place),
        actual=float(values[at]),
        expected=expected,
        error=float("inf"),
        bound=float("nan"),
        ulp=float("inf"),
        row_ulp=float("inf"),
        utilisation=float("inf"),
    )
    message = f"output: {int(bad.sum())} of {values.size} elements are NaN or infinite; all inputs are finite"
    return [
        Outcome(
            verdict=Verdict.FAIL,
            output="output",
            message=message,
            worst=worst,
            decided=int(fits.sum()),
            wrong=int(bad.sum()),
        )
    ]

"""The exact softmax and log-softmax of rows, forward and backward, with certified radii."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.error_free import double_double
from verifier.arithmetic.error_free.double_double import HIGHER_ORDER_OF_CHAINS, PASSED_ON, Doubled
from verifier.arithmetic.error_free.exponential import EXP_ERROR, EXP_LIMIT, EXP_LOST
from verifier.arithmetic.error_free.numpy_or_torch import NUMPY
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import ball, parts, precision
from verifier.oracle.enclosure import UNIT, Enclosure, Mask
from verifier.oracle.exponential import exponential
from verifier.oracle.problem import SoftmaxOperands, SoftmaxSolution
from verifier.oracle.rows.fast_constants import PUBLISHED
from verifier.oracle.rows.parameter_sums import pair_total
from verifier.oracle.rows.parameters import Grouping

UNIT2 = UNIT * UNIT
BITS = 256
"""Precision of the row scalars 1 / total and log(total)."""
PRODUCT_ERROR = (double_double.PRODUCT_ERROR + HIGHER_ORDER_OF_CHAINS) * UNIT2
SUM_ERROR = (double_double.SUM_ERROR + HIGHER_ORDER_OF_CHAINS) * UNIT2
"""What one product or sum of pairs adds to a radius, relative to the high part of its result."""


@dataclass(frozen=True, kw_only=True)
class Masked:
    """The operands with everything that is not finite set aside.

    x, added, given, gradient: (rows, columns), finite, or None. absent: elements that take no part: -inf in
    the input, or masked out. finite: (rows,) with an exact answer; finite_gradient: (rows,) whose grad_output
    is finite as well.
    """

    x: Array | None
    added: Array | None
    given: Array | None
    gradient: Array | None
    absent: Mask
    finite: Mask
    finite_gradient: Mask


@dataclass(frozen=True, kw_only=True)
class BoundedPair:
    """Pairs with a radius: |exact - (high + low)| <= radius."""

    pair: Doubled
    radius: Array


def solve_softmax(problem: SoftmaxOperands) -> SoftmaxSolution:
    """Return the exact answer in double-double, enclosed.

    Raises:
        ValueError: shapes that do not fit, or neither input nor output.

    """
    operands = collect_softmax(problem)
    shape = operands.absent.shape
    if 0 in shape:
        empty = Enclosure(high=np.zeros(shape), low=np.zeros(shape), radius=np.zeros(shape))
        gradient = None if operands.gradient is None else empty
        return SoftmaxSolution(
            output=None if operands.x is None else empty,
            grad_input=gradient,
            total=None,
            maximum=None,
            finite=operands.finite,
        )
    with np.errstate(all="ignore"):
        return _solve(problem, operands)


def collect_softmax(problem: SoftmaxOperands) -> Masked:
    """Return the operands of a problem.

    Raises:
        ValueError: shapes that do not fit, or neither input nor output.

    """
    named = {name: _array(getattr(problem, name)) for name in ("input", "output", "grad_output")}
    x, given, gradient = named.values()
    base = x if x is not None else given
    if base is None or (x is not None and given is not None) or base.ndim != 2:
        raise ValueError("a softmax needs either input or output, of rows and columns")
    for name, operand in named.items():
        if operand is not None and operand.shape != base.shape:
            raise ValueError(f"{name} has shape {operand.shape}, not {base.shape}")
    masks_are_values = given is not None and not problem.logarithm
    added = _array(problem.added)
    scores = base if added is None else _sum(base, added)
    absent = np.zeros(base.shape, dtype=bool) if masks_are_values else scores == -np.inf
    if problem.kept is not None:
        absent = absent | (np.asarray(problem.kept) == 0)
    finite = (np.isfinite(scores) | absent).all(1)
    if x is not None:
        finite &= ~absent.all(1)
    sound = np.ones(finite.shape, dtype=bool) if gradient is None else np.isfinite(gradient).all(1)
    if problem.kept is not None and problem.logarithm and gradient is not None:
        sound &= ~((gradient != 0) & absent).any(1)
    return Masked(
        x=None if x is None else _zeroed(x),
        added=None if added is None else _zeroed(added),
        given=None if given is None else _zeroed(given),
        gradient=None if gradient is None else _zeroed(gradient),
        absent=absent,
        finite=finite,
        finite_gradient=finite & sound,
    )


def _sum(x: Array, added: Array) -> Array:
    """Return what says whether a sum is finite: its infinities and NaN, and a number elsewhere."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = x + added
    return np.where(np.isfinite(x) & np.isfinite(added), 0.0, total)


def _array(value: object) -> Array | None:
    if value is None:
        return None
    return np.asarray(value.detach().double().cpu() if hasattr(value, "detach") else value, dtype=np.float64)


def _zeroed(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _solve(problem: SoftmaxOperands, operands: Masked) -> SoftmaxSolution:
    total: BoundedPair | None = None
    maximum = output = None
    if operands.x is not None:
        scores = _scores(problem, operands)
        maximum = np.where(operands.absent, -np.inf, scores.pair[0]).max(1)
        maximum = np.where(operands.finite, maximum, 0.0)
        shifted = _shifted(scores, maximum[:, None])
        powers = _powers(shifted, operands.absent)
        total = _row_total(powers)
        chances = _chances(powers, total)
        output = _logarithms(shifted, total) if problem.logarithm else chances
    if operands.given is not None:
        chances = BoundedPair(
            pair=(operands.given, np.zeros_like(operands.given)), radius=np.zeros(operands.given.shape)
        )
        if problem.logarithm:
            chances = _powers(chances, operands.absent)
    gradient = None
    if operands.gradient is not None:
        gradient = _gradient(problem, operands.gradient, chances)
        if problem.scale != 1.0:
            gradient = _product(gradient, _exact(np.full((1, 1), problem.scale)))
    hidden, lost, masked = ~operands.finite[:, None], ~operands.finite_gradient[:, None], None
    if problem.kept is not None:  # what takes no part is known, whatever the others are
        hidden, lost, masked = hidden & ~operands.absent, lost & ~operands.absent, operands
    return SoftmaxSolution(
        output=None if output is None else _published(output, hidden, operands, logarithm=problem.logarithm),
        grad_input=None if gradient is None else _published(gradient, lost, masked),
        total=None if total is None else _published(_flat(total), ~operands.finite),
        maximum=None if maximum is None else np.where(operands.finite, maximum, np.nan),
        finite=operands.finite,
    )


def _exact(values: Array) -> BoundedPair:
    return BoundedPair(pair=(values, np.zeros_like(values)), radius=np.zeros(values.shape))


def _scores(problem: SoftmaxOperands, operands: Masked) -> BoundedPair:
    """Return input * scale + added."""
    assert operands.x is not None
    scores = _exact(operands.x)
    if problem.scale != 1.0:
        scores = _product(scores, _exact(np.full((1, 1), problem.scale)))
    return scores if operands.added is None else _difference(scores, _exact(-operands.added))


def _shifted(scores: BoundedPair, by: Array) -> BoundedPair:
    """Return scores - by; numbers that stand alone are subtracted without an error."""
    alone = not scores.pair[1].any() and not scores.radius.any()
    if not alone:
        return _difference(scores, _exact(by))
    return BoundedPair(pair=double_double.two_sum(scores.pair[0], -by), radius=scores.radius)


def _powers(argument: BoundedPair, absent: Mask) -> BoundedPair:
    """Return exp(argument), 0 where absent."""
    high, low = exponential(argument.pair)
    high, low = np.where(absent, 0.0, high), np.where(absent, 0.0, low)
    lost = np.where(absent, 0.0, np.where(argument.pair[0] < -EXP_LIMIT, EXP_LOST, 0.0))
    moved = np.expm1(np.where(absent, 0.0, argument.radius))
    error = PASSED_ON * ((EXP_ERROR + moved) * high + EXP_ERROR * moved * high)
    return BoundedPair(pair=(high, low), radius=error + (1.0 + moved) * lost)


def _row_total(terms: BoundedPair) -> BoundedPair:
    """Return the sum of each row, (rows, 1)."""
    rows, columns = terms.radius.shape
    group = Grouping(kit=NUMPY, kind="rows", index=None, entries=rows, count=columns)
    found = pair_total(group, terms.pair, terms.radius.sum(1))
    return BoundedPair(pair=(found.high[:, None], found.low[:, None]), radius=found.radius[:, None])


def _row_scalars(total: BoundedPair, name: str) -> tuple[Array, ...]:
    """Return parts and radius of 1 / total or log(total), each (rows, 1)."""
    from flint import arb

    with precision(BITS):
        table = []
        for high, low, radius in zip(*(p.ravel().tolist() for p in (*total.pair, total.radius)), strict=True):
            value = ball(high) + low + arb(0, radius)
            table.append(parts(1 / value if name == "inverse" else value.log(), 2))
    return tuple(np.array(column)[:, None] for column in zip(*table, strict=True))


def _chances(powers: BoundedPair, total: BoundedPair) -> BoundedPair:
    high, low, radius = _row_scalars(total, "inverse")
    pair = double_double.multiply(powers.pair, (high, low))
    error = PASSED_ON * (powers.radius * (high + radius) + powers.pair[0] * radius)
    return BoundedPair(pair=pair, radius=error + PRODUCT_ERROR * np.abs(pair[0]))


def _logarithms(shifted: BoundedPair, total: BoundedPair) -> BoundedPair:
    high, low, radius = _row_scalars(total, "logarithm")
    pair = double_double.add(shifted.pair, (-high, -low))
    return BoundedPair(pair=pair, radius=SUM_ERROR * np.abs(pair[0]) + PASSED_ON * (radius + shifted.radius))


def _gradient(problem: SoftmaxOperands, gradient: Array, chances: BoundedPair) -> BoundedPair:
    """Return chances * (gradient - sum(gradient * chances)), or gradient - chances * sum(gradient)."""
    exact = BoundedPair(pair=(gradient, np.zeros_like(gradient)), radius=np.zeros(gradient.shape))
    if problem.logarithm:
        return _difference(exact, _product(chances, _row_total(exact)))
    return _product(chances, _difference(exact, _row_total(_product(chances, exact))))


def _product(a: BoundedPair, b: BoundedPair) -> BoundedPair:
    pair = double_double.multiply(a.pair, b.pair)
    passed_on = np.abs(a.pair[0]) * b.radius + a.radius * (np.abs(b.pair[0]) + b.radius)
    rounding = PRODUCT_ERROR * np.abs(pair[0]) + PUBLISHED
    return BoundedPair(pair=pair, radius=PASSED_ON * passed_on + rounding)


def _difference(a: BoundedPair, b: BoundedPair) -> BoundedPair:
    pair = double_double.add(a.pair, double_double.negative(b.pair))
    rounding = SUM_ERROR * np.abs(pair[0])
    return BoundedPair(pair=pair, radius=PASSED_ON * (a.radius + b.radius) + rounding)


def _flat(value: BoundedPair) -> BoundedPair:
    return BoundedPair(pair=(value.pair[0][:, 0], value.pair[1][:, 0]), radius=value.radius[:, 0])


def _published(
    value: BoundedPair, hidden: Mask, operands: Masked | None = None, *, logarithm: bool = False
) -> Enclosure:
    """Return the enclosure: nothing known where it overflowed, NaN where there is no exact value."""
    high, low = value.pair
    known = np.isfinite(high) & np.isfinite(low) & np.isfinite(value.radius)
    high, low = np.where(known, high, 0.0), np.where(known, low, 0.0)
    radius = np.where(known, value.radius + PUBLISHED, np.inf)
    if operands is not None:  # masked elements: exactly 0, or its logarithm
        high = np.where(operands.absent, -np.inf if logarithm else 0.0, high)
        low, radius = np.where(operands.absent, 0.0, low), np.where(operands.absent, 0.0, radius)
    nan = np.where(hidden, np.nan, 0.0)
    return Enclosure(high=high + nan, low=low + nan, radius=radius + nan)

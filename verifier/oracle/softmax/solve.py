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

    x, given, gradient: (rows, columns), finite, or None. absent: elements that are -inf in the input.
    finite: (rows,) with an exact answer; finite_gradient: (rows,) whose grad_output is finite as well.
    """

    x: Array | None
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
    absent = np.zeros(base.shape, dtype=bool) if masks_are_values else base == -np.inf
    finite = (np.isfinite(base) | absent).all(1)
    if x is not None:
        finite &= ~absent.all(1)
    sound = np.ones(finite.shape, dtype=bool) if gradient is None else np.isfinite(gradient).all(1)
    return Masked(
        x=None if x is None else _zeroed(x),
        given=None if given is None else _zeroed(given),
        gradient=None if gradient is None else _zeroed(gradient),
        absent=absent,
        finite=finite,
        finite_gradient=finite & sound,
    )


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
        maximum = np.where(operands.absent, -np.inf, operands.x).max(1)
        maximum = np.where(operands.finite, maximum, 0.0)
        shifted = double_double.two_sum(operands.x, -maximum[:, None])
        powers = _powers(shifted, operands.absent)
        total = _row_total(powers)
        chances = _chances(powers, total)
        output = _logarithms(shifted, total) if problem.logarithm else chances
    if operands.given is not None:
        chances = BoundedPair(
            pair=(operands.given, np.zeros_like(operands.given)), radius=np.zeros(operands.given.shape)
        )
        if problem.logarithm:
            chances = _powers(chances.pair, operands.absent)
    gradient = None
    if operands.gradient is not None:
        gradient = _gradient(problem, operands.gradient, chances)
    hidden = ~operands.finite[:, None]
    return SoftmaxSolution(
        output=None if output is None else _published(output, hidden, operands, logarithm=problem.logarithm),
        grad_input=None if gradient is None else _published(gradient, ~operands.finite_gradient[:, None]),
        total=None if total is None else _published(_flat(total), ~operands.finite),
        maximum=None if maximum is None else np.where(operands.finite, maximum, np.nan),
        finite=operands.finite,
    )


def _powers(argument: Doubled, absent: Mask) -> BoundedPair:
    """Return exp(argument), 0 where absent."""
    high, low = exponential(argument)
    high, low = np.where(absent, 0.0, high), np.where(absent, 0.0, low)
    lost = np.where(absent, 0.0, np.where(argument[0] < -EXP_LIMIT, EXP_LOST, 0.0))
    return BoundedPair(pair=(high, low), radius=PASSED_ON * EXP_ERROR * high + lost)


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


def _logarithms(shifted: Doubled, total: BoundedPair) -> BoundedPair:
    high, low, radius = _row_scalars(total, "logarithm")
    pair = double_double.add(shifted, (-high, -low))
    return BoundedPair(pair=pair, radius=SUM_ERROR * np.abs(pair[0]) + PASSED_ON * radius)


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

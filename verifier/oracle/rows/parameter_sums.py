"""Certified sums of grad_output * normalized and of grad_output over the entries of weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from verifier.arithmetic.error_free import double_double
from verifier.arithmetic.error_free.double_double import Doubled
from verifier.arithmetic.error_free.exact_sums import cutter
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.arithmetic.formats import Array
from verifier.oracle.enclosure import UNIT, Enclosure
from verifier.oracle.rows.elements_float64 import Part
from verifier.oracle.rows.fast_constants import PUBLISHED
from verifier.oracle.rows.parameters import Grouping

ROUNDING: Final = 1.01
"""One rounding, in u: 1 / (1 - k u) for k of them, up to k = 2**46."""


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Sums over a block of rows, each (entries,): value = high + low within error, before inflation.

    sizes is the sum of the magnitudes whose float64 addition in any order may still err.
    """

    high: Array
    low: Array
    error: Array
    sizes: Array


def block_sums(
    group: Grouping, gradient: Arrays, normalized: Part, *, doubled_precision: bool
) -> tuple[Partial, Partial]:
    """Return the sums for grad_weight and for grad_bias over a block; gradient: (rows, columns), exact."""
    high, low, radius = normalized
    size = abs(gradient)
    error, none = group.total(size * radius), 0.0 * group.total(size)
    if doubled_precision and low is not None:
        product = double_double.scale((high, low), gradient)
        rounding = (double_double.SCALED_ERROR + double_double.HIGHER_ORDER) * UNIT * UNIT
        weight = _pair_sum(group, *product, error + rounding * group.total(abs(product[0])))
        return weight, _pair_sum(group, gradient, None, none)
    if low is not None:
        error = error + group.total(size * abs(low))
    contribution = gradient * high
    weight = _plain_sum(group, contribution, abs(contribution), error)
    return weight, _plain_sum(group, gradient, size, none)


def _plain_sum(group: Grouping, values: Arrays, sizes: Arrays, error: Arrays) -> Partial:
    host = group.kit.host
    total = host(group.total(values))
    return Partial(high=total, low=np.zeros_like(total), error=host(error), sizes=host(group.total(sizes)))


def pair_total(group: Grouping, pair: Doubled, error: Array) -> Enclosure:
    """Return the sums of pairs over entries; error: (entries,), the errors of the summands, added up."""
    return _enclosure(_pair_sum(group, pair[0], pair[1], error), group.count)


def _pair_sum(group: Grouping, high: Arrays, low: Arrays | None, error: Arrays) -> Partial:
    """Sum by two exact passes of extraction; only what they leave, and the low parts, may err."""
    kit, exact = group.kit, []
    for _ in range(2):
        sigma = group.spread(cutter(kit, group.top(abs(high)), group.count))
        cut = (sigma + high) - sigma
        high = high - cut
        exact.append(group.total(cut))
    rest = high if low is None else high + low
    total, tail = double_double.two_sum(exact[0], exact[1])
    tail = tail + group.total(rest)
    error = error + ROUNDING * UNIT * abs(tail)
    total, tail = double_double.two_sum(total, tail)
    host = kit.host
    return Partial(high=host(total), low=host(tail), error=host(error), sizes=host(group.total(abs(rest))))


def join(group: Grouping, blocks: Sequence[Partial]) -> Enclosure:
    """Return the sums over all blocks."""
    if group.kind == "rows":
        whole = Partial(
            high=np.concatenate([b.high for b in blocks]),
            low=np.concatenate([b.low for b in blocks]),
            error=np.concatenate([b.error for b in blocks]),
            sizes=np.concatenate([b.sizes for b in blocks]),
        )
        return _enclosure(whole, group.count)
    whole = blocks[0]
    for block in blocks[1:]:
        high, low = double_double.add((whole.high, whole.low), (block.high, block.low))
        rounding = (double_double.SUM_ERROR + double_double.HIGHER_ORDER_OF_CHAINS) * UNIT**2 * np.abs(high)
        error = whole.error + block.error + rounding
        whole = Partial(high=high, low=low, error=error, sizes=whole.sizes + block.sizes)
    return _enclosure(whole, group.count)


def _enclosure(sums: Partial, count: int) -> Enclosure:
    # each summand: one rounding of its own and at most count - 1 additions
    radius = sums.error + (ROUNDING * UNIT * (count + 2.0)) * sums.sizes
    # a summand's error: a product, at most count - 1 additions, two sums for each of at most `count` blocks
    # that hold elements of the entry (what the others add only grows it), and 100 for the rest
    radius = radius * (1.0 + (4.0 * count + 100.0) * UNIT) + PUBLISHED
    lost = ~(np.isfinite(sums.high) & np.isfinite(sums.low) & np.isfinite(radius))
    if lost.any():
        return Enclosure(
            high=np.where(lost, 0.0, sums.high),
            low=np.where(lost, 0.0, sums.low),
            radius=np.where(lost, np.inf, radius),
        )
    return Enclosure(high=sums.high, low=sums.low, radius=radius)

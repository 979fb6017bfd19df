"""Certified sums of grad_output * normalized and of grad_output over the entries of weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verifier.arithmetic import Array
from verifier.oracle import doubled
from verifier.oracle.arrays import Values
from verifier.oracle.doubled import Pair
from verifier.oracle.elements_float64 import Part
from verifier.oracle.enclosure import UNIT, Enclosure
from verifier.oracle.extraction import cutter
from verifier.oracle.fast_constants import PUBLISHED
from verifier.oracle.parameters import Grouping


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
    group: Grouping, gradient: Values, normalized: Part, *, doubled_precision: bool
) -> tuple[Partial, Partial]:
    """Return the sums for grad_weight and for grad_bias over a block; gradient: (rows, columns), exact."""
    high, low, radius = normalized
    size = abs(gradient)
    error, none = group.total(size * radius), 0.0 * group.total(size)
    if doubled_precision and low is not None:
        product = doubled.scale((high, low), gradient)
        rounding = (doubled.SCALED_ERROR + 0.01) * UNIT * UNIT
        weight = _pair_sum(group, *product, error + rounding * group.total(abs(product[0])))
        return weight, _pair_sum(group, gradient, None, none)
    if low is not None:
        error = error + group.total(size * abs(low))
    contribution = gradient * high
    weight = _plain_sum(group, contribution, abs(contribution), error)
    return weight, _plain_sum(group, gradient, size, none)


def _plain_sum(group: Grouping, values: Values, sizes: Values, error: Values) -> Partial:
    host = group.kit.host
    total = host(group.total(values))
    return Partial(high=total, low=np.zeros_like(total), error=host(error), sizes=host(group.total(sizes)))


def pair_total(group: Grouping, pair: Pair, error: Array) -> Enclosure:
    """Return the sums of pairs over entries; error: (entries,), the errors of the summands, added up."""
    return _enclosure(_pair_sum(group, pair[0], pair[1], error), group.count)


def _pair_sum(group: Grouping, high: Values, low: Values | None, error: Values) -> Partial:
    """Sum by two exact passes of extraction; only what they leave, and the low parts, may err."""
    kit, exact = group.kit, []
    for _ in range(2):
        sigma = group.spread(cutter(kit, group.top(abs(high)), group.count))
        cut = (sigma + high) - sigma
        high = high - cut
        exact.append(group.total(cut))
    rest = high if low is None else high + low
    total, tail = doubled.two_sum(exact[0], exact[1])
    tail = tail + group.total(rest)
    error = error + 1.01 * UNIT * abs(tail)
    total, tail = doubled.two_sum(total, tail)
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
        high, low = doubled.add((whole.high, whole.low), (block.high, block.low))
        error = whole.error + block.error + (doubled.SUM_ERROR + 0.1) * UNIT**2 * np.abs(high)
        whole = Partial(high=high, low=low, error=error, sizes=whole.sizes + block.sizes)
    return _enclosure(whole, group.count)


def _enclosure(sums: Partial, count: int) -> Enclosure:
    # each summand: one rounding of its own and at most count - 1 additions; then the evaluation of these sums
    radius = sums.error + (1.01 * UNIT * (count + 2.0)) * sums.sizes
    radius = radius * (1.0 + (4.0 * count + 100.0) * UNIT) + PUBLISHED
    lost = ~(np.isfinite(sums.high) & np.isfinite(sums.low) & np.isfinite(radius))
    if lost.any():
        return Enclosure(
            high=np.where(lost, 0.0, sums.high),
            low=np.where(lost, 0.0, sums.low),
            radius=np.where(lost, np.inf, radius),
        )
    return Enclosure(high=sums.high, low=sums.low, radius=radius)

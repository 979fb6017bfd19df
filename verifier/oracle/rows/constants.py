"""The constants of each row as balls: mean, variance, rstd and the two row means of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verifier.oracle.balls import EXACT_BITS, Ball, ball, balls, precision
from verifier.oracle.rows.exact_sums import RowSums
from verifier.oracle.rows.operands import Rows


@dataclass(frozen=True, kw_only=True)
class RowConstants:
    """What the elements of a row need, one ball for each row.

    normalized = (x - mean) * rstd; projection = mean(g * normalized), offset = mean(g), so that
    grad_input = (g - (normalized * projection + offset)) * rstd. rstd is None where variance + eps
    is not positive: such rows are refused.
    """

    mean: Sequence[Ball]
    variance: Sequence[Ball]
    rstd: Sequence[Ball | None]
    projection: Sequence[Ball]
    offset: Sequence[Ball]


def row_constants(rows: Rows, sums: RowSums, bits: int) -> RowConstants:
    """Return the constants of every row, with relative errors of about 2**-bits.

    Numerators are formed exactly; what follows is one division, one root, one product.
    """
    with precision(EXACT_BITS):
        exact = _numerators(rows, sums)
    with precision(bits):
        return _quotients(rows, sums, exact)


def _given(rows: Rows, statistic: object) -> list[Ball]:
    """Return the given statistic of every row, which a row without columns has too."""
    return balls(np.ravel(rows.kit.host(statistic)).tolist())


@dataclass(frozen=True, kw_only=True)
class _Numerators:
    """Exact balls of each row: N**2 variance, N**2 (variance + eps) and the numerator of the projection.

    With given statistics: `shifted` is the given variance + eps, or the given rstd itself.
    """

    mean: Sequence[Ball]
    spread: Sequence[Ball]
    shifted: Sequence[Ball]
    inner: Sequence[Ball]


def _numerators(rows: Rows, sums: RowSums) -> _Numerators:
    """Return what is exact; products are of sums, so that no cancellation loses anything."""
    count, scale = sums.count, sums.count if rows.own else 1
    zeros = [ball(0.0)] * rows.shape[0]
    totals, spread = zeros, [count * square for square in sums.squares]
    if rows.centred:
        totals = list(sums.x)
        spread = [square - total * total for square, total in zip(spread, totals, strict=True)]
    eps = ball(rows.eps)
    if rows.own:
        mean, eps = totals, eps * (count * count)
        shifted = [value + eps for value in spread]
    else:
        mean = _given(rows, rows.mean) if rows.centred else zeros
        shifted = _given(rows, rows.rstd if rows.variance is None else rows.variance)
        shifted = shifted if rows.variance is None else [value + eps for value in shifted]
    inner = [scale * product for product in sums.products]
    if rows.centred:
        inner = [
            product - middle * gradient
            for product, middle, gradient in zip(inner, mean, sums.gradient, strict=False)
        ]
    return _Numerators(mean=mean, spread=spread, shifted=shifted, inner=inner)


def _quotients(rows: Rows, sums: RowSums, exact: _Numerators) -> RowConstants:
    count, zeros = sums.count, [ball(0.0)] * rows.shape[0]
    square = count * count
    mean, projection = exact.mean, zeros
    rstd: Sequence[Ball | None] = exact.shifted
    variance = [value / square for value in exact.spread]
    if rows.own:
        mean = [value / count for value in mean] if rows.centred else zeros
    elif rows.variance is not None:
        variance = _given(rows, rows.variance)
    if rows.rstd is None:
        factor = count if rows.own else 1
        rstd = [value.rsqrt() * factor if value > 0 else None for value in exact.shifted]
    if exact.inner:
        divisor = square if rows.own else count
        projection = [
            zero if root is None else root * inner / divisor
            for zero, root, inner in zip(zeros, rstd, exact.inner, strict=True)
        ]
    offset = [value / count for value in sums.gradient] if sums.gradient and rows.centred else zeros
    return RowConstants(mean=mean, variance=variance, rstd=rstd, projection=projection, offset=offset)

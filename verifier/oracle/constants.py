"""The constants of each row as balls: mean, variance, rstd and the two row means of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verifier.oracle.balls import EXACT_BITS, Ball, ball, precision
from verifier.oracle.row_sums import RowSums
from verifier.oracle.rows import Rows


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
        numerators = [_numerators(rows, sums, i) for i in range(rows.shape[0])]
    with precision(bits):
        table = [_quotients(rows, sums, i, found) for i, found in enumerate(numerators)]
    mean, variance, rstd, projection, offset = zip(*table, strict=True) if table else ((),) * 5
    return RowConstants(mean=mean, variance=variance, rstd=rstd, projection=projection, offset=offset)


def _given(rows: Rows, statistic: Any, i: int) -> float:
    """Return the given statistic of row i, which a row without columns has too."""
    return float(np.ravel(rows.kit.host(statistic[i if statistic.shape[0] > 1 else 0]))[0])


@dataclass(frozen=True, kw_only=True)
class _Numerators:
    """Exact balls of a row: N**2 variance, N**2 (variance + eps) and the numerator of the projection.

    With given statistics: `shifted` is the given variance + eps, or the given rstd itself.
    """

    mean: Ball
    spread: Ball
    shifted: Ball
    inner: Ball


def _numerators(rows: Rows, sums: RowSums, i: int) -> _Numerators:
    """Return what is exact; products are of sums, so that no cancellation loses anything."""
    zero, count = ball(0.0), sums.count
    total = sums.x[i] if rows.centred else zero
    spread = count * sums.squares[i] - total * total
    if rows.own:
        mean, scale = total, count
        shifted = spread + ball(rows.eps) * (count * count)
    else:
        mean, scale = (ball(_given(rows, rows.mean, i)) if rows.centred else zero), 1
        given = rows.rstd if rows.variance is None else rows.variance
        shifted = ball(_given(rows, given, i)) + (0.0 if rows.variance is None else rows.eps)
    inner = scale * sums.products[i] - mean * sums.gradient[i] if sums.gradient else zero
    return _Numerators(mean=mean, spread=spread, shifted=shifted, inner=inner)


def _quotients(rows: Rows, sums: RowSums, i: int, exact: _Numerators) -> tuple[Ball | None, ...]:
    count, zero = sums.count, ball(0.0)
    variance = exact.spread / (count * count)
    mean, rstd = exact.mean, exact.shifted
    if rows.own:
        mean = mean / count
    elif rows.variance is not None:
        variance = ball(_given(rows, rows.variance, i))
    if rows.rstd is None:
        positive = bool(exact.shifted > 0)
        rstd = exact.shifted.rsqrt() * (count if rows.own else 1) if positive else None
    projection = zero if rstd is None else rstd * exact.inner / (count * count if rows.own else count)
    offset = sums.gradient[i] / count if sums.gradient and rows.centred else zero
    return mean, variance, rstd, projection, offset

"""The constants of each row as balls: mean, variance, rstd and the two row means of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verifier.oracle.balls import EXACT_BITS, Ball, ball, precision
from verifier.oracle.row_sums import RowSums, row_list
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
    table = [_constants(rows, sums, i, bits) for i in range(rows.shape[0])]
    mean, variance, rstd, projection, offset = zip(*table, strict=True) if table else ((),) * 5
    return RowConstants(mean=mean, variance=variance, rstd=rstd, projection=projection, offset=offset)


def _constants(rows: Rows, sums: RowSums, i: int, bits: int) -> tuple[Ball, ...]:
    zero = ball(0.0)
    count = sums.count
    backward = bool(sums.gradient)
    centred, own = rows.centred, rows.own
    with precision(EXACT_BITS):
        total = sums.x[i] if centred else zero
        spread = count * sums.squares[i] - total * total if centred else count * sums.squares[i]
        shifted = spread + ball(rows.eps) * (count * count)
        mean = zero if own or not centred else ball(row_list(rows, rows.mean, i)[0])
        if not backward:
            inner = zero
        elif own:
            inner = count * sums.products[i] - total * sums.gradient[i]
        else:
            inner = sums.products[i] - mean * sums.gradient[i]
        given = None if rows.variance is None else ball(row_list(rows, rows.variance, i)[0])
        moved = None if given is None else given + rows.eps
    with precision(bits):
        variance = given if given is not None else spread / (count * count)
        if own:
            mean = total / count
            rstd = shifted.rsqrt() * count if bool(shifted > 0) else None
        elif moved is not None:
            rstd = moved.rsqrt() if bool(moved > 0) else None
        else:
            rstd = ball(row_list(rows, rows.rstd, i)[0])
        projection = zero if rstd is None else rstd * inner / (count * count if own else count)
        offset = sums.gradient[i] / count if backward and centred else zero
    return mean, variance, rstd, projection, offset

"""The reciprocal standard deviation: its error follows from that of the variance (T9)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import INFLATION, Arithmetic, Array, Format
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.bounds.variance import Mask, MomentBound
from verifier.bounds.variance.row_terms import conclusion

_OUTWARD = 2.0**-50
"""Relative widening of variance + eps, which meets two roundings of float64 (2**-53 each), and of the floor,
which meets six at most."""
_EXPONENT_ERROR = 2.0**-40
"""Error of a sum of logarithms: log(above / floor) / 2 is below 355 and errs by 4 of its ulps, 2**-42."""


@dataclass(frozen=True, kw_only=True)
class RstdBound:
    """A bound rho, (rows,), on |computed rstd - exact rstd| / exact rstd, and where it is proved."""

    relative_error: Array
    covered: Mask
    why: str


def rstd_bound(
    rows: RowStatistics,
    moment_bound: MomentBound,
    eps: float,
    eps_error: float,
    arithmetic: Arithmetic,
    *,
    held: Format | None = None,
) -> RstdBound:
    """Bound the relative error of 1 / sqrt(variance + eps); of 1 / sqrt(mean square + eps) for rms.

    eps_error: relative error of eps as the kernel holds it, |held - eps| / eps.
    arithmetic.reciprocal_square_root: error of the whole 1 / sqrt, in u.
    held: a narrower format to which the sum, its root and the reciprocal are each rounded as well.

    Source: docs/explanation/bounds.md, T9.
    """
    centred = moment_bound.centred
    exact_lower = rows.variance_lower if centred else rows.mean_square_lower
    exact_upper = rows.variance_upper if centred else rows.mean_square
    below = (exact_lower + eps) * (1.0 - _OUTWARD)
    above = (exact_upper + eps) * (1.0 + _OUTWARD)
    u = arithmetic.u
    own = arithmetic.reciprocal_square_root * u
    with np.errstate(all="ignore"):
        moved = moment_bound.variance_error + eps_error * eps
        difference = (moved + u * (above + moved) + arithmetic.addition_omega) * INFLATION
        sum_fits = np.ones(np.shape(difference), dtype=np.bool_)
        kept, vanished = 1.0, 0.0
        if held is not None:
            reach = (above + difference) * INFLATION
            sum_fits = reach <= held.maximum * (1.0 + held.u / 2)
            difference = (difference + held.u * reach + held.omega) * INFLATION
            own = (own + (1.0 + own) * 2.0 * held.u / (1.0 - held.u)) * INFLATION
            kept, vanished = 1.0 - held.u, held.omega
        share = difference / below * INFLATION
        relative = _two_sided(share, own)
        smallest = below * (1.0 - share)
        floor = eps * (1.0 - eps_error) * (1.0 - u) * kept * (1.0 - _OUTWARD) - vanished * INFLATION
        if moment_bound.nonnegative and floor > 0.0:
            relative = np.fmin(relative, _above_eps(above, floor, share, own))
            smallest = np.fmax(smallest, floor)
        lowest = arithmetic.format.smallest_normal
        flushed = arithmetic.flush_to_zero & ~(smallest > 2.0 * lowest)
        largest = arithmetic.format.maximum / 2.0
        fits = sum_fits & (below * (1.0 + share) < largest)
        root_fits = (1.0 + relative) / np.sqrt(below) < largest
    covered, why = conclusion(
        (
            (np.asarray(moment_bound.covered), moment_bound.why),
            (np.isfinite(relative), "the variance error reaches variance + eps"),
            (~np.asarray(flushed), "variance + eps may be flushed to zero"),
            (fits, "variance + eps may overflow"),
            (root_fits, "the reciprocal standard deviation may overflow"),
        )
    )
    return RstdBound(relative_error=np.where(covered, relative, np.inf), covered=covered, why=why)


def _two_sided(share: Array, own: float) -> Array:
    """Return ((1 - share)**-1/2 - 1)(1 + own) + own where share < 1, else infinity (NaN included)."""
    inside = share < 1.0
    root = np.expm1(-0.5 * np.log1p(-np.where(inside, share * INFLATION, 0.0))) * INFLATION
    inside &= np.isfinite(root)
    return np.where(inside, (root * (1.0 + own) + own) * INFLATION, np.inf)


def _above_eps(above: Array, floor: float, share: Array, own: float) -> Array:
    """Return the error when the computed variance is not negative, so that the root is at least eps's.

    The computed rstd lies between (t (1 + share))**-1/2 (1 - own) and floor**-1/2 (1 + own); a bound
    above 1 would say nothing and counts as no theorem.
    """
    too_large = np.expm1(0.5 * np.log(above / floor) + np.log1p(own) + _EXPONENT_ERROR)
    too_small = -np.expm1(-0.5 * np.log1p(share) + np.log1p(-own) - _EXPONENT_ERROR)
    relative = np.maximum(np.maximum(too_large, too_small), own) * INFLATION
    return np.where((relative < 1.0) & np.isfinite(share), relative, np.inf)

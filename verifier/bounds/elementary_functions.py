"""How an error passes through exponential, logarithm, reciprocal root and hyperbolic tangent (T9, T11, T17).

Each function takes a value as affine arithmetic holds it: the exact value lies within `slack` of
`centre`, the computed one within `total` of the exact one. It returns the same of the function's
value, not yet rounded: (centre, slack, error). An infinite error says that there is no bound.

Source: docs/explanation/bounds.md, T9, T11 and T17.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.error_free.exponential import EXP_LIMIT, EXP_LOST
from verifier.arithmetic.formats import INFLATION, Array
from verifier.oracle.exponential import exponential
from verifier.oracle.formulas.pair_numbers import hyperbolic_tangent, lifted

Moved = tuple[Array, Array, Array]

_NEAR = 2.0**-50
"""Relative error of a float64 evaluation of a few operations, root and logarithm included."""


def exp(centre: Array, slack: Array, total: Array) -> Moved:
    """Return e**value; far below zero the value counts as zero, far above there is no bound."""
    with np.errstate(all="ignore"):
        value = exponential((np.minimum(centre, EXP_LIMIT), np.zeros_like(centre)))[0]
        top = centre + slack
        spread = value * np.expm1(np.minimum(slack, EXP_LIMIT)) * INFLATION
        around = np.where(top < -EXP_LIMIT, 0.0, spread) + _NEAR * value + EXP_LOST
        # exp(t + e) - exp(t) for e > 0 exceeds the loss on the other side. Two forms of it: the first keeps
        # its digits for a small e, the second does not multiply exp(t) = 0 by an infinite growth.
        near = (value + around) * np.expm1(np.minimum(total, 1.0))
        far = np.exp(np.minimum(top + total, EXP_LIMIT)) + EXP_LOST
        error = np.where(total <= 1.0, near, far) * INFLATION
        error = np.where(top + total < EXP_LIMIT, error, np.inf)
    return value, around, error


def log(centre: Array, slack: Array, total: Array) -> Moved:
    """Return the natural logarithm; values that may vanish have no bound."""
    with np.errstate(all="ignore"):
        lowest = (centre - slack) * (1.0 - _NEAR)
        safe = (lowest > total) & (centre < 2.0**900)
        positive, floor = np.where(safe, centre, 1.0), np.where(safe, lowest, 1.0)
        value = np.log(positive)
        # The library's logarithm is certified by our exponential: log(c) = l + log(c * exp(-l)).
        back = exponential((-np.clip(value, -EXP_LIMIT, EXP_LIMIT), np.zeros_like(value)))[0]
        off = np.abs(positive * back - 1.0) + _NEAR
        certain = safe & (off < 2.0**-40)
        around = off * INFLATION + slack / floor
        error = np.where(certain, -np.log1p(-total / floor * INFLATION) * INFLATION, np.inf)
    return value, around, np.where(np.isnan(error), np.inf, error)


def rsqrt(centre: Array, slack: Array, total: Array) -> Moved:
    """Return value**-1/2; values that may vanish have no bound."""
    with np.errstate(all="ignore"):
        lowest = (centre - slack) * (1.0 - _NEAR)
        safe = lowest > total
        floor = np.where(safe, lowest, 1.0)
        value = 1.0 / np.sqrt(np.where(safe, centre, 1.0))
        largest = (1.0 + _NEAR) / np.sqrt(floor)
        around = largest * (slack / floor + _NEAR)
        error = largest * np.expm1(-0.5 * np.log1p(-total / floor * INFLATION)) * INFLATION
    return value, around, np.where(safe & ~np.isnan(error), error, np.inf)


def rsqrt_of_squares(centre: Array, slack: Array, total: Array, eps: Moved) -> Moved:
    """Return (squares + eps)**-1/2, where squares are computed to be at least 0 (T9, second form).

    eps: what is added, as affine arithmetic holds it. The root is computed of eps at least, also where
    `total` is more than the value itself; it is too small by no more than itself, and a bound that lets it
    be too large by more counts as none.
    """
    first = rsqrt(centre, slack, total)
    with np.errstate(all="ignore"):
        least = np.maximum(centre - slack, eps[0] - eps[1]) * (1.0 - _NEAR)
        floor = (eps[0] - eps[1]) * (1.0 - _NEAR) - eps[2] * (1.0 + _NEAR)
        top = np.maximum(centre + slack, least) * (1.0 + _NEAR)
        value, largest = 1.0 / np.sqrt(np.maximum(centre, least)), (1.0 + _NEAR) / np.sqrt(least)
        around = largest * (slack / least + _NEAR)
        too_large = ((1.0 + _NEAR) / np.sqrt(floor) - (1.0 - _NEAR) / np.sqrt(top)) * INFLATION
        too_small = (largest - (1.0 - _NEAR) / np.sqrt(top + total)) * INFLATION
        error = np.maximum(too_large, np.minimum(too_small, largest))
        safe = (least > 0) & (floor > 0) & np.isfinite(total) & (too_large < largest)
        better = safe & (error < first[2])
    merged = (
        np.where(better, second, one) for one, second in zip(first, (value, around, error), strict=True)
    )
    centre, slack, error = merged
    return centre, slack, error


def tanh(centre: Array, slack: Array, total: Array) -> Moved:
    """Return the hyperbolic tangent, whose slope is at most 1 and falls with the distance from 0."""
    with np.errstate(all="ignore"):
        known = np.isfinite(centre) & np.isfinite(slack)
        found = hyperbolic_tangent(lifted(np.where(known, centre, 0.0)))
        low = np.abs(found.low) + found.radius
        least = np.maximum(np.abs(centre) * (1.0 - _NEAR) - slack - total, 0.0)
        slope = 1.0 / np.square(np.cosh(np.minimum(least, 300.0))) * (1.0 + 2.0**-40)
        around = np.where(known, low + slack, np.inf)
        error = np.where(np.isfinite(total), np.minimum(total * slope, 2.0) * INFLATION, np.inf)
    return found.high, around, np.where(np.isnan(error), np.inf, error)

"""Running statistics: R' = (1 - momentum) R + momentum m, exactly and with a bound.

m is the mean of the batch, or its unbiased variance: the population variance times N / (N - 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from verifier.arithmetic.abstract_number import Numbers, Value
from verifier.arithmetic.formats import FORMATS, INFLATION, Array, theta
from verifier.arithmetic.simulated import round_to
from verifier.bounds.affine import bound_of
from verifier.bounds.affine_value import Affine
from verifier.ops import Bounded
from verifier.ops.rows.compose_bounds import Composer, combined_reasons
from verifier.oracle.balls import Ball, ball, enclose, precision
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import RowSolution

BITS = 256
"""Precision of the exact update: far more than the statistics, known to about 2**-100, deserve."""
UNBIASED_DIVISIONS, UNBIASED_ROUNDINGS = 2.0, 3.0
"""Relative errors of an unbiased variance v N / (N - 1), apart from those of v, at most: divisions, of
`Arithmetic.division` roundings each, and other roundings, with the c_m roundings that made v of a sum.

- sum / (N - 1): the division that made v is undone (c_m), N - 1 is rounded (1), one division.
- v * (N / (N - 1)) and v * N / (N - 1): N and N - 1 are rounded (2), a product (1), one division.
- v / (1 - 1 / N): N is rounded (1), 1 / N is divided, the difference is rounded (1), a second division.
  The error of 1 / N is 1 / (N - 1) of the difference, so that it is not larger than it was.

Each way leaves at least one rounding u, since a division costs one at least. That covers the difference
between 1 / (1 - u) and 1 + u: u**2 (1 + 2 u) for each factor that is divided by, at most three of them.
"""
UNBIASED_UNDERFLOWS = 4.0
"""Underflows, in omega, before the factor N / (N - 1), which is all that may multiply one afterwards. Each
way has two at most (the division that made v, a product, a division); as many again cover later roundings."""
UNBIASED_CENTRE = 2.0**-51
"""Relative error of the exact unbiased variance as float64: of N / (N - 1), of the product, and the low part
of the variance, which is left out; 2**-53 each, and as much again as one."""


def unchanged(held: Array) -> Enclosure:
    """Return running statistics that nothing moves."""
    nothing = np.zeros_like(held)
    return Enclosure(high=held, low=nothing, radius=nothing)


def exact(
    solution: RowSolution, running_mean: Array, running_var: Array, momentum: float, count: int
) -> Mapping[str, Enclosure]:
    """Return the running statistics after a batch of `count` values a channel.

    One value has no unbiased variance (0 / 0), no values have no mean: no exact running statistics then.
    """

    def of_batch(variance: Ball) -> Ball:
        return unbiased(_Balls(), variance, ball(float(count))) if count > 1 else variance

    with precision(BITS):
        mean = _updated(running_mean, solution.mean, momentum, lambda value: value)
        var = _updated(running_var, solution.variance, momentum, of_batch)
    return {
        "running_mean": mean if count else _nothing(mean),
        "running_var": var if count > 1 else _nothing(var),
    }


def _nothing(like: Enclosure) -> Enclosure:
    nan = np.full(like.shape, np.nan)
    return Enclosure(high=nan, low=nan, radius=nan)


class _Constants(Protocol):
    """What the formulas need of a number system: constants, and values with operators."""

    def constant(self, number: float) -> Value:
        """Return a constant."""


class _Balls:
    """Balls as a number system."""

    def constant(self, number: float) -> Ball:
        """Return an exact constant."""
        return ball(number)


def _updated(held: Array, new: Enclosure, momentum: float, of_batch: Callable[[Ball], Ball]) -> Enclosure:
    from flint import arb

    low, radius = (np.broadcast_to(part, new.shape) for part in (new.low, new.radius))
    known = np.isfinite(held) & np.isfinite(new.high) & np.isfinite(radius)
    found = []
    for old, high, rest, spread, sound in zip(held, new.high, low, radius, known, strict=True):
        value = ball(high) + ball(rest) + arb(0, float(spread)) if sound else ball(0.0)
        old_ball = ball(old) if sound else ball(0.0)
        found.append(weighted(_Balls(), old_ball, of_batch(value), ball(momentum)))
    enclosed = enclose(found, new.shape)
    hidden = np.where(known, 0.0, np.nan)
    return Enclosure(high=enclosed.high + hidden, low=enclosed.low, radius=enclosed.radius + hidden)


def bounds(
    composer: Composer, running_mean: Array, running_var: Array, momentum: float
) -> dict[str, Bounded]:
    """Bound the running statistics that a subject's form makes of the old ones and the batch's."""
    numbers = composer.numbers
    assert numbers.saved is not None
    with np.errstate(all="ignore"):
        mean = _moved(composer, running_mean, numbers.saved[0], momentum, "running_mean")
        var = _moved(composer, running_var, _unbiased(composer), momentum, "running_var")
    return {"running_mean": mean, "running_var": var}


def unbiased(k: _Constants, variance: Value, count: Value) -> Value:
    """Return variance * count / (count - 1): what a batch's population variance says of the unbiased one."""
    return variance * count / (count - k.constant(1.0))


def weighted(k: _Constants, held: Value, new: Value, momentum: Value) -> Value:
    """Return (1 - momentum) * held + momentum * new."""
    return (k.constant(1.0) - momentum) * held + momentum * new


def weighted_in_steps(k: Numbers, held: Value, new: Value, momentum: Value) -> Value:
    """Return the same with every step rounded to the input's dtype, as PyTorch on the CPU in bfloat16."""
    keep, share = (k.cast(v, "input") for v in (k.constant(1.0) - momentum, momentum))
    return k.cast(keep * held, "input") + k.cast(share * k.cast(new, "input"), "input")


def _moved(composer: Composer, held: Array, new: Affine, momentum: float, name: str) -> Bounded:
    numbers = composer.numbers
    update = composer.form.update or weighted
    old, share = numbers.read(held.reshape(-1, 1), name), _scalar(composer, momentum)
    value = numbers.cast(update(numbers, old, new, share), name)
    bound = bound_of(value)[:, 0]
    covered = composer.covered & np.isfinite(held)
    known = ("a running statistic is not finite", not bool(np.isfinite(held).all()))
    reasons = combined_reasons([*composer.why, known], value.reasons, bound[covered])
    return Bounded(bound=bound, covered=covered & np.isfinite(bound), reasons=reasons)


def _scalar(composer: Composer, number: float) -> Affine:
    """Return a scalar argument as it reaches the kernel, perhaps in a narrower format first."""
    value = composer.numbers.constant(number)
    name = composer.setting.scalar_format
    passed = number if name is None else float(round_to(FORMATS[name], np.array(number)))
    lost = abs(passed - number) * (1.0 + composer.numbers.arithmetic.u)  # rounded once more where it is used
    return composer.numbers.with_rest(value, np.full_like(value.centre, lost))


def _unbiased(composer: Composer) -> Affine:
    """Return the computed unbiased variance, as sum / (N - 1) or as N / (N - 1) times the variance.

    With |v_computed - v| <= D the sum is N v (1 + D / v) up to the division that made v, c_m roundings; the
    constants above say what follows.
    """
    numbers, arithmetic = composer.numbers, composer.setting.arithmetic
    count, moments, exact_variance = numbers.columns, composer.moments, composer.solution.variance
    assert moments is not None
    factor = count / (count - 1) if count > 1 else np.nan
    c_m = arithmetic.division_by_count(count, composer.claim.divide_by_n)
    growth = theta(c_m + UNBIASED_DIVISIONS * arithmetic.division + UNBIASED_ROUNDINGS, arithmetic.u)
    magnitude, error = exact_variance.magnitude(), moments.variance_error
    total = (
        (error + growth * (magnitude + error) + UNBIASED_UNDERFLOWS * arithmetic.omega) * factor * INFLATION
    )
    centre = exact_variance.high * factor
    slack = (
        np.broadcast_to(exact_variance.radius, centre.shape) * factor + UNBIASED_CENTRE * np.abs(centre)
    ) * INFLATION
    usable = composer.covered & np.isfinite(total)
    value = numbers.exact(np.where(usable, centre, 0.0)[:, None], np.where(usable, slack, 0.0)[:, None])
    return numbers.rounded(numbers.with_rest(value, np.where(usable, total, np.inf)[:, None]), 0.0)

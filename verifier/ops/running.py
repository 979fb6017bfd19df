"""Running statistics: R' = (1 - momentum) R + momentum m, exactly and with a bound.

m is the mean of the batch, or its unbiased variance: the population variance times N / (N - 1).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from verifier.affine import Affine, bound_of
from verifier.arithmetic import FORMATS, INFLATION, Array, theta
from verifier.numbers import Numbers, Value
from verifier.ops import Bounded
from verifier.ops.rows import Composer, combined_reasons
from verifier.oracle.balls import Ball, ball, enclose, precision
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import RowSolution
from verifier.rounded import round_to

BITS = 256
"""Precision of the exact update: far more than the statistics, known to about 2**-100, deserve."""


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
    with precision(BITS):
        factor = ball(float(count)) / (count - 1) if count > 1 else ball(1.0)
        mean = _updated(running_mean, solution.mean, ball(1.0), momentum)
        var = _updated(running_var, solution.variance, factor, momentum)
    return {
        "running_mean": mean if count else _nothing(mean),
        "running_var": var if count > 1 else _nothing(var),
    }


def _nothing(like: Enclosure) -> Enclosure:
    nan = np.full(like.shape, np.nan)
    return Enclosure(high=nan, low=nan, radius=nan)


def _updated(held: Array, new: Enclosure, factor: Ball, momentum: float) -> Enclosure:
    from flint import arb

    low, radius = (np.broadcast_to(part, new.shape) for part in (new.low, new.radius))
    known = np.isfinite(held) & np.isfinite(new.high) & np.isfinite(radius)
    found = []
    for old, high, rest, spread, sound in zip(held, new.high, low, radius, known, strict=True):
        value = ball(high) + ball(rest) + arb(0, float(spread)) if sound else ball(0.0)
        old_ball = ball(old) if sound else ball(0.0)
        found.append((1 - ball(momentum)) * old_ball + ball(momentum) * factor * value)
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


def weighted(k: Numbers, held: Value, new: Value, momentum: Value) -> Value:
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
    reasons = combined_reasons([*composer.why, known], value, bound[covered])
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

    With |v_computed - v| <= D the sum is N v (1 + D / v) up to the division that made v (c_m
    roundings); what follows is at most two divisions and a product, or counts that are not exact.
    """
    numbers, arithmetic = composer.numbers, composer.setting.arithmetic
    count, moments, exact_variance = numbers.columns, composer.moments, composer.solution.variance
    assert moments is not None
    factor = count / (count - 1) if count > 1 else np.nan
    c_m = arithmetic.division_by_count(count, composer.claim.divide_by_n)
    growth = theta(c_m + 2.0 * arithmetic.division + 3.0, arithmetic.u)
    magnitude, error = exact_variance.magnitude(), moments.variance_error
    total = (error + growth * (magnitude + error) + 4.0 * arithmetic.omega) * factor * INFLATION
    centre = exact_variance.high * factor
    slack = (
        np.broadcast_to(exact_variance.radius, centre.shape) * factor + 2.0**-51 * np.abs(centre)
    ) * INFLATION
    usable = composer.covered & np.isfinite(total)
    value = numbers.exact(np.where(usable, centre, 0.0)[:, None], np.where(usable, slack, 0.0)[:, None])
    return numbers.rounded(numbers.with_rest(value, np.where(usable, total, np.inf)[:, None]), 0.0)

"""Specifications that are written with mpmath, for one row of numbers."""

from __future__ import annotations

import mpmath
from mpmath import fsum, mp, mpf

HALF = mpf("0.5")


def mean(numbers):
    return fsum(numbers) / len(numbers)


def rms_norm(input, weight, eps):
    mp.dps = 50
    rstd = 1 / mpmath.sqrt(mean([x * x for x in input]) + eps)
    return [x * rstd * (1 + w) for x, w in zip(input, weight, strict=True)]


def layer_norm(input, weight, bias, eps):
    from mpmath import mpf as number
    from mpmath import sqrt

    center = mean(input)
    with mpmath.workdps(100):
        rstd = number(1) / sqrt(fsum((x - center for x in input), squared=True) / len(input) + eps)
    return [(x - center) * rstd * w + b for x, w, b in zip(input, weight, bias, strict=True)]


def softmax(input):
    powers = [mpmath.exp(x) for x in input]
    return [p / sum(powers) for p in powers]


def neighbours(input, weight):
    """Pick single numbers: the row turned by one, and its first and last number."""
    turned = [*input[1:], input[0]]
    edge = mpmath.fdot([input[0], input[-1]], [weight[-1], weight[0]]) * HALF
    return [
        mpmath.power(t, 3) + mpmath.tanh(edge) * mp.log(1 + x * x) for t, x in zip(turned, input, strict=True)
    ]


def fused(input, residual):
    total = [a + b for a, b in zip(input, residual, strict=True)]
    scale = mpmath.fsum(total) / len(total)
    return [mpmath.fsub(t, scale) for t in total], scale

"""Specifications that are written with mpmath, for one row of numbers."""

from __future__ import annotations

import copy
import math

import mpmath
from mpmath import fsum, mp, mpf

HALF = mpf("0.5")
PI = math.pi


class Unfriendly:
    """What a module may hold beside: hashing or comparing it runs code of others."""

    def __hash__(self):
        raise AssertionError("hashed")

    def __eq__(self, other):
        raise AssertionError("compared")


UNFRIENDLY = Unfriendly()


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
    total = sum(powers)
    return [p / total for p in powers]


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


def concatenated(input, residual):
    both = input + residual
    scale = mpmath.sqrt(fsum(both, squared=True) / len(both))
    return [x / scale for x in input[-1:] + input[:-1]]


def concatenated_apart(input, residual):
    total = fsum([x * x for x in input]) + fsum([x * x for x in residual])
    scale = mpmath.sqrt(total / (2 * len(input)))
    return [input[n - 1] / scale for n in range(len(input))]


def copied(input, weight):
    other = copy.deepcopy(weight)
    return [x * (1 + w) for x, w in zip(copy.copy(input), other, strict=True)]


def scaled_by_one_more(input, weight):
    return [x * (1 + w) for x, w in zip(input, weight, strict=True)]


def tiny_constant(input, weight):
    mp.dps = 50
    one = ((1 + mpf("1e-20")) - 1) * mpf("1e20")
    return [x * (one + w) for x, w in zip(input, weight, strict=True)]


def rounded_nowhere(input, weight):
    return [mpmath.fadd(+x, x * w, exact=True) for x, w in zip(input, weight, strict=True)]


@mpmath.workdps(50)
def decorated(input, weight):
    return scaled_by_one_more(input, [mpmath.mpf(w) for w in weight])


def squared_root(x, *, root=mpmath.sqrt):
    return root(x * x + 1) ** 2


def in_other_bases(input):
    return [mpmath.log(squared_root(x), 2) * PI / mpmath.pi for x in input]


def in_base_two(input):
    return [mpmath.ln(1 + x * x) / mpmath.log(2) for x in input]

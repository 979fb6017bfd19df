"""Double-double arithmetic on NumPy or torch float64 arrays, each operation with its relative error.

A pair (high, low) is normalized: |low| <= u * |high|, u = 2**-53. Errors are relative to the result
in units of u**2, as long as nothing overflows and no product lies below 2**-960; what underflow
loses is at most 2**-1070 an operation, which the callers add. Only + - * are used, so that eager
torch and NumPy agree; a compiler that contracts a * b - p would break it.

Source: Dekker, Numer. Math. 18 (1971); Joldes, Muller, Popescu, ACM TOMS 44(2) (2017); the
constants of products here are larger than theirs and follow from one line each.
"""

from __future__ import annotations

from typing import Final

from verifier.arithmetic.error_free.numpy_or_torch import Arrays

Doubled = tuple[Arrays, Arrays]

SPLITTER: Final = 2.0**27 + 1.0
"""Veltkamp's constant: halves of 26 bits."""
PRODUCT_ERROR: Final = 8.1
"""Pair times pair: dropped a1*b1 (1), two cross products (1 + 1), their sum (2), its addition (3)."""
SCALED_ERROR: Final = 3.1
"""Pair times float64: the low product (1) and its addition (2)."""
SHIFTED_ERROR: Final = 3.2
"""Pair plus float64: |low + tail| <= 3 u |result|, since the tail is 0 when the sum cancels."""
SUM_ERROR: Final = 4.0
"""Pair plus pair, accurate form: 3 u**2 / (1 - 4 u), theorem 3.1 of Joldes, Muller and Popescu."""
HIGHER_ORDER: Final = 0.01
"""Added, in u**2, to a sum of errors of first order, at most 32 u**2: their products (2**10 u**4), |exact|
taken as |high| (2 u) and 2**5 roundings of the radius itself are all below 32 * 2**6 u = 2**-42."""
HIGHER_ORDER_OF_CHAINS: Final = 0.1
"""The same where further operations follow, with as much again for each of up to ten of them."""
PASSED_ON: Final = 1.001
"""Factor of an absolute error times |high| of what multiplies it: higher orders alone, below 1 + 2**-42."""


def two_sum(a: Arrays, b: Arrays) -> Doubled:
    """Return (fl(a + b), its exact error)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def fast_two_sum(a: Arrays, b: Arrays) -> Doubled:
    """Return (fl(a + b), its exact error) where |a| >= |b| or a = 0."""
    total = a + b
    return total, b - (total - a)


def split(a: Arrays) -> Doubled:
    """Return two halves of at most 26 bits whose sum is a; |a| < 2**995."""
    scaled = SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def product_error(a: Doubled, b: Doubled, product: Arrays) -> Arrays:
    """Return a * b - product exactly, from the halves of a and b."""
    return a[1] * b[1] - (((product - a[0] * b[0]) - a[1] * b[0]) - a[0] * b[1])


def two_product(a: Arrays, b: Arrays, *, narrow: bool = False) -> Doubled:
    """Return (fl(a * b), its exact error); narrow: b has at most 26 bits and needs no splitting."""
    product = a * b
    high, low = split(a)
    if narrow:
        return product, (high * b - product) + low * b
    return product, product_error((high, low), split(b), product)


def multiply(a: Doubled, b: Doubled, halves: Doubled | None = None) -> Doubled:
    """Return a * b within PRODUCT_ERROR u**2; halves: split(a[0]), if it is at hand."""
    product = a[0] * b[0]
    error = product_error(halves or split(a[0]), split(b[0]), product)
    return fast_two_sum(product, error + (a[0] * b[1] + a[1] * b[0]))


def scale(a: Doubled, b: Arrays, *, narrow: bool = False, halves: Doubled | None = None) -> Doubled:
    """Return a * b for a float64 b within SCALED_ERROR u**2; narrow: b has at most 26 bits."""
    product = a[0] * b
    high, low = halves or split(a[0])
    error = (high * b - product) + low * b if narrow else product_error((high, low), split(b), product)
    return fast_two_sum(product, error + a[1] * b)


def shift(a: Doubled, b: Arrays) -> Doubled:
    """Return a + b for a float64 b within SHIFTED_ERROR u**2."""
    total, tail = two_sum(a[0], b)
    return fast_two_sum(total, a[1] + tail)


def add(a: Doubled, b: Doubled) -> Doubled:
    """Return a + b within SUM_ERROR u**2, also when it cancels."""
    high, high_tail = two_sum(a[0], b[0])
    low, low_tail = two_sum(a[1], b[1])
    high, middle = fast_two_sum(high, high_tail + low)
    return fast_two_sum(high, low_tail + middle)


def negative(a: Doubled) -> Doubled:
    """Return -a."""
    return -a[0], -a[1]

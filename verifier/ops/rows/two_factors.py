"""Splits extents into factors, so that one (rows, columns) is laid out in several shapes."""

from __future__ import annotations

PRIMES = (2, 3, 5, 7, 11, 13)
"""Factors that are tried; an extent that none of them divides stays whole."""


def two_factors(extent: int) -> tuple[int, int]:
    """Return two factors, the first the smallest prime factor; (1, extent) if there is none."""
    if extent < 2:
        return (1, extent)
    first = next((p for p in PRIMES if extent % p == 0), 1)
    return (first, extent // first)


def three_factors(extent: int) -> tuple[int, int, int]:
    """Return three factors, all greater than 1 if there are such; else (1, first, second)."""
    first, rest = two_factors(extent)
    second, third = two_factors(rest)
    return (first, second, third) if third > 1 else (1, first, rest)


def four_factors(extent: int) -> tuple[int, int, int, int] | None:
    """Return four factors, all greater than 1, the largest first; None if there are no such.

    The first two are not both 2, whose product is their sum.
    """
    first, second, rest = three_factors(extent)
    third, fourth = two_factors(rest)
    found = (max(third, fourth), min(third, fourth), second, first)
    return found if min(found) > 1 and found[0] > 2 else None

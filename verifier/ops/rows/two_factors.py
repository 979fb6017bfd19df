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

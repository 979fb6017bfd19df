"""Pairs of which a device told the quotient: six ranges, in chunks that are drawn again from their number."""

from __future__ import annotations

import hashlib

import numpy as np

CHUNK, CHUNKS = 1 << 18, 64
"""Pairs of a chunk, and chunks of a range: 100,663,296 pairs of all six."""
EXPONENTS = {
    "near one": ((124, 131), (124, 131)),
    "any dividend, any divisor": ((0, 255), (0, 255)),
    "divisors that are subnormal": ((0, 255), (0, 1)),
    "divisors beyond 2^126": ((0, 255), (253, 255)),
    "quotients near underflow": ((0, 64), (126, 190)),
}
"""Exponents with their bias, from the first to before the second, of dividends and of divisors."""
COUNTS = "sums by counts"
"""Dividends of any size, divided by whole numbers up to 2^17, as a mean is."""
RANGES = (*EXPONENTS, COUNTS)


def pairs(place: str, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a chunk of a range: dividends and divisors, float32, of both signs."""
    raw = np.random.PCG64([2026, RANGES.index(place), chunk]).random_raw(2 * CHUNK)
    first, second = (raw[:CHUNK], raw[CHUNK:])
    if place == COUNTS:
        whole = (second & np.uint64((1 << 17) - 1)) + np.uint64(1)
        return _floats(first, (64, 190)), whole.astype(np.float32)
    dividends, divisors = EXPONENTS[place]
    return _floats(first, dividends), _floats(second, divisors)


def _floats(raw: np.ndarray, exponents: tuple[int, int]) -> np.ndarray:
    """Make floats of raw bits: sign and fraction from the low ones, the exponent from the high ones."""
    low, high = exponents
    exponent = (raw >> np.uint64(32)) % np.uint64(high - low) + np.uint64(low)
    sign_and_fraction = raw & np.uint64(0x807FFFFF)
    return (sign_and_fraction | exponent << np.uint64(23)).astype(np.uint32).view(np.float32)


def digest(quotients: np.ndarray) -> str:
    """Condense the bits of quotients; every NaN is the same."""
    bits = np.where(np.isnan(quotients), np.uint32(0x7FFFFFFF), quotients.view(np.uint32))
    return hashlib.sha256(bits.astype("<u4").tobytes()).hexdigest()[:16]

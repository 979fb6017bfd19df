"""Random numbers for value recipes: the same bits on every platform and NumPy version."""

import functools
import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from strategies.formats import Format, Reals

Words: TypeAlias = npt.NDArray[np.uint64]
Integers: TypeAlias = npt.NDArray[np.int64]

# math.log(2) goes through libm; a literal does not.
LOG_2 = 0.6931471805599453

_KEPT = 1 << 16
"""Most numbers of a draw that is kept."""
_BLOCK = 2**13
"""Elements drawn at a time: 7 words of 8 bytes each, half a megabyte, stay in the processor's cache."""

_LEAST_CONSTANT = 100
"""Hypothesis takes no smaller number from a module (hypothesis.internal.constants_ast)."""
_DIGIT = 64


def power_of_ten(exponent: int) -> float:
    """Return 10^exponent, correctly rounded: libm's pow is not, everywhere."""
    return float(f"1e{exponent}")


def exp2(values: Reals) -> Reals:
    """Return 2^values from correctly rounded operations alone, thus with the same bits everywhere.

    The Taylor series of 2^f on |f| <= 1/2, cut after the 14th power: its rest is below 2^-60 of the value.
    """
    whole = np.rint(values)
    step = (values - whole) * LOG_2
    series = np.ones_like(step)
    for k in range(14, 0, -1):
        series = series * step / k + 1
    return np.ldexp(series, whole.astype(np.int32))


@st.composite
def numbers(draw: st.DrawFn, greatest: int) -> int:
    """Generate integers from 0 to `greatest`, the same ones for a seed in every process.

    Hypothesis mixes into a range the constants of 100 and more that it reads in the modules that happen to be
    loaded, which differ from process to process: here no range has room for one.
    """
    if greatest < _LEAST_CONSTANT:
        return draw(st.integers(0, greatest))
    high = draw(numbers(greatest // _DIGIT))
    return _DIGIT * high + draw(st.integers(0, min(_DIGIT - 1, greatest - _DIGIT * high)))


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a hazard is built from: the extents, the format, a strength and seeded random fields.

    strength: 0, 1, 2, ...: how hard the hazard strikes; each hazard says what it makes of it.
    distinct: how many distinct numbers stand in for the normal distribution; None for all.

    Each field has its own stream in row-major order, so that a row does not depend on the number of rows.
    Only NumPy's raw generator is used: its stream is frozen, those of the distributions are not.
    """

    rows: int
    columns: int
    format: Format
    strength: int = 0
    seed: int = 0
    distinct: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    def _words(self, stream: int, shape: tuple[int, int]) -> Words:
        words = _generator(self.seed, stream).random_raw(math.prod(shape))
        return np.asarray(words, np.uint64).reshape(shape)

    def integers(self, low: int, high: int, *, stream: int = 0) -> Integers:
        """Draw (rows, columns) integers from low to high, both included."""
        return _in_range(self._words(2 * stream, self.shape), low, high)

    def row_integers(self, low: int, high: int, *, stream: int = 0) -> Integers:
        """Draw (rows, 1) integers from low to high, both included."""
        return _in_range(self._words(2 * stream + 1, (self.rows, 1)), low, high)

    def signs(self, *, stream: int = 1) -> Reals:
        """Draw (rows, columns) numbers that are +1 or -1."""
        return 1.0 - 2.0 * self.integers(0, 1, stream=stream).astype(np.float64)

    def significands(self, *, stream: int = 2) -> Reals:
        """Draw (rows, columns) numbers in [1, 2) with random bits; only 1 and 1.5 when few are distinct."""
        bits = 1 if self.distinct is not None else self.format.precision - 1
        steps = self.integers(0, 2**bits - 1, stream=stream).astype(np.float64)
        return 1.0 + steps * math.ldexp(1.0, -bits)

    def normal(self, *, stream: int = 3) -> Reals:
        """Draw (rows, columns) numbers of mean 0 and variance 1, near enough to N(0, 1).

        With distinct = d, they are d equally spaced numbers from -1 to 1 instead.
        """
        if self.distinct is not None:
            steps = max(self.distinct - 1, 1)
            return (2.0 * self.integers(0, self.distinct - 1, stream=stream) - steps) / steps
        count = self.rows * self.columns
        if count > _KEPT:
            return _normal(self.seed, 2 * stream, count).reshape(self.shape)
        return _kept_normal(self.seed, 2 * stream, count).reshape(self.shape).copy()

    @functools.cached_property
    def column_index(self) -> Integers:
        """The column of each element, (1, columns)."""
        return np.arange(self.columns, dtype=np.int64)[np.newaxis, :]


def _in_range(words: Words, low: int, high: int) -> Integers:
    # The remainder favours small values by at most (high - low) / 2^32: nothing here asks for more.
    top = words >> np.uint64(11)
    span = high - low + 1
    return (top % np.uint64(span)).astype(np.int64) + low


def _generator(seed: int, stream: int) -> np.random.PCG64:
    return np.random.PCG64(np.random.SeedSequence((seed, stream)))


def _normal(seed: int, stream: int, count: int) -> Reals:
    """Sum twelve uniform numbers less six (Irwin-Hall): variance 1 and tails up to 6, with no logarithm."""
    generator, result = _generator(seed, stream), np.empty(count)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        words = np.asarray(generator.random_raw(7 * size), np.uint64).reshape(size, 7)
        coarse = np.full(size, -6 * (2**32 - 1), np.int64)
        for half in words.view(np.uint32)[:, :12].T:  # NumPy is slow at sums of few numbers each
            coarse += half
        # the seventh word fills the bits below 2^-32, so that float64 significands are full
        fine = (words[:, 6] >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
        result[start : start + size] = (coarse + fine) * 2.0**-32
    return result


@functools.lru_cache(maxsize=64)
def _kept_normal(seed: int, stream: int, count: int) -> Reals:
    """Return `_normal`, not to be written to: many cases are made of the same draws."""
    return _normal(seed, stream, count)

"""What an op makes of NaN and infinities in a row, as IEEE arithmetic on its definition gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.records.case import Scalars

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

Expectation = tuple[str, Mask, Callable[[Array], Mask]]
"""What is expected in words, of which elements, and the elements of an output that meet it."""

Rule = Callable[[Scalars, Array], Iterator[Expectation]]
"""A function of a case's scalars and its input in canonical rows, (rows, columns)."""


def elementwise(_scalars: Scalars, x: Array) -> Iterator[Expectation]:
    """NaN gives NaN: true of every op."""
    yield "NaN gives NaN", np.isnan(x), np.isnan


def centred(scalars: Scalars, x: Array) -> Iterator[Expectation]:
    """Take deviations from a mean that is NaN or infinite: they all are."""
    if not scalars.get("training", True):
        yield from elementwise(scalars, x)
        return
    held = _rows_of(np.isnan(x))
    yield "a row that holds NaN is NaN throughout", held, np.isnan
    yield "a row that holds an infinity has no finite output", _rows_of(np.isinf(x)) & ~held, _not_finite


def root_mean_square(_scalars: Scalars, x: Array) -> Iterator[Expectation]:
    """Divide by an infinite root mean square: finite elements vanish, infinite ones are inf / inf."""
    held = _rows_of(np.isnan(x))
    infinite = _rows_of(np.isinf(x)) & ~held
    yield "a row that holds NaN is NaN throughout", held, np.isnan
    yield "an infinity gives NaN", infinite & np.isinf(x), np.isnan
    yield "a number in a row with an infinity gives 0 (or NaN)", infinite & ~np.isinf(x), _zero_or_nan


def exponentials(_scalars: Scalars, x: Array) -> Iterator[Expectation]:
    """Leave no distribution of NaN, inf or -inf alone; -inf among numbers is a probability of 0."""
    yield "a row that holds NaN is NaN throughout", _rows_of(np.isnan(x)), np.isnan
    yield "a row that holds +inf is NaN throughout", _rows_of(np.isposinf(x)), np.isnan
    nothing = np.broadcast_to(np.isneginf(x).all(axis=1, keepdims=True), x.shape)
    yield "a row of -inf alone is NaN throughout", np.asarray(nothing), np.isnan


def _not_finite(values: Array) -> Mask:
    return np.asarray(~np.isfinite(values))


def _zero_or_nan(values: Array) -> Mask:
    return np.asarray((values == 0) | np.isnan(values))


def _rows_of(elements: Mask) -> Mask:
    """Return all elements of the rows in which some element is marked."""
    return np.asarray(np.broadcast_to(elements.any(axis=1, keepdims=True), elements.shape))

"""Large arrays are taken by blocks: the parts cover them, and bounds have the bits of those of the whole."""

import operator
from itertools import product

import numpy as np
import pytest

from verifier.arithmetic import blocks
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import pairwise, sequential
from verifier.bounds.affine import AffineNumbers, bound_of

SHAPES = [(1, 7), (7, 1), (2, 9), (3, 3), (5, 40), (40, 5), (1, 200), (200, 1), (13, 17)]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "MOST", 8)


def numbers_of(rows, columns, judged):
    return AffineNumbers(
        arithmetic=ieee("float32"),
        rows=rows,
        columns=columns,
        row_tree=pairwise(),
        column_tree=sequential(),
        divide_by_n="division",
        contraction="none",
        dtypes={},
        entries=columns,
        judged=judged,
    )


def formula(rows, columns, *, largest):
    """Return values of a formula with row values, vectors and symbols, of which some overflow or vanish."""
    random = np.random.default_rng(rows * 1000 + columns)
    numbers = numbers_of(rows, columns, random.random((rows, 1)) < 0.5)
    x = numbers.read(random.standard_normal((rows, columns)) * largest)
    weight = numbers.read(random.integers(-2, 3, (1, columns)).astype(np.float64))
    row = numbers.with_rest(numbers.read(random.standard_normal((rows, 1))), np.full((rows, 1), 1e-6))
    mean = numbers.share(row, "mean")
    with np.errstate(all="ignore"):
        hat = (x - mean) * mean
        yield hat
        yield hat * weight + weight
        yield numbers.product(hat, x)
        yield hat / weight
        yield (hat * hat) * numbers.constant(0.1) - x / mean


@pytest.mark.parametrize("shape", SHAPES)
def test_the_blocks_of_an_array_cover_it_once_and_none_is_thin(shape, small_blocks):
    seen = np.zeros(shape, dtype=np.int64)
    for block in blocks.blocks(shape):
        part = blocks.cut(seen, block)
        part += 1
        assert all(size >= min(extent, 2) for size, extent in zip(part.shape, shape, strict=True))
        assert part.size <= 4 * blocks.MOST
    assert (seen == 1).all()


@pytest.mark.parametrize(("shape", "largest"), list(product(SHAPES, [1.0, 3e38])))
def test_a_bound_by_blocks_has_the_bits_of_that_of_the_whole(shape, largest, monkeypatch):
    whole = list(formula(*shape, largest=largest))
    monkeypatch.setattr(blocks, "MOST", 8)
    taken = []
    monkeypatch.setattr(AffineNumbers, "within", counted(AffineNumbers.within, taken))
    for expected, found in zip(whole, formula(*shape, largest=largest), strict=True):
        assert expected.symbols.keys() == found.symbols.keys()
        for part in (operator.attrgetter("centre"), operator.attrgetter("slack"), bound_of):
            np.testing.assert_array_equal(part(expected), part(found))
        assert expected.reasons == found.reasons
        assert expected.rest.shape == found.rest.shape
    assert bool(taken) == (shape[0] * shape[1] > 16)


def counted(original, taken):
    def within(*given):
        taken.append(given)
        return original(*given)

    return within

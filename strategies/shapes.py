"""Strategies for extents and shapes, aimed at the sizes where kernels change their path."""

from functools import lru_cache
from typing import TypeAlias

from hypothesis import strategies as st

from strategies.draws import numbers

Shape: TypeAlias = tuple[int, ...]

# Block sizes of norm kernels: a warp, common thread counts, and the tiles of one-pass and looped kernels.
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# Hidden sizes that no block divides (769 is BERT's 768 + 1), and primes, which nothing divides.
AWKWARD = (769, 1000, 1151)
PRIMES = (5, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191)
SMALL = (0, 1, 2, 3)


@lru_cache(maxsize=4096)
def hazardous_extents(*, min_extent: int = 0, max_extent: int = 8193) -> tuple[int, ...]:
    """List, in increasing order, the extents at which kernels tend to break.

    They are 0 to 3, powers of two and block sizes with both neighbours, sizes that no block divides, primes.
    """
    powers = [2**k for k in range(2, max(max_extent, 1).bit_length() + 1)]
    neighbours = {n + d for n in (*powers, *BLOCK_SIZES) for d in (-1, 0, 1)}
    every = neighbours | {*SMALL, *AWKWARD, *PRIMES, min_extent, max_extent}
    return tuple(sorted(n for n in every if min_extent <= n <= max_extent))


def _require_range(name: str, low: int, high: int) -> None:
    if low < 0:
        raise ValueError(f"min_{name} is {low}, and an extent is never negative")
    if high < low:
        raise ValueError(f"max_{name} is {high}, which is less than min_{name} = {low}")


_BETWEEN = st.sampled_from((False, False, False, True))


@st.composite
def _extents(draw: st.DrawFn, low: int, high: int) -> int:
    hazardous = hazardous_extents(min_extent=low, max_extent=high)
    index = draw(st.integers(0, len(hazardous) - 1))
    below = hazardous[index]
    gap = (hazardous[index + 1] if index + 1 < len(hazardous) else below + 1) - below
    # One extent in four lies anywhere between two hazardous ones: no list is complete. The draw is made
    # even where there is no gap, since the shrinker loses its way when the number of draws varies.
    if draw(_BETWEEN):
        below += draw(numbers(gap - 1))
    return below


def extents(*, min_extent: int = 0, max_extent: int = 8193) -> st.SearchStrategy[int]:
    """Generate extents of one axis, mostly hazardous ones; shrinks towards min_extent.

    Raises: ValueError for an empty or a negative range.
    """
    _require_range("extent", min_extent, max_extent)
    return _extents(min_extent, max_extent)


@st.composite
def _row_column_shapes(
    draw: st.DrawFn, max_elements: int, rows: tuple[int, int], columns: tuple[int, int]
) -> tuple[int, int]:
    room = max_elements // max(rows[0], 1)
    width = draw(_extents(columns[0], min(columns[1], room)))
    height = draw(_extents(rows[0], min(rows[1], max_elements // max(width, 1))))
    return height, width


def row_column_shapes(
    *,
    max_elements: int,
    min_rows: int = 0,
    max_rows: int = 8193,
    min_columns: int = 0,
    max_columns: int = 8193,
) -> st.SearchStrategy[tuple[int, int]]:
    """Generate (rows, columns) of at most max_elements elements; shrinks towards the smallest.

    Raises: ValueError if no shape of that size exists.
    """
    _require_range("rows", min_rows, max_rows)
    _require_range("columns", min_columns, max_columns)
    if max_elements < max(min_rows, 1) * max(min_columns, 1):
        raise ValueError(f"no shape of at least {min_rows} x {min_columns} has <= {max_elements} elements")
    return _row_column_shapes(max_elements, (min_rows, max_rows), (min_columns, max_columns))


@st.composite
def _leading_shapes(
    draw: st.DrawFn, max_elements: int, ranks: tuple[int, int], extent: tuple[int, int]
) -> Shape:
    rank = draw(st.integers(*ranks))
    room = max_elements
    shape: list[int] = []
    for axis in range(rank):
        # the axes still to come need their share of the room
        reserved = max(extent[0], 1) ** (rank - axis - 1)
        shape.append(draw(_extents(extent[0], min(extent[1], room // reserved))))
        room //= max(shape[-1], 1)
    return tuple(shape)


def leading_shapes(
    *,
    max_elements: int = 64,
    min_rank: int = 0,
    max_rank: int = 3,
    min_extent: int = 0,
    max_extent: int = 8193,
) -> st.SearchStrategy[Shape]:
    """Generate shapes of all axes before the last, such as (2, 3); shrinks towards () or few small axes.

    Raises: ValueError if no such shape exists.
    """
    _require_range("rank", min_rank, max_rank)
    _require_range("extent", min_extent, max_extent)
    if max(min_extent, 1) ** max_rank > max_elements:
        raise ValueError(f"{max_rank} axes of at least {min_extent} exceed {max_elements} elements")
    return _leading_shapes(max_elements, (min_rank, max_rank), (min_extent, max_extent))


@st.composite
def _shapes(
    draw: st.DrawFn, max_elements: int, ranks: tuple[int, int], columns: tuple[int, int], low: int
) -> Shape:
    room = max_elements // max(low, 1) ** (ranks[1] - 1)
    width = draw(_extents(columns[0], min(columns[1], room)))
    leading = draw(_leading_shapes(max_elements // max(width, 1), (ranks[0] - 1, ranks[1] - 1), (low, 8193)))
    return (*leading, width)


def shapes(
    *,
    max_elements: int,
    min_rank: int = 1,
    max_rank: int = 4,
    min_extent: int = 0,
    min_columns: int = 0,
    max_columns: int = 8193,
) -> st.SearchStrategy[Shape]:
    """Generate whole shapes such as (2, 3, N); shrinks towards few axes and small extents.

    min_extent: the least extent of the axes before the last; min_columns that of the last.
    Raises: ValueError if no such shape exists.
    """
    _require_range("rank", min_rank, max_rank)
    _require_range("columns", min_columns, max_columns)
    if min_rank < 1:
        raise ValueError(f"min_rank is {min_rank}, and a norm needs at least one axis")
    if min_extent < 0:
        raise ValueError(f"min_extent is {min_extent}, and an extent is never negative")
    if max(min_extent, 1) ** (max_rank - 1) * max(min_columns, 1) > max_elements:
        raise ValueError(
            f"no shape of rank {max_rank} with these least extents has <= {max_elements} elements"
        )
    return _shapes(max_elements, (min_rank, max_rank), (min_columns, max_columns), min_extent)

"""Extents that are tried first: a ladder of powers of two, and integers of the sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from verifier.cases.priced_shape import CASE_SECONDS, Reaching, price
from verifier.cases.unseen_by_launches import sevenfold
from verifier.ops import rows_and_columns
from verifier.records.planned_launches import ShapePoint

MOST_ROWS, MOST_COLUMNS, MOST_ELEMENTS = 1 << 17, 1 << 20, 1 << 32
"""Extents that are looked at, at most."""
MOST_LITERALS = 24
"""Integers of the sources that are tried as extents, the smallest first."""
MOST_PAIRED = 12
"""Of these, how many are tried as rows beside each other as columns."""
MULTIPLES = (1, 2, 3)
"""Of a literal: what goes by a remainder shows at them."""


def ladder(variants: int) -> Iterator[ShapePoint]:
    """Yield the points that are looked at first.

    Powers of four by powers of two; along a few lines all powers of two and their neighbours, and in the
    other variants a few.
    """
    rows = [1 << k for k in range(MOST_ROWS.bit_length())]
    columns = [1 << k for k in range(MOST_COLUMNS.bit_length())]
    yield from ((r, c, 0) for r in rows[::2] for c in columns)
    yield from ((r, c, 0) for c in (1, 3) for r in _with_neighbours(rows))
    yield from ((r, c, 0) for r in (1, 3) for c in _with_neighbours(columns))
    yield from ((3, c, 0) for c in sevenfold(columns[4:-2]))
    for variant in range(1, variants):
        yield from ((r, c, variant) for r in (1, 48) for c in columns)
        yield from ((r, c, variant) for c in (3, 1024) for r in rows)


def short_ladder(variants: int) -> Iterator[ShapePoint]:
    """Yield powers of two along a line of each axis, and those of sixteen in the other variants."""
    rows = [1 << k for k in range(MOST_ROWS.bit_length())]
    columns = [1 << k for k in range(MOST_COLUMNS.bit_length())]
    yield from ((3, c, 0) for c in columns)
    yield from ((r, 3, 0) for r in rows)
    for variant in range(1, variants):
        yield from ((3, c, variant) for c in columns[::4])
        yield from ((r, 3, variant) for r in rows[::4])


def in_other_bytes(like: Iterable[Reaching]) -> Iterator[ShapePoint]:
    """Yield the extents of shapes, and those of as many bytes in formats of half and twice the size."""
    for shape in like:
        for columns in (shape.columns, shape.columns // 2, shape.columns // 2 + 1):
            yield shape.rows, columns, shape.variant
        for columns in (2 * shape.columns - 1, 2 * shape.columns):
            yield shape.rows, columns, shape.variant


def near_literals(literals: Iterable[int]) -> Iterator[ShapePoint]:
    """Yield extents at integers of the sources, beside them, and at small multiples."""
    chosen = sorted({n for n in literals if _off_the_ladder(n)})[:MOST_LITERALS]
    near = sorted({k * n + d for n in chosen for k in MULTIPLES for d in (-1, 0, 1)})
    yield from ((3, n, 0) for n in near)
    yield from ((n, 3, 0) for n in near)


def pairs_of_literals(
    literals: Iterable[int], at: Callable[[int, int], Iterator[ShapePoint]] = rows_and_columns
) -> Iterator[ShapePoint]:
    """Yield small shapes of which two integers of the sources are extents: both may have to be met."""
    chosen = sorted({n for n in literals if n > 1})[:MOST_PAIRED]
    points = (point for a in chosen for b in chosen for point in at(a, b))
    yield from (point for point in points if price(*point[:2]) <= CASE_SECONDS)


def _off_the_ladder(number: int) -> bool:
    powers = (number - 1, number, number + 1)
    return 3 < number <= MOST_COLUMNS and all(n & (n - 1) for n in powers)


def _with_neighbours(powers: Sequence[int]) -> list[int]:
    return sorted({n + d for n in powers for d in (-1, 0, 1) if n + d > 0})


def possible(point: ShapePoint) -> bool:
    """Return whether a point is within what is looked at at most."""
    rows, columns, _ = point
    return 0 < rows <= MOST_ROWS + 1 and 0 < columns <= MOST_COLUMNS + 1 and rows * columns <= MOST_ELEMENTS

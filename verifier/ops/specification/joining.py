"""Joining: the numbers of a row that a specification took apart become one row again."""

from __future__ import annotations

from verifier.ops.specification.expression import Expression, as_written

_DEPTH = 200
_ELEMENTWISE = frozenset({"add", "sub", "mul", "div", "neg", "sqrt", "exp", "log"})


def joined(numbers: list[Expression]) -> Expression:
    """Return the row of some numbers, one for every column, without its columns if they are all one number.

    Where every number is the same function of what stands in its column, the row is that function of rows.
    """
    return _joined(tuple(numbers), {}, _DEPTH)


def _joined(
    numbers: tuple[Expression, ...], known: dict[tuple[int, ...], Expression], depth: int
) -> Expression:
    place = tuple(id(n) for n in numbers)
    if place in known:
        return known[place]
    first = numbers[0]
    if all(n is first for n in numbers) or (
        first.kind == "constant" and all(n.kind == "constant" and n.label == first.label for n in numbers)
    ):
        return first
    if {n.kind for n in numbers} == {"column"}:
        row = first.operands[0]
        if all(n.operands[0] is row and n.label == column for column, n in enumerate(numbers)):
            return row
    if depth and first.kind in _ELEMENTWISE and len({n.kind for n in numbers}) == 1:
        operands = zip(*(n.operands for n in numbers), strict=True)
        rows = tuple(_joined(each, known, depth - 1) for each in operands)
        known[place] = Expression(first.kind, rows, extents=first.extents)
    else:
        known[place] = as_written(numbers, first.extents)
    return known[place]

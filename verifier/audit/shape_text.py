"""Shapes as a user writes them; importing it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence

USUAL = ((4, 33), (3, 128), (2, 1000))
"""At which an audit certifies: a tail of one, full blocks, a long tail. Other checks run them too, so that
nothing is compiled for a certificate alone."""


def asked_shapes(texts: Sequence[str], *, wanted: bool) -> tuple[tuple[int, int], ...]:
    """Return the shapes at which an audit is to certify: those named, else the usual ones if it is wanted.

    Raises:
        ValueError: as `ranged`.

    """
    named = tuple(dict.fromkeys(one for text in texts for one in ranged(text)))
    return named or (USUAL if wanted else ())


def ranged(text: str) -> list[tuple[int, int]]:
    """Return rows and columns of each shape of `2x4096`, `2x1..1024` or `1..3x4096`.

    Raises:
        ValueError: the text is none such.

    """
    rows, mark, columns = text.partition("x")
    if ".." not in text or not mark:
        return [extents(text)]
    return [(row, column) for row in _range(text, rows) for column in _range(text, columns)]


def _range(text: str, part: str) -> range:
    first, mark, last = part.partition("..")
    last = last if mark else first
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last):
        raise ValueError(f"shape {text!r}: a range is FIRST..LAST, for instance 2x1..1024 or 1..3x4096")
    return range(int(first), int(last) + 1)


def extents(text: str) -> tuple[int, int]:
    """Return rows and columns of `2x4096`.

    Raises:
        ValueError: the text is none such.

    """
    rows, mark, columns = text.partition("x")
    if not mark or not rows.isdecimal() or not columns.isdecimal() or not int(rows) or not int(columns):
        raise ValueError(f"shape {text!r}: a shape is ROWSxCOLUMNS, for instance 2x4096")
    return int(rows), int(columns)

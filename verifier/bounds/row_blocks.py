"""Affine arithmetic on a few rows of a problem at a time, so that what large ones are made of stays small.

Rows of a norm have nothing to do with each other but in sums over them: all else is computed of some rows as
of all of them, bit by bit. A value of a million elements is half a dozen arrays of 8 MB, and a form makes ten
such values; of a few rows they stay in the processor's cache, and memory is touched for bounds alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import NoReturn, cast

from verifier.arithmetic import blocks
from verifier.bounds.affine import AffineNumbers
from verifier.bounds.affine_value import Affine, part_of
from verifier.bounds.entry_sums import EntryTotals, entry_totals

LEAST_ROWS = 2
"""Of a block: an axis of one element is one along which an array does not vary."""


class WholeNeededError(Exception):
    """A form computes with a sum over all rows, of which some are not there yet."""


@dataclass(frozen=True, kw_only=True)
class SumOverRows:
    """Stands for a sum over all rows until the last of them have come: a result that nothing is made of.

    totals: of the rows so far. held, atomic: see `AffineNumbers.parameter_sum`.
    """

    totals: EntryTotals
    held: str | None
    atomic: bool

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse to be read as a value.

        Raises:
            WholeNeededError: always.

        """
        raise WholeNeededError(name)

    def _refuse(self, *_: object) -> NoReturn:
        raise WholeNeededError

    __add__ = __sub__ = __mul__ = __truediv__ = __neg__ = _refuse


@dataclass(kw_only=True)
class NumbersOfRows(AffineNumbers):
    """The numbers of some rows; sums over all rows are results, and begin with those of the rows before.

    before: the sums of the rows before these, in the order in which the form asks for them; none of the first
    rows. sums: the same, with these rows.
    """

    before: Sequence[SumOverRows] = ()
    sums: list[SumOverRows] = field(default_factory=list)

    def parameter_sum(self, value: Affine, held: str | None = None, *, atomic: bool = False) -> Affine:
        """Return what stands for the sum."""
        known = self.before[len(self.sums)].totals if self.before else None
        shape = self.rows, self.columns
        totals = entry_totals(self._full(value), self.parameter, shape, self.entries, known)
        self.sums.append(SumOverRows(totals=totals, held=held, atomic=atomic))
        return cast("Affine", self.sums[-1])

    def totals(self, *_values: Affine, of_rows: bool = False) -> NoReturn:
        """Refuse a sum over all elements, whose tree is one of all rows.

        Raises:
            WholeNeededError: always.

        """
        raise WholeNeededError(f"totals, of_rows={of_rows}")


def comes_in_blocks(numbers: AffineNumbers) -> bool:
    """Return whether a problem is worth taking by rows, and can be: its entries follow the columns.

    A single column NumPy does not add row by row.
    """
    by_columns = isinstance(numbers.parameter, str) and numbers.parameter == "columns" and numbers.columns > 1
    return by_columns and numbers.rows >= 2 * LEAST_ROWS and blocks.is_large((numbers.rows, numbers.columns))


def blocks_of_rows(numbers: AffineNumbers) -> Iterator[slice]:
    """Yield all rows, some at a time; the last block is longer rather than of one row."""
    step, start = max(blocks.MOST // max(numbers.columns, 1), LEAST_ROWS), 0
    while start < numbers.rows:
        end = numbers.rows if numbers.rows - start - step < LEAST_ROWS else start + step
        yield slice(start, end)
        start = end


def of_rows(numbers: AffineNumbers, rows: slice, before: Sequence[SumOverRows]) -> NumbersOfRows:
    """Return the numbers of some rows, with their statistics; before: see `NumbersOfRows`."""
    tile, shape = (rows, slice(None)), (numbers.rows, numbers.columns)
    within = numbers.within(tile, shape)
    own = NumbersOfRows(
        **{one.name: getattr(within, one.name) for one in fields(AffineNumbers)}, before=before
    )
    for name in ("computed", "stepped", "parts", "saved"):
        pair: tuple[Affine, Affine] | None = getattr(numbers, name)
        if pair is not None:
            setattr(own, name, tuple(part_of(one, own, tile) for one in pair))
    return own

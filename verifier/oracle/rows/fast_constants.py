"""The constants of rows as float64 parts, with the slack that element errors need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import Arrays, Kit
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import Ball, ball, parts_of, precision, shifted
from verifier.oracle.enclosure import UNIT, Mask
from verifier.oracle.rows.constants import RowConstants

FLOOR: Final = 2.0**-1000
"""Added to every row constant of a radius: covers what underflow loses (below 2**-1069 an element)."""
PUBLISHED: Final = 2.0**-900
"""Added to every radius that leaves the fast rungs; tolerances are 2**-150 or more."""


LARGEST: Final = 2.0**400
"""Of |mean| and rstd (and of 1 / rstd): with the window of the operands no product of two of them and a
low part loses bits, and what is still lost later is at most 2**-1070 an operation, which FLOOR covers."""

CONSTANT_ERROR: Final = 1.01
"""Relative error of rstd and projection, in u**k for k parts: half an ulp of the last part is u of it (1),
and 0.01 leaves room for the radius of a ball of 256 bits. Rows with worse constants are not usable."""


@dataclass(frozen=True, kw_only=True)
class FastConstants:
    """Parts of mean, rstd, projection and offset (see `RowConstants`), each (rows, 1), largest first.

    *_error bounds what the parts leave out. usable_float64 and usable_double: (rows,), where rstd and
    projection are good to `CONSTANT_ERROR` u and u**2 relative, which the element errors assume.
    """

    mean: tuple[Arrays, Arrays, Arrays]
    mean_error: Arrays
    rstd: tuple[Arrays, Arrays]
    projection: tuple[Arrays, Arrays]
    offset: tuple[Arrays, Arrays]
    offset_error: Arrays
    usable_float64: Mask
    usable_double: Mask

    def slice(self, first: int, last: int) -> FastConstants:
        """Return the constants of the rows [first, last)."""

        def cut(value: Arrays) -> Arrays:
            return (
                tuple(part[first:last] for part in value) if isinstance(value, tuple) else value[first:last]
            )

        return FastConstants(**{field.name: cut(getattr(self, field.name)) for field in fields(self)})


def fast_constants(kit: Kit, constants: RowConstants, shifts: Array | None = None) -> FastConstants:
    """Return the constants of every row in float64 parts; refused rows are not usable.

    shifts: (rows,), k of rows that are scaled by 2**-k: their mean is, and their rstd by 2**k.
    """
    with precision(256):
        mean, rstd = _scaled(constants, shifts)
        columns = np.concatenate(
            [
                parts_of(mean, 3),
                parts_of([ball(0.0) if value is None else value for value in rstd], 2),
                parts_of(constants.projection, 2),
                parts_of(constants.offset, 2),
            ]
        )
    refused = np.array([value is None for value in rstd], dtype=bool)
    finite = (
        ~refused
        & np.isfinite(columns).all(0)
        & _within_range(columns[0])
        & _within_range(columns[4], both=True)
    )
    columns = np.where(finite, columns, 0.0)
    wide = [np.ascontiguousarray(column)[:, None] for column in columns]
    device = [kit.device(column) for column in wide]
    return FastConstants(
        mean=(device[0], device[1], device[2]),
        mean_error=device[3],
        rstd=(device[4], device[5]),
        projection=(device[7], device[8]),
        offset=(device[10], device[11]),
        offset_error=device[12],
        usable_float64=finite & _within(columns[4:7], 1) & _within(columns[7:10], 1),
        usable_double=finite & _within(columns[4:7], 2) & _within(columns[7:10], 2),
    )


def _scaled(constants: RowConstants, shifts: Array | None) -> tuple[Sequence[Ball], Sequence[Ball | None]]:
    if shifts is None:
        return constants.mean, constants.rstd
    mean, rstd = list(constants.mean), list(constants.rstd)
    for i in np.flatnonzero(shifts).tolist():
        mean[i] = shifted(mean[i], -int(shifts[i]))
        rstd[i] = None if (root := rstd[i]) is None else shifted(root, int(shifts[i]))
    return mean, rstd


def _within_range(value: Array, *, both: bool = False) -> Mask:
    size = np.abs(value)
    return np.asarray((size <= LARGEST) & ((size >= 1.0 / LARGEST) | (size == 0) | (not both)))


def _within(value: Array, kept: int) -> Mask:
    """Return where the first `kept` parts are good to `CONSTANT_ERROR` u**kept relative."""
    left_out = np.abs(value[1]) * (kept == 1) + value[2]
    return np.asarray(left_out <= CONSTANT_ERROR * UNIT**kept * np.abs(value[0]))

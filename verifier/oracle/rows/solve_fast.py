"""A row problem by float64 or double-double elements, in blocks that fit the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Final, Literal

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import NUMPY
from verifier.arithmetic.formats import Array
from verifier.arithmetic.lazy_fields import Later
from verifier.oracle.balls import enclose, precision
from verifier.oracle.enclosure import TINY, Enclosure, Mask
from verifier.oracle.rows import elements_double_double, elements_float64
from verifier.oracle.rows.constants import RowConstants
from verifier.oracle.rows.elements_arb import row_elements
from verifier.oracle.rows.elements_float64 import Part
from verifier.oracle.rows.fast_constants import FastConstants, fast_constants
from verifier.oracle.rows.operands import Rows, rows_between, times_power
from verifier.oracle.rows.parameter_sums import Partial, block_sums, join
from verifier.oracle.rows.parameters import Grouping, rows_of

FastRung = Literal["float64", "double_double"]
BLOCKS: Final[dict[FastRung, int]] = {"float64": 2**16, "double_double": 2**14}
"""Elements in a block on the CPU: twenty live arrays of double-double fit a level-2 cache at 2**14; float64
has few, and gains more by not joining blocks (measured: 64 x 1024 in 8.5 ms against 11 ms)."""
DEVICE_BLOCK: Final = 2**24
"""Elements in a block on a GPU: about 3 GB of temporaries."""


def element_enclosures(
    rows: Rows,
    constants: RowConstants,
    group: Grouping,
    rung: FastRung,
    *,
    rescue_bits: int | None,
    every: bool = False,
) -> dict[str, Enclosure]:
    """Return output, normalized and, with grad_output, the gradients, by name.

    Rows that the rung cannot do (exponents outside the window, refused rows) have infinite radius,
    or, with rescue_bits, are done in Arb of that precision; refused rows keep it.
    every: keep normalized of large problems as well; few read it, so that it is else made anew when it is
    read.
    """
    near = rows.scaled
    fast = fast_constants(rows.kit, constants, near.shifts)
    usable = (fast.usable_float64 if rung == "float64" else fast.usable_double) & ~near.unusual
    extent, columns = rows.shape
    step = max(1, (BLOCKS[rung] if rows.kit is NUMPY else DEVICE_BLOCK) // columns)
    blocks = [(first, min(first + step, extent)) for first in range(0, extent, step)]
    found: dict[str, _Column] = {}
    sums: list[tuple[Partial, Partial]] = []
    left_out = {"normalized"} if rows.kit is NUMPY and len(blocks) > 1 and not every else set()
    with np.errstate(all="ignore"):
        for first, last in blocks:
            block = rows_between(near, first, last)
            elements = _elements(block, fast.slice(first, last), rung)
            _restore(block, elements)
            lost = _finish(block, elements, usable[first:last])
            if rescue_bits is not None and lost.any():
                _rescue(rows, constants, elements, first=first, lost=lost, bits=rescue_bits)
            if rows.grad_output is not None:
                sums.append(_block_sums(rows_of(group, first, last), block, elements["normalized"], rung))
            for name in elements.keys() - left_out:
                found.setdefault(name, _Column(rows)).put(first, last, elements[name])
    enclosures = {name: column.enclosure() for name, column in found.items()}
    if left_out:
        again = partial(element_enclosures, rows, constants, group, rung, rescue_bits=rescue_bits, every=True)
        enclosures["normalized"] = _made_when_read(lambda: again()["normalized"])
    if rows.grad_output is not None:
        enclosures["grad_weight"] = join(group, [weight for weight, _ in sums])
        enclosures["grad_bias"] = join(group, [bias for _, bias in sums])
    return enclosures


def _elements(block: Rows, fast: FastConstants, rung: FastRung) -> dict[str, Part]:
    if rung == "float64":
        return elements_float64.elements(block, fast)
    return elements_double_double.elements(block, fast)


def _restore(block: Rows, elements: dict[str, Part]) -> None:
    """Undo the scaling of rows: grad_input has a factor rstd, the other elements have none."""
    if block.shifts is None or not block.shifts.any() or "grad_input" not in elements:
        return
    kit = block.kit
    high, low, radius = elements["grad_input"]
    high = times_power(kit, high, -block.shifts)
    low = None if low is None else times_power(kit, low, -block.shifts)
    radius = times_power(kit, radius, -block.shifts) + TINY
    elements["grad_input"] = (high, low, kit.where(kit.finite(high), radius, np.inf))


def _finish(block: Rows, elements: dict[str, Part], usable: Mask) -> Mask:
    """Give lost elements (unusable rows, overflow) value 0 and infinite radius; return their rows."""
    kit = block.kit
    lost_rows = ~usable
    for name, (high, low, radius) in elements.items():
        known = kit.finite(radius) if low is None else kit.finite(radius) & kit.finite(low)
        if usable.all() and bool(known.all()):
            continue
        known = known & kit.device(usable)[:, None]
        low = None if low is None else kit.where(known, low, 0.0)  # noqa: PLW2901
        elements[name] = (kit.where(known, high, 0.0), low, kit.where(known, radius, np.inf))
        lost_rows = lost_rows | ~kit.host(known.all(1)).astype(bool)
    return lost_rows


def _rescue(
    rows: Rows,
    constants: RowConstants,
    elements: dict[str, Part],
    *,
    first: int,
    lost: Mask,
    bits: int,
) -> None:
    """Replace the elements of lost rows by Arb's, unless the row is refused."""
    kit = rows.kit
    parts = {}
    for name, (high, low, radius) in elements.items():
        tail = np.zeros(high.shape) if low is None else np.array(kit.host(low))
        parts[name] = (np.array(kit.host(high)), tail, np.array(kit.host(radius)))
    with precision(bits):
        for k in np.flatnonzero(lost).tolist():
            if constants.rstd[first + k] is None:
                continue
            row = row_elements(rows, constants, first + k)
            for name, arrays in parts.items():
                found = enclose(getattr(row, name), (rows.shape[1],))
                for array, value in zip(arrays, (found.high, found.low, found.radius), strict=True):
                    array[k] = value
    for name, arrays in parts.items():
        elements[name] = (kit.device(arrays[0]), kit.device(arrays[1]), kit.device(arrays[2]))


def _block_sums(group: Grouping, block: Rows, normalized: Part, rung: FastRung) -> tuple[Partial, Partial]:
    return block_sums(group, block.grad_output, normalized, doubled_precision=rung == "double_double")


class _Column:
    """The elements of all rows, put together of blocks as they come.

    On the CPU each block is copied into its place at once: blocks that wait to be joined would take as much
    memory again, and memory that is touched for the first time takes longer than what is computed in it.
    """

    def __init__(self, rows: Rows) -> None:
        """Begin with no block."""
        self._rows = rows
        self._parts: list[Part] = []
        self._held: list[Array | None] = [None, None, None]

    def put(self, first: int, last: int, part: Part) -> None:
        """Put in the rows [first, last), which come in order."""
        extent = self._rows.shape[0]
        if self._rows.kit is not NUMPY or last - first == extent:
            self._parts.append(part)
            return
        for k, values in enumerate(part):
            held = self._held[k]
            if values is None:
                if held is not None:
                    held[first:last] = part[0] * 0.0
                continue
            if held is None:
                held = self._held[k] = np.empty((extent, *values.shape[1:]))
                high = self._held[0]
                if first and high is not None:  # of earlier blocks, whose values have one part
                    held[:first] = high[:first] * 0.0
            held[first:last] = values

    def enclosure(self) -> Enclosure:
        """Return the blocks as one; what a device holds is copied when it is read."""
        high, low, radius = (partial(_column, self._rows, self._parts, k) for k in range(3))
        if not self._parts:
            values, tail, around = self._held
            assert values is not None
            assert around is not None
            none = np.broadcast_to(0.0, self._rows.shape)
            return Enclosure(high=values, low=none if tail is None else tail, radius=around)
        if self._rows.kit is NUMPY:
            return Enclosure(high=high(), low=low(), radius=radius())
        return Enclosure(high=Later(high), low=Later(low), radius=Later(radius))


def _made_when_read(make: Callable[[], Enclosure]) -> Enclosure:
    """Return an enclosure that is made when a part of it is read, once."""
    made = cache(make)
    return Enclosure(
        high=Later(lambda: made().high), low=Later(lambda: made().low), radius=Later(lambda: made().radius)
    )


def _column(rows: Rows, parts: Sequence[Part], k: int) -> Array:
    if all(part[k] is None for part in parts):
        return np.broadcast_to(0.0, rows.shape)
    columns = [part[0] * 0.0 if part[k] is None else part[k] for part in parts]
    if len(columns) == 1:
        return rows.kit.host(columns[0])
    return np.concatenate([rows.kit.host(column) for column in columns])

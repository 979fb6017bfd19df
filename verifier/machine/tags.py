"""Slots that only say what a value depends on: they outlive any change of bits, whole or in part.

A tag set belongs to a half-word, whatever its bits are and however wide the float is that is read there.
So nothing is stale, and an operation on bits hands on the tags of its operands as any other does.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.slots import NO_SLOT, Slots

if TYPE_CHECKING:
    from verifier.machine.memory import Located
    from verifier.machine.numerics import Array

HELD = np.uint64(1)
"""In the place of a bit pattern: the half-word has tags."""


class TagSlots(Slots):
    """Slots of an arithmetic whose slots are sets as bits, 0 for none."""

    def read(
        self, values: Array, kind: str, slots: Array, tags: Array, site: int = -1, written: bool = False
    ) -> Array:
        """Tags of floats of one half-word; those of wider ones are united where they are read."""
        del values, kind, site, written
        return np.where(tags != NO_SLOT, slots, self.arithmetic.dtype(0))

    def load(
        self, found: list[Located], shape: tuple[int, ...], width: int, count: int
    ) -> list[list[tuple[Array, Array]]]:
        """(tags, mark) of each half-word of each loaded element; a byte has those of its half-word."""
        if width > 1:
            loaded = super().load(found, shape, width, count)
        else:
            loaded = [self._of_byte(found, shape, element) for element in range(count)]
        return [[(np.where(t != NO_SLOT, s, self.arithmetic.dtype(0)), t) for s, t in row] for row in loaded]

    def _of_byte(self, found: list[Located], shape: tuple[int, ...], element: int) -> list[Any]:
        slots, tags = np.zeros(shape, dtype=self.arithmetic.dtype), np.zeros(shape, dtype=np.uint64)
        for located in found:
            store, cells = self.store_of(located.region), (located.offsets + element) >> 1
            chosen = ... if located.selection is None else located.selection
            slots[chosen], tags[chosen] = store.values[cells], store.tags[cells]
        return [(slots, tags)]

    def save(self, found: list[Located], width: int, elements: list[list[tuple[Any, Any]]]) -> None:
        """Write the tags of each half-word; a byte adds its own to those of its neighbour."""
        if width > 1:
            super().save(found, width, elements)
            return
        for located in found:
            store = self.store_of(located.region)
            store.used = True
            for element, ((slots, _),) in enumerate(elements):
                cells = (located.offsets + element) >> 1
                given = located.active(slots) if np.ndim(slots) else slots
                kept = np.where(store.tags[cells] != NO_SLOT, store.values[cells], self.arithmetic.dtype(0))
                store.values[cells], store.tags[cells] = kept | given, HELD

    def atomic(
        self,
        located: Located,
        operation: str,
        kind: str,
        number: int,
        width: int,
        values: Any,
        operands: list[Array],
    ) -> Any:
        """Give an observer that does on tags what an atomic does on values, and the old tags."""
        store = self.store_of(located.region)
        store.used = True
        cells = (located.offsets.reshape(-1) >> 1) + number * (width // 2)
        active = np.broadcast_to(located.active(values), located.offsets.shape).reshape(-1)
        old = (np.zeros(cells.shape, dtype=self.arithmetic.dtype), np.ones(cells.shape, dtype=np.uint64))

        def observe(turn: Any, before: Array, after: Array) -> None:
            place, present = cells[turn], np.zeros(cells[turn].shape, dtype=self.arithmetic.dtype)
            for half in range(width // 2):
                held = store.tags[place + half] != NO_SLOT
                present |= np.where(held, store.values[place + half], present.dtype.type(0))
            old[0][turn] = present
            if operation == "exch":
                result = active[turn]
            elif operation == "cas":
                result = np.where(before != after, active[turn], present)
            else:
                floats = (before, operands[-1][turn])
                given = (present, active[turn])
                result = self.apply(operation, kind, after, (kind, kind), floats, given)
            for half in range(width // 2):
                store.values[place + half], store.tags[place + half] = result, HELD

        return observe, old

    # Tensors.

    def set(self, tensor: Any, values: Array) -> None:
        """Give every element of a tensor its tags. values: an array of the tensor's shape."""
        store, index, width = self.cells(tensor)
        store.used = True
        for half in range(width // 2):
            store.values[index + half], store.tags[index + half] = values, HELD

    def get(self, tensor: Any) -> Array:
        """Tags of a tensor's elements."""
        store, index, width = self.cells(tensor)
        found = np.zeros(index.shape, dtype=self.arithmetic.dtype)
        for half in range(width // 2):
            held = store.tags[index + half] != NO_SLOT
            found |= np.where(held, store.values[index + half], found.dtype.type(0))
        return found

    def tells(self, tensor: Any) -> bool:
        """Whether anything in a tensor's storage depends on anything, whatever the type of its elements."""
        store = self.stores.known(tensor)
        return store is not None and bool(store.values[store.tags != NO_SLOT].any())

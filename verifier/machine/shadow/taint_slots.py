"""Shadows that only say what a value depends on: they outlive any change of bits, whole or in part.

A set of sources belongs to a half-word, whatever its bits are and however wide the float is that is read
there. So no shadow is stale, and an operation on bits hands on the sources of its operands as any other does.
"""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.slots import NO_SHADOW, Slots

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber
    from verifier.machine.execute.atomics import Atomic, Observer
    from verifier.machine.execute.memory import Located

HELD = np.uint64(1)
"""A tag in the place of a bit pattern: the half-word has sources, whatever its bits are."""


class TaintSlots(Slots):
    """Slots of an arithmetic whose shadows are sets of sources, as bits; 0 is the empty set."""

    def read(
        self, values: Array, kind: str, shadows: Array, tags: Array, site: int = -1, written: bool = False
    ) -> Array:
        """Give the sources of floats of one half-word; those of wider ones are united where they are read."""
        return np.where(tags != NO_SHADOW, shadows, self.arithmetic.dtype.type(0))

    def load(
        self, found: list[Located], shape: tuple[int, ...], width: int, count: int
    ) -> list[list[tuple[Array, Array]]]:
        """Give (sources, tag) of each half-word of each loaded element; a byte has those of its half-word."""
        if width > 1:
            loaded = super().load(found, shape, width, count)
        else:
            loaded = [self._of_byte(found, shape, element) for element in range(count)]
        return [
            [(np.where(t != NO_SHADOW, s, self.arithmetic.dtype.type(0)), t) for s, t in row]
            for row in loaded
        ]

    def _of_byte(
        self, found: list[Located], shape: tuple[int, ...], element: int
    ) -> list[tuple[Array, Array]]:
        shadows, tags = np.zeros(shape, dtype=self.arithmetic.dtype), np.zeros(shape, dtype=np.uint64)
        for located in found:
            store, slots = self.store_of(located.region), (located.offsets + element) >> 1
            chosen = ... if located.selection is None else located.selection
            shadows[chosen], tags[chosen] = store.shadows[slots], store.tags[slots]
        return [(shadows, tags)]

    def save(
        self, found: list[Located], width: int, elements: list[list[tuple[ArrayOrNumber, ArrayOrNumber]]]
    ) -> None:
        """Write the sources of each half-word; a byte adds its own to those of its neighbour."""
        if width > 1:
            super().save(found, width, elements)
            return
        for located in found:
            store = self.store_of(located.region)
            store.used = True
            for element, ((shadows, _),) in enumerate(elements):
                slots = (located.offsets + element) >> 1
                given = located.active(shadows) if isinstance(shadows, np.ndarray) else shadows
                kept = np.where(
                    store.tags[slots] != NO_SHADOW, store.shadows[slots], self.arithmetic.dtype.type(0)
                )
                store.shadows[slots], store.tags[slots] = kept | given, HELD

    def atomic(
        self,
        located: Located,
        what: Atomic,
        number: int,
        values: Array | list[Array],
        operands: list[Array],
    ) -> tuple[Observer, tuple[Array, Array]]:
        """Give an observer that does on sources what an atomic does on values, and the old sources."""
        assert not isinstance(values, list), "sources of a packed pair are one"
        operation, kind, width = what.operation, what.kind, what.width
        store = self.store_of(located.region)
        store.used = True
        slots = (located.offsets.reshape(-1) >> 1) + number * (width // 2)
        active = np.broadcast_to(located.active(values), located.offsets.shape).reshape(-1)
        old = (np.zeros(slots.shape, dtype=self.arithmetic.dtype), np.ones(slots.shape, dtype=np.uint64))

        def observe(turn: slice | Array, before: Array, after: Array) -> None:
            place, present = slots[turn], np.zeros(slots[turn].shape, dtype=self.arithmetic.dtype)
            for half in range(width // 2):
                held = store.tags[place + half] != NO_SHADOW
                present |= np.where(held, store.shadows[place + half], present.dtype.type(0))
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
                store.shadows[place + half], store.tags[place + half] = result, HELD

        return observe, old

    # Tensors.

    def set(self, tensor: torch.Tensor, values: Array) -> None:
        """Give every element of a tensor its sources. values: an array of the tensor's shape."""
        store, index, width = self.slots_of(tensor)
        store.used = True
        for half in range(width // 2):
            store.shadows[index + half], store.tags[index + half] = values, HELD

    def get(self, tensor: torch.Tensor) -> Array:
        """Give the sources of a tensor's elements."""
        store, index, width = self.slots_of(tensor)
        found = np.zeros(index.shape, dtype=self.arithmetic.dtype)
        for half in range(width // 2):
            held = store.tags[index + half] != NO_SHADOW
            found |= np.where(held, store.shadows[index + half], found.dtype.type(0))
        return found

    def tells(self, tensor: torch.Tensor) -> bool:
        """Whether anything in a tensor's storage depends on anything, whatever the type of its elements."""
        store = self.stores.known(tensor)
        return store is not None and bool(store.shadows[store.tags != NO_SHADOW].any())

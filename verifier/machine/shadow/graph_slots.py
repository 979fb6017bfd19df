"""Where the nodes of floats lie: codes of half-words in memory and in tensors, beside those in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.reuse_cache import ReuseCache
from verifier.machine.shadow.graph_registers import RegisterCodes
from verifier.machine.shadow.node_codes import (
    FIXED,
    FORMAT_AT,
    HALF,
    KINDS,
    LITERAL,
    NUMBER,
    PART_AT,
    bits_of,
    coded,
    index_of_bytes,
)
from verifier.machine.shadow.shadow_memory import Store, Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber
    from verifier.machine.execute.atomics import Atomic
    from verifier.machine.execute.memory import Located
    from verifier.machine.shadow.slots import ShadowArithmetic

_NONE = np.zeros(0, dtype=np.int64)

_MARK = np.zeros((), dtype=np.uint64)
"""A mark beside each code that is loaded, where other slots have tags; nothing reads it."""

_WAVES = ReuseCache()
"""Waves that wait for another recording: a session is short, and records few launches of each kernel."""


class _Fresh(Stores):
    """Stores whose vacated memory is unknown again."""

    def vacated(self, size: int) -> Store | None:
        """Give a store of freed memory, without its old codes."""
        store = super().vacated(size)
        if store is not None:
            store.shadows.fill(0)
        return store


class GraphSlots(RegisterCodes):
    """Codes of all floats that a session runs on, wherever they lie.

    `asked`: host operations by which Python learns what data are, and may decide on it.
    `stored_twice`: nodes that one lane stored where another, at the same instruction, stored the other;
    nothing orders the two. `stored_by_copies`: the same in shared memory where threads may be copies of each
    other, whose sums may differ by rounding. `clashes`: names of memory in which something else than nodes
    was stored so.
    """

    def __init__(self, arithmetic: ShadowArithmetic) -> None:
        """Start with no node; everything is unknown."""
        super().__init__(arithmetic)
        self.stores = _Fresh(arithmetic.dtype)
        self.prepared_waves = _WAVES
        self.asked: set[str] = set()
        self.stored_twice: list[tuple[Array, Array]] = []
        self.stored_by_copies: list[tuple[Array, Array]] = []
        self.clashes: set[str] = set()

    # Memory.

    def load(
        self, found: list[Located], shape: tuple[int, ...], width: int, count: int
    ) -> list[list[tuple[Array, Array]]]:
        """Codes of each half-word of each loaded element, each with a mark that nothing reads."""
        halves = max(width // 2, 1)
        codes: Array = np.zeros((count * halves, *shape), dtype=np.int64) if width < 2 or not found else _NONE
        for located in found if width > 1 else ():
            store, base = self.store_of(located.region), located.offsets >> 1
            slots = base + np.arange(count * halves).reshape((-1,) + (1,) * base.ndim)
            taken = store.shadows.take(slots)
            if located.selection is None:
                codes = taken
                continue
            codes = codes if codes.size else np.zeros((count * halves, *shape), dtype=np.int64)
            codes[:, located.selection] = taken
        return [[(codes[n * halves + half], _MARK) for half in range(halves)] for n in range(count)]

    def zeros_beyond(
        self, moved: list[list[tuple[Array, Array]]], inside: Array
    ) -> list[list[tuple[ArrayOrNumber, ArrayOrNumber]]]:
        """Give what a copy moves, of lanes that copy zeros a literal: no input decides which do."""
        return [[(np.where(inside, codes, LITERAL), mark) for codes, mark in row] for row in moved]

    def save(
        self,
        found: list[Located],
        width: int,
        elements: list[list[tuple[ArrayOrNumber, ArrayOrNumber]]],
        bits: Sequence[Array | None] = (),
    ) -> None:
        """Write the code of each half-word; a byte leaves a half-word known only if both are literals.

        bits: what lanes have stored, None where all of them the same.
        """
        for located in found:
            store, base = self.store_of(located.region), located.offsets >> 1
            store.used = True
            by_copies = self.replicated and located.region.keep is None
            twice = self.stored_by_copies if by_copies else self.stored_twice
            for number, pieces in enumerate(elements):
                if number < len(bits):
                    self._compare_literals(located, number, width, [code for code, _ in pieces], bits[number])
                given = [located.active(c) if isinstance(c, np.ndarray) else c for c, _ in pieces]
                if width < 2:
                    slots = (located.offsets + number) >> 1
                    fixed = np.asarray(given[0]) >> FORMAT_AT == FIXED
                    fixed = fixed & (store.shadows[slots] >> FORMAT_AT == FIXED)
                    # Two lanes may write the bytes of one half-word: it is known if each leaves it so.
                    store.shadows[slots[~np.broadcast_to(fixed, slots.shape)]] = 0
                    continue
                for half, code in enumerate(given):
                    place = number * (width // 2) + half
                    slots = base + place if place else base
                    store.shadows[slots] = code
                    if np.ndim(code) and slots.size > 1:
                        self._compare(located, store.shadows[slots], np.asarray(code), twice)

    def _compare_literals(
        self, located: Located, number: int, width: int, codes: list[ArrayOrNumber], bits: Array | None
    ) -> None:
        """Note lanes that stored another literal than the one that lies there: literals have one code."""
        if bits is None or np.size(bits) < 2 or located.offsets.size < 2:
            return
        stored = located.active(bits)
        differs = located.region.view(f"u{width}")[located.offsets // width + number] != stored
        if not differs.any():
            return
        fixed = [np.asarray(located.active(c) if isinstance(c, np.ndarray) else c) for c in codes]
        if any((differs & (code >> FORMAT_AT == FIXED)).any() for code in fixed):
            self.clashes.add(located.region.name)

    def _compare(
        self, located: Located, kept: Array, stored: Array, twice: list[tuple[Array, Array]]
    ) -> None:
        """Note which lanes stored something else than what another lane left there."""
        lost = kept != stored
        if not lost.any():
            return
        kept, stored = np.broadcast_to(kept, lost.shape)[lost], np.broadcast_to(stored, lost.shape)[lost]
        alike = kept >> PART_AT == stored >> PART_AT
        nodes = alike & (kept >> FORMAT_AT != 0) & (kept >> FORMAT_AT != FIXED)
        if not nodes.all():
            self.clashes.add(located.region.name)
        twice.append((stored[nodes] & NUMBER, kept[nodes] & NUMBER))

    def atomic(
        self, located: Located, what: Atomic, number: int, values: object, operands: list[Array]
    ) -> tuple[Callable[[slice | Array, Array, Array], None], tuple[Array, Array]]:
        """Forget what an atomic writes, which depends on an order; what it returns is unknown."""
        store = self.store_of(located.region)
        store.used = True
        slots = (located.offsets.reshape(-1) >> 1) + number * (what.width // 2)
        old = (np.zeros(slots.shape, dtype=np.int64), np.zeros(slots.shape, dtype=np.uint64))

        def observe(turn: slice | Array, before: Array, after: Array) -> None:
            for half in range(max(what.width // 2, 1)):
                store.shadows[slots[turn] + half] = 0

        return observe, old

    # Tensors.

    def set(self, tensor: torch.Tensor, values: ArrayOrNumber) -> None:
        """Give every element of a tensor its code: of a whole float, or `LITERAL`."""
        store, index, width = self.slots_of(tensor)
        store.used = True
        if width < 2:
            store.shadows[np.unique(index_of_bytes(tensor))] = 0
            return
        for half in range(width // 2):
            store.shadows[index + half] = np.asarray(values) + half * HALF

    def get(self, tensor: torch.Tensor) -> Array:
        """Codes of a tensor's elements, as whole floats."""
        store, index, width = self.slots_of(tensor)
        kind = KINDS[str(tensor.dtype)]
        halves = tuple(store.shadows[index + half] for half in range(width // 2))
        return halves[0] if len(halves) == 1 else self.joined(halves, bits_of(tensor), kind, -1)

    def outputs(self, tensor: torch.Tensor) -> Array:
        """Nodes of a tensor's elements."""
        kind = KINDS[str(tensor.dtype)]
        view = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}[kind]
        return np.broadcast_to(
            self.numbers(self.get(tensor), bits_of(tensor).view(view), kind, -1), tuple(tensor.shape)
        )

    def register(self, name: str, tensor: torch.Tensor) -> None:
        """Make the elements of a tensor the leaves of an input, numbered in row-major order."""
        kind = KINDS[str(tensor.dtype)]
        shape = tuple(tensor.shape)
        order = np.arange(tensor.numel(), dtype=np.uint64).reshape(shape)
        self.set(tensor, coded(self.nodes.add(f"input:{name}", shape, value=order), kind))

    def tells(self, tensor: torch.Tensor) -> bool:
        """Whether anything in a tensor's storage depends on data."""
        store = self.stores.known(tensor)
        return store is not None and bool(((store.shadows >> FORMAT_AT) % FIXED).any())

    def fixed(self, tensor: torch.Tensor) -> bool:
        """Whether all elements of a tensor are the same for all inputs."""
        if self.stores.known(tensor) is None or tensor.element_size() < 2:
            return False
        store, index, width = self.slots_of(tensor)
        return all((store.shadows[index + n] >> FORMAT_AT == FIXED).all() for n in range(width // 2))

    def clear(self, tensor: torch.Tensor) -> None:
        """Forget what a tensor's elements are."""
        store = self.stores.known(tensor)
        if store is None:
            return
        _, index, width = self.slots_of(tensor)
        if width < 2:
            store.shadows[np.unique(index_of_bytes(tensor))] = 0
        for half in range(width // 2):
            store.shadows[index + half] = 0

"""Slots for the shadows of memory, with their tags: they live as long as what they describe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array


@dataclass(eq=False, kw_only=True)
class Store:
    """The slots of a stretch of memory, one for each half-word; `used` once some may be written.

    shadows, tags: what lies in each slot, and to which bits it belongs.

    owners: of a tensor's memory, what says of each storage over it that shadows have met whether it is freed;
    the storages themselves where others may hold the memory (numpy does), so that torch cannot tell.
    """

    shadows: Array
    tags: Array
    used: bool = False
    owners: dict[int, object] = field(default_factory=dict)

    def belongs_to(self, storage: torch.UntypedStorage) -> None:
        """Live at least as long as a storage."""
        from torch.multiprocessing.reductions import StorageWeakRef

        if (owner := self.owners.get(storage._cdata)) is None or _is_freed(owner):
            watch: Any = StorageWeakRef
            self.owners[storage._cdata] = watch(storage) if storage.resizable() else storage

    def is_vacant(self) -> bool:
        """Whether every storage that it describes is freed."""
        return all(_is_freed(owner) for owner in self.owners.values())


class Stores:
    """The stores of all tensors of a session, by the address of their storage.

    `vacant`: stores of freed memory by the number of their slots, to be used again, which is several times
    faster than to have new ones. `since_sweep`: stores wanted since they were looked for.
    """

    def __init__(self, dtype: np.dtype[np.generic]) -> None:
        """Begin with none; dtype: numpy type of a shadow."""
        self.dtype = dtype
        self.by_address: dict[int, Store] = {}
        self.vacant: dict[int, list[Store]] = {}
        self.since_sweep = 0

    def make(self, size: int) -> Store:
        """Give a store without shadows for so many bytes of memory."""
        slots = _slot_count(size)
        return Store(shadows=np.zeros(slots, dtype=self.dtype), tags=np.zeros(slots, dtype=np.uint64))

    def known(self, tensor: torch.Tensor) -> Store | None:
        """Store of a tensor's storage, None if there is none; a sparse tensor has no storage."""
        import torch

        if not torch._C._has_storage(tensor):
            return None
        storage = tensor.untyped_storage()
        store = self.by_address.get(storage.data_ptr()) if storage.nbytes() else None
        if store is None or store.is_vacant() or store.tags.size != _slot_count(storage.nbytes()):
            return None
        store.belongs_to(storage)
        return store

    def of(self, tensor: torch.Tensor) -> Store:
        """Store of a tensor's storage, an empty one where there is none yet."""
        store = self.known(tensor)
        if store is None:
            storage = tensor.untyped_storage()
            store = self.vacated(storage.nbytes()) or self.make(storage.nbytes())
            store.belongs_to(storage)
            if storage.nbytes():  # empty ones have no address of their own
                self.by_address[storage.data_ptr()] = store
        return store

    def vacated(self, size: int) -> Store | None:
        """Give a store of freed memory that fits, emptied, or None; now and then look for such stores."""
        self.since_sweep += 1
        if 4 * self.since_sweep > len(self.by_address):
            self.sweep()
        fitting = self.vacant.get(_slot_count(size))
        if not fitting:
            return None
        store = fitting.pop()
        store.tags.fill(0)
        store.used = False
        store.owners.clear()
        return store

    def sweep(self) -> None:
        """Drop what describes freed memory; what the last sweep found and nobody wanted is given up."""
        self.since_sweep = 0
        self.vacant = {}
        for address, store in list(self.by_address.items()):
            if store.is_vacant():
                del self.by_address[address]
                self.vacant.setdefault(store.tags.size, []).append(store)


def _slot_count(size: int) -> int:
    """Count the slots of so many bytes: an access of 8 bytes may begin in the last one."""
    return size // 2 + 4


def _is_freed(owner: object) -> bool:
    expired = getattr(owner, "expired", None)
    return expired is not None and bool(expired())

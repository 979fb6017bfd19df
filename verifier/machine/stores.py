"""Cells for slots and their tags beside memory, as long as what they describe lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.numerics import Array


@dataclass(eq=False, kw_only=True)
class Store:
    """Slots and tags of a stretch of memory, one cell per half-word; `used` once some may be written.

    owners: of a tensor's memory, what says of each storage over it that slots have met whether it is freed;
    the storages themselves where others may hold the memory (numpy does), so that torch cannot tell.
    """

    values: Array
    tags: Array
    used: bool = False
    owners: dict[int, Any] = field(default_factory=dict)

    def belongs_to(self, storage: Any) -> None:
        """Live at least as long as a storage."""
        from torch.multiprocessing.reductions import StorageWeakRef

        if (owner := self.owners.get(storage._cdata)) is None or _is_freed(owner):
            watch: Any = StorageWeakRef
            self.owners[storage._cdata] = watch(storage) if storage.resizable() else storage

    def is_vacant(self) -> bool:
        """Whether every storage that it describes is freed."""
        return all(_is_freed(owner) for owner in self.owners.values())


class Stores:
    """The stores of all tensors of a session, by the address of their storage."""

    def __init__(self, dtype: Any) -> None:
        """Begin with none; dtype: numpy type of a slot."""
        self.dtype = dtype
        self.by_address: dict[int, Store] = {}

    def make(self, size: int) -> Store:
        """Give an empty store for so many bytes of memory."""
        cells = _cells(size)
        return Store(values=np.zeros(cells, dtype=self.dtype), tags=np.zeros(cells, dtype=np.uint64))

    def known(self, tensor: Any) -> Store | None:
        """Store of a tensor's storage, None if there is none."""
        storage = tensor.untyped_storage()
        store = self.by_address.get(storage.data_ptr()) if storage.nbytes() else None
        if store is None or store.is_vacant() or store.tags.size != _cells(storage.nbytes()):
            return None
        store.belongs_to(storage)
        return store

    def of(self, tensor: Any) -> Store:
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
        """Drop what describes freed memory, and give one of those stores, emptied, if one fits.

        To use its arrays again is several times faster than to have new ones.
        """
        fitting = None
        for address, store in list(self.by_address.items()):
            if store.is_vacant():
                del self.by_address[address]
                if store.tags.size == _cells(size):
                    fitting = store
        if fitting is not None:
            fitting.tags.fill(0)
            fitting.used = False
            fitting.owners.clear()
        return fitting


def _cells(size: int) -> int:
    """Count the cells of so many bytes: an access of 8 bytes may begin in the last one."""
    return size // 2 + 4


def _is_freed(owner: Any) -> bool:
    expired = getattr(owner, "expired", None)
    return expired is not None and bool(expired())

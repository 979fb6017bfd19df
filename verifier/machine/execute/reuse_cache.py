"""Prepared things that wait to be used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

MOST_BYTES = 48 << 20
"""Of registers and windows that wait for another launch; one that is larger waits alone."""
MOST_KEPT = 128
"""Prepared waves that wait; besides its bytes each has some hundred small Python objects."""


class ReuseCache:
    """What is free, by key, the last used last."""

    def __init__(self) -> None:
        """Start empty."""
        self.free: OrderedDict[Hashable, tuple[object, int]] = OrderedDict()
        self.octets = 0

    def take(self, key: Hashable) -> object:
        """Give what waits under a key to one user alone, or None."""
        found, octets = self.free.pop(key, (None, 0))
        self.octets -= octets
        return found

    def give_back(self, key: Hashable, prepared: object, octets: int) -> None:
        """Keep something of so many bytes for later; what has waited longest goes."""
        self.take(key)
        self.free[key] = prepared, octets
        self.octets += octets
        while len(self.free) > 1 and (self.octets > MOST_BYTES or len(self.free) > MOST_KEPT):
            self.octets -= self.free.popitem(last=False)[1][1]

    def shrink(self, most: int) -> None:
        """Give up what has waited longest until at most so many bytes wait."""
        while self.octets > most:
            self.octets -= self.free.popitem(last=False)[1][1]

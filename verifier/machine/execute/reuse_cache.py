"""Prepared things that wait to be used again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

KEPT = 6
"""Prepared waves that wait for another launch; each may hold some 10 MB of registers."""


class ReuseCache:
    """What is free, by key, the last used last."""

    def __init__(self) -> None:
        """Start empty."""
        self.free: OrderedDict[Any, Any] = OrderedDict()

    def take(self, key: Hashable) -> Any:
        """Give what waits under a key to one user alone, or None."""
        return self.free.pop(key, None)

    def give_back(self, key: Hashable, prepared: object) -> None:
        """Keep something for later; what has waited longest goes."""
        self.free[key] = prepared
        while len(self.free) > KEPT:
            self.free.popitem(last=False)

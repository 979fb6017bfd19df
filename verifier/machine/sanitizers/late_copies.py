"""Whether a warp uses its copy of what another warp overwrites, which it may have read too late.

Where a compiler has more threads than elements, several warps read one element, and the one that owns it may
overwrite it while the others are late. That does no harm where these do nothing with what they have read: no
store that they execute follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from verifier.machine.ptx.syntax import Instruction

_STORES = frozenset({"st", "stmatrix", "atom", "red", "cp"})


@dataclass(kw_only=True)
class LateCopies:
    """What each warp of a launch has stored, and must not store any more.

    sites: the instructions of the kernel. stored: by warp, the instructions by which it has stored something.
    late: by warp, those that follow from what it may have read too late.
    """

    sites: Sequence[Instruction] = ()
    stored: dict[int, set[int]] = field(default_factory=dict)
    late: dict[int, set[int]] = field(default_factory=dict)
    _following: dict[int, frozenset[int]] = field(default_factory=dict)

    def stores(self, site: int, warps: Iterable[int]) -> int | None:
        """Note that warps store by an instruction; return one whose copy that follows from was late."""
        what, found = id(self.sites[site]), None
        for warp in warps:
            self.stored.setdefault(warp, set()).add(what)
            if what in self.late.get(warp, ()):
                found = warp
        return found

    def overwritten(self, site: int, warps: Iterable[int]) -> int | None:
        """Note that what warps read by an instruction is overwritten; return one that has used its copy."""
        following = self.following(site)
        for warp in warps:
            if following & self.stored.get(warp, set()):
                return warp
            self.late.setdefault(warp, set()).update(following)
        return None

    def following(self, site: int) -> frozenset[int]:
        """Return the stores that follow from what an instruction reads: all, where a branch does."""
        first = self.sites[site]
        if id(first) not in self._following:
            self._following[id(first)] = _following(first, self.sites)
        return self._following[id(first)]


def _following(first: Instruction, sites: Sequence[Instruction]) -> frozenset[int]:
    registers, before = {*first.written}, -1
    while before != len(registers):
        before = len(registers)
        for one in sites:
            if not registers.isdisjoint(one.read):
                registers.update(one.written)
    stores = [one for one in sites if one.parts[0] in _STORES]
    branches = any(one.parts[0] == "bra" and not registers.isdisjoint(one.read) for one in sites)
    return frozenset(id(one) for one in stores if branches or not registers.isdisjoint(one.read))

"""Order by barriers in shared memory: who waits for a phase knows what came before its arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field

Knowledge = dict[int, int]
"""What a warp knows of others: warp -> last epoch of that warp whose accesses come before."""


def join(into: Knowledge, other: Knowledge) -> None:
    """Add what another one knows."""
    for warp, epoch in other.items():
        if into.get(warp, -1) < epoch:
            into[warp] = epoch


@dataclass(kw_only=True)
class Phases:
    """By region and offset of a barrier, what its arrivals told, in the phase under way and before."""

    under_way: dict[tuple[int, int], Knowledge] = field(default_factory=dict)
    over: dict[tuple[int, int], Knowledge] = field(default_factory=dict)

    def arrive(self, place: tuple[int, int], told: Knowledge) -> None:
        """Take what comes before an arrival."""
        join(self.under_way.setdefault(place, {}), told)

    def end(self, place: tuple[int, int]) -> None:
        """Let a phase be over."""
        join(self.over.setdefault(place, {}), self.under_way.pop(place, {}))

    def wait(self, place: tuple[int, int]) -> Knowledge:
        """Give what somebody knows who has found the last phase over."""
        return self.over.get(place, {})

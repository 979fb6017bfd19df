"""What of the compiled forms of kernels ran: basic blocks, and guards with all, some or no lanes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from verifier.records.reach import CompiledForm, Reach, SourcePlace


@dataclass(frozen=True, kw_only=True)
class GuardReach:
    """The guards near one line of the source; lanes: "all", "some", "none" as they were seen to hold.

    by_lane: whether lanes of one thread block may differ.
    """

    place: SourcePlace
    by_lane: bool
    lanes: frozenset[str]

    @property
    def told_apart(self) -> bool:
        """Whether it was seen to hold in some lanes and not in others."""
        return "some" in self.lanes or (not self.by_lane and {"all", "none"} <= self.lanes)

    @property
    def lacks(self) -> str:
        """What was not seen, in words; nothing where lanes were told apart, or nothing came there."""
        if self.told_apart or not self.lanes:
            return ""
        if len(self.lanes) > 1:
            return "never in part"
        return "always on" if "all" in self.lanes else "always off"


@dataclass(frozen=True, kw_only=True)
class CodeReach:
    """Sums of the compiled forms of one subject's kernels."""

    found: Reach

    @property
    def forms(self) -> list[CompiledForm]:
        """The forms, by kernel."""
        return sorted(self.found.forms, key=lambda form: (form.kernel, form.digest))

    def ran(self, form: CompiledForm) -> set[int]:
        """Return the numbers of the blocks of a form that ran, of those that are counted."""
        return {number for number, _ in form.blocks if (form.digest, number) in self.found.blocks}

    @property
    def blocks(self) -> tuple[int, int]:
        """How many basic blocks of all forms ran, of how many."""
        forms = self.found.forms
        return sum(len(self.ran(form)) for form in forms), sum(len(form.blocks) for form in forms)

    def lines_not_run(self) -> tuple[list[SourcePlace], list[SourcePlace]]:
        """Return the places near which blocks lie that ran in no form, and in some forms not."""
        ran: set[SourcePlace | None] = set()
        lacking: set[SourcePlace | None] = set()
        for form in self.found.forms:
            numbers = self.ran(form)
            for number, place in form.blocks:
                (ran if number in numbers else lacking).add(place)
        return _known(lacking - ran), _known(lacking & ran)

    def guards(self) -> list[GuardReach]:
        """Return the guards of all forms, joined by the line of the source near which they stand."""
        by_lane: dict[SourcePlace, bool] = {}
        lanes: dict[SourcePlace, set[str]] = {}
        forms = {form.digest: form for form in self.found.forms}
        for form in forms.values():
            for place, differ in form.guards:
                if place is not None:
                    by_lane[place] = by_lane.get(place, False) or differ
        for digest, number, word in self.found.guards:
            place = forms[digest].guards[number][0] if digest in forms else None
            if place is not None:
                lanes.setdefault(place, set()).add(word)
        return [
            GuardReach(place=place, by_lane=differ, lanes=frozenset(lanes.get(place, ())))
            for place, differ in sorted(by_lane.items())
        ]

    def guards_of(self, form: CompiledForm) -> Iterator[GuardReach]:
        """Yield the guards of one form that stand near a known place."""
        for number, (place, differ) in enumerate(form.guards):
            if place is not None:
                seen = self._seen.get((form.digest, number), ())
                yield GuardReach(place=place, by_lane=differ, lanes=frozenset(seen))

    @cached_property
    def _seen(self) -> dict[tuple[str, int], set[str]]:
        """In how many lanes each guard was seen to hold, by the digest of its form and its number."""
        seen: dict[tuple[str, int], set[str]] = {}
        for digest, number, word in self.found.guards:
            seen.setdefault((digest, number), set()).add(word)
        return seen


def _known(places: Iterable[SourcePlace | None]) -> list[SourcePlace]:
    return sorted(place for place in places if place is not None)

"""Records in the child what of a subject runs; each answer takes along what is new."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from verifier.execution.backend import Backend
from verifier.execution.source_reach import SourceReach
from verifier.execution.wrapper_lines import WrapperLines
from verifier.machine.execute.reached_code import ReachedCode
from verifier.records.reach import NOTHING, READS_MULTIPROCESSORS, Reach, SourcePlace, joined
from verifier.records.subject import Subject
from verifier.subjects.source_map import source_map


@dataclass(kw_only=True, eq=False)
class Recording:
    """What of one subject has run in this process; told: what the answers have said of it.

    asks: whether it reads the number of multiprocessors, as far as its calls have shown.
    """

    code: SourceReach
    lines: WrapperLines
    reached: ReachedCode = field(default_factory=ReachedCode)
    sees_code: bool = False
    asks: Callable[[], bool] = lambda: False
    told: Reach = NOTHING

    def news(self) -> Reach:
        """Return what no answer has said yet."""
        found = [Reach(lines=self.lines.places(), recorded=frozenset({"lines"}))]
        if self.sees_code and self.reached.changed:
            found.append(self.code.news(self.reached))
        given = {("multiprocessors", str(number)) for number in self.reached.multiprocessors}
        if self.asks():
            given.add(READS_MULTIPROCESSORS)
        found.append(Reach(given=frozenset(given)))
        found.append(Reach(configurations=frozenset(_configurations(self.reached))))
        fresh = joined(found).without(self.told)
        if fresh != NOTHING:
            self.told = joined((self.told, fresh))
        return replace(fresh, compared=self.told.compared)  # each search asks for all of them


def _configurations(reached: ReachedCode) -> Iterator[tuple[SourcePlace, str, str]]:
    for kernel, words, state in reached.configurations:
        place = SourcePlace(Path(kernel.path).name, kernel.function, kernel.line)
        yield place, words, state.value


_RECORDINGS: dict[tuple[str, str], Recording] = {}
_IN_FORCE: list[Recording] = []


@contextmanager
def recorded(subject: Subject, backend: Backend) -> Iterator[Recording]:
    """Record what runs of a subject inside."""
    key = (str(subject.path), subject.name)
    if key not in _RECORDINGS:
        sources = source_map(subject)
        _RECORDINGS[key] = Recording(code=SourceReach(sources), lines=WrapperLines(sources))
    recording = _RECORDINGS[key]
    before = backend.asked_processors()
    recording.asks = lambda: backend.asked_processors() > before
    recording.sees_code = backend.notes_reached(recording.reached)
    _IN_FORCE.append(recording)
    try:
        yield recording
    finally:
        _IN_FORCE.pop()


def wrapper_followed(kind: Hashable) -> AbstractContextManager[None]:
    """Note the lines of the wrapper that run inside, in a call of some kind."""
    return _IN_FORCE[-1].lines.followed(kind) if _IN_FORCE else nullcontext()

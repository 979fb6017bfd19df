"""What of each subject's sources an audit ran, and what it did not run and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from verifier.audit import rules
from verifier.audit.compiled_reach import CodeReach
from verifier.cases.tried_extents import MOST_COLUMNS, MOST_ROWS
from verifier.checks import modes
from verifier.checks.modes import MODES, PROCESSORS
from verifier.machine.execute.tuning import TunedState
from verifier.records.reach import READS_MULTIPROCESSORS, Reach, SourcePlace, joined
from verifier.records.verdict import Line
from verifier.subjects.load_file import LoadError, load_subject
from verifier.subjects.source_map import SourceMap, Statement, source_map


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """What did not run as it should: its kind ("function", "loop" or "line"), its place, and why."""

    kind: str
    place: SourcePlace
    why: str


@dataclass(frozen=True, kw_only=True)
class TunedReach:
    """Which configurations of one autotuned kernel ran; untried: those that did not, each with the reason."""

    place: SourcePlace
    ran: tuple[str, ...]
    untried: tuple[tuple[str, str], ...]

    @property
    def count(self) -> int:
        """How many configurations there are."""
        return len(self.ran) + len(self.untried)

    @property
    def whole(self) -> bool:
        """Whether all ran that a tuner can choose: one that does not fit the device is never chosen."""
        return all(why == TunedState.UNFIT for _, why in self.untried)


@dataclass(frozen=True, kw_only=True)
class SubjectReach:
    """What of one subject ran in all lines of an audit; dtypes: declared ones.

    modes: those of torch that no line of the check `modes` has tried. path: of its file.
    """

    subject: str
    path: str
    sources: SourceMap
    found: Reach
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()

    @property
    def multiprocessors(self) -> tuple[int, ...]:
        """Numbers of multiprocessors of `modes` that nothing ran with, if the wrapper reads any."""
        if READS_MULTIPROCESSORS not in self.found.given:
            return ()
        return tuple(n for n in PROCESSORS.values() if ("multiprocessors", str(n)) not in self.found.given)

    @property
    def functions(self) -> tuple[int, int]:
        """How many functions of kernels ran, of how many."""
        counted = rules.counted_functions(self.sources, self.found)
        return sum(f.place in self.found.functions for f in counted), len(counted)

    @property
    def loops(self) -> tuple[int, int]:
        """How many loops turned more than once, of how many."""
        counted = rules.counted_loops(self.sources, self.found)
        return sum(rules.turned_twice(self.found, loop) for loop in counted), len(counted)

    @property
    def code(self) -> CodeReach:
        """What ran of the compiled forms of its kernels."""
        return CodeReach(found=self.found)

    @property
    def lines(self) -> tuple[int, int]:
        """How many statements of the wrapper ran, of how many that refuse nothing."""
        counted = [s for s in self.sources.statements if not s.refuses]
        return sum(s.place in self.found.lines for s in counted), len(counted)

    @property
    def known(self) -> bool:
        """Whether functions and loops were followed."""
        return rules.reach_known(self.sources, self.found)

    @property
    def whole(self) -> bool:
        """Whether functions and configurations ran and loops turned more than once, as far as is known."""
        if not all(one.whole for one in self.configurations):
            return False
        return not self.known or (self.functions[0] == self.functions[1] and self.loops[0] == self.loops[1])

    @property
    def configurations(self) -> list[TunedReach]:
        """Which configurations of autotuned kernels ran, by kernel."""
        states: dict[SourcePlace, dict[str, set[str]]] = {}
        for place, words, state in self.found.configurations:
            states.setdefault(place, {}).setdefault(words, set()).add(state)
        return [_tuned(place, found) for place, found in sorted(states.items())]

    @property
    def refusals(self) -> tuple[int, int]:
        """How many statements ran that refuse, of how many."""
        counted = [s for s in self.sources.statements if s.refuses]
        return sum(s.place in self.found.lines for s in counted), len(counted)

    def lacking(self) -> Iterator[Lacking]:
        """Yield functions and loops that lack something, where that is known, then the wrapper's lines."""
        if self.known:
            for function in rules.counted_functions(self.sources, self.found):
                if function.place not in self.found.functions:
                    yield Lacking(kind="function", place=function.place, why=self._why_not(function.place))
            for loop in rules.counted_loops(self.sources, self.found):
                if not rules.turned_twice(self.found, loop):
                    yield Lacking(kind="loop", place=loop.place, why=self._turns(loop.place))
        for statement in self._statements_not_run():
            yield Lacking(
                kind="line", place=statement.place, why="refuses" if statement.refuses else "not run"
            )

    @property
    def left_out(self) -> list[tuple[str, float]]:
        """Shapes that a budget had no room for, each with its highest price in seconds; the dearest first."""
        prices: dict[str, float] = {}
        for shape, seconds in self.found.left_out:
            prices[shape] = max(seconds, prices.get(shape, 0.0))
        return sorted(prices.items(), key=lambda one: (-one[1], one[0]))

    def _statements_not_run(self) -> Iterator[Statement]:
        if "lines" in self.found.recorded:
            yield from (s for s in self.sources.statements if s.place not in self.found.lines)

    def _why_not(self, place: SourcePlace) -> str:
        if place in self.found.compiled:
            return "compiled, but no lane came there"
        if not any(f.entry for f in self.sources.functions if f.place == place):
            return "in no kernel that was launched"
        planned = self.found.launchable
        if planned and not planned & {place.function, f"{place.file.partition('.')[0]}.{place.function}"}:
            return f"launched at no shape {_TRIED_DRY}"
        return "launched by no case that was tried"

    def _turns(self, place: SourcePlace) -> str:
        turned = {n for one, n in self.found.loops if one == place}
        may = {again for file, line, again in self.found.turnable if (file, line) == (place.file, place.line)}
        if may == {False}:
            return f"its head lets it turn at most once at every shape {_TRIED_DRY}"
        if not turned:
            ran = any(
                (one.file, one.function) == (place.file, place.function) for one in self.found.functions
            )
            return _LEFT_OUT if ran else "in no kernel that was launched"
        if 1 not in turned:
            return "its body never ran"
        told = ", though its head has it turn again at some shapes" if True in may else ""
        return f"not seen to turn more than once{told}"


_LEFT_OUT = (
    "its function ran without it: the compiler leaves out what a constant excludes, and what has no effect "
    "on any result"
)
_TRIED_DRY = f"that was tried dry, up to {MOST_ROWS} rows and {MOST_COLUMNS} columns"


def _tuned(place: SourcePlace, found: Mapping[str, Collection[str]]) -> TunedReach:
    """Sum up what became of each configuration: of several fates, the first that `TunedState` names."""
    fates = {words: next(s.value for s in TunedState if s in states) for words, states in found.items()}
    return TunedReach(
        place=place,
        ran=tuple(sorted(words for words, fate in fates.items() if fate == TunedState.RAN)),
        untried=tuple(sorted(one for one in fates.items() if one[1] != TunedState.RAN)),
    )


def reach_of_lines(lines: Iterable[Line], named: Iterable[tuple[str, str]]) -> list[SubjectReach]:
    """Join what the lines of each subject saw run; subjects that ran nowhere have none.

    named: path and name of each subject. A file that has gone meanwhile has no sources to compare with.
    """
    every = list(lines)
    found = []
    for path, name in dict.fromkeys(named):
        own = [line for line in every if (line.path, line.subject) == (path, name)]
        reach = joined(line.reach for line in own)
        if not reach.recorded:
            continue
        with suppress(LoadError):
            subject = load_subject(path, name)
            of_modes = [one for one in own if one.check == modes.NAME]
            found.append(
                SubjectReach(
                    subject=name,
                    path=path,
                    sources=source_map(subject),
                    found=reach,
                    dtypes=subject.dtypes,
                    modes=tuple(m for m in MODES if not any(_tried(m, one) for one in of_modes)),
                )
            )
    return found


def _tried(mode: str, line: Line) -> bool:
    """Return whether a line of `modes` was run and has tried a mode."""
    return bool(line.counts) and mode not in line.untried

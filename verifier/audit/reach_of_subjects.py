"""What of each subject's sources an audit ran, and what it did not run and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

from verifier.audit import rules
from verifier.audit.compiled_reach import CodeReach
from verifier.audit.sweep import sweep
from verifier.cases.priced_shape import CASE_SECONDS
from verifier.cases.tried_extents import MOST_COLUMNS, MOST_ROWS
from verifier.checks import modes
from verifier.checks.modes import MODES, PROCESSORS
from verifier.machine.execute.tuning import TunedState
from verifier.records.reach import READS_MULTIPROCESSORS, Reach, SourcePlace, WithoutRoom, joined
from verifier.records.subject import Subject
from verifier.records.verdict import Line
from verifier.subjects.load_file import LoadError, load_subject
from verifier.subjects.source_map import SourceMap, Statement, source_map


class WhyNot(StrEnum):
    """Why something did not run, as a report's data name it."""

    NO_LANE = "no lane"
    NO_KERNEL = "in no kernel"
    BUDGET = "budget"
    DTYPE = "dtype"
    REFUSED = "refused"
    NO_SHAPE = "no shape"
    NO_CASE = "no case"
    AT_MOST_ONCE = "at most once"
    COMPILER = "compiler"
    NO_TURN = "no turn"
    NO_SECOND_TURN = "no second turn"
    LINE = "line"


@dataclass(frozen=True, kw_only=True)
class Lacking:
    """What did not run as it should: its kind ("function", "loop" or "line"), its place, and why.

    why: in words, cause: as one of few. shape, seconds: that of the least shape which reaches it and had no
    room, and its price. dtypes: those that reach it and were not audited.
    """

    kind: str
    place: SourcePlace
    why: str
    cause: WhyNot
    shape: str = ""
    seconds: float | None = None
    dtypes: tuple[str, ...] = ()


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

    modes: those of torch that no line of the check `modes` has tried. path: of its file. unaudited: what dry
    runs know of launches in declared dtypes without a line, where that was asked.
    """

    subject: str
    path: str
    sources: SourceMap
    found: Reach
    dtypes: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    unaudited: Mapping[str, Reach] = field(default_factory=dict)

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
                    yield self._function(function.place)
            for loop in rules.counted_loops(self.sources, self.found):
                if not rules.turned_twice(self.found, loop):
                    yield self._loop(loop.place)
        for statement in self._statements_not_run():
            why = "refuses" if statement.refuses else "not run"
            yield Lacking(kind="line", place=statement.place, why=why, cause=WhyNot.LINE)

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

    def _function(self, place: SourcePlace) -> Lacking:
        """Say why a function did not run."""
        names = {place.function, f"{place.file.partition('.')[0]}.{place.function}"}
        dear = self._least_without_room(lambda one: not one.line and one.what in names)
        why, cause = "launched by no case that was tried", WhyNot.NO_CASE
        dtypes: tuple[str, ...] = ()
        if place in self.found.compiled:
            why, cause, dear = "compiled, but no lane came there", WhyNot.NO_LANE, None
        elif not any(f.entry for f in self.sources.functions if f.place == place):
            why, cause, dear = "in no kernel that was launched", WhyNot.NO_KERNEL, None
        elif dear is not None:
            why, cause = _beyond(dear, "launches it"), WhyNot.BUDGET
        elif self.found.launchable and not self.found.launchable & names:
            dtypes = tuple(d for d, seen in self.unaudited.items() if seen.launchable & names)
            why, cause = f"launched at no shape {_TRIED_DRY}", WhyNot.NO_SHAPE
            if dtypes:
                why, cause = _only_in(dtypes), WhyNot.DTYPE
            elif self.found.refused:
                shape, words = min(self.found.refused)
                why, cause = f"the wrapper refuses {shape} ({words}), and it is {why}", WhyNot.REFUSED
        return _lacking("function", place, why, cause, dear, dtypes)

    def _loop(self, place: SourcePlace) -> Lacking:
        """Say why a loop did not turn more than once."""
        turned = {n for one, n in self.found.loops if one == place}
        head = (place.file, place.line)
        may = {again for file, line, again in self.found.turnable if (file, line) == head}
        functions = {(one.file, one.function) for one in self.found.functions}
        compiled = bool(turned) or (place.file, place.function) in functions
        dear = self._least_without_room(lambda one: compiled and (one.what, one.line) == head)
        dtypes: tuple[str, ...] = ()
        if dear is not None:
            why, cause = _beyond(dear, "may turn it again"), WhyNot.BUDGET
        elif may == {False}:
            dtypes = tuple(d for d, seen in self.unaudited.items() if (*head, True) in seen.turnable)
            why, cause = (
                f"its head lets it turn at most once at every shape {_TRIED_DRY}",
                WhyNot.AT_MOST_ONCE,
            )
            if dtypes:
                why, cause = f"it turns again {_only_in(dtypes)}", WhyNot.DTYPE
        elif not compiled:
            why, cause = "in no kernel that was launched", WhyNot.NO_KERNEL
        elif not turned:
            why, cause = _LEFT_OUT, WhyNot.COMPILER
        elif 1 not in turned:
            why, cause = "its body never ran", WhyNot.NO_TURN
        else:
            told = ", though its head lets it turn again at some shapes" if True in may else ""
            why, cause = f"not seen to turn more than once{told}", WhyNot.NO_SECOND_TURN
        return _lacking("loop", place, why, cause, dear, dtypes)

    def _least_without_room(self, wanted: Callable[[WithoutRoom], bool]) -> WithoutRoom | None:
        """Return the smallest shape, with its highest price: a larger one may have no compilation to pay."""
        found = (one for one in self.found.without_room if wanted(one))
        return min(found, key=lambda one: (one.rows * one.columns, one.rows, -one.seconds), default=None)


def _lacking(  # noqa: PLR0917 (one reason)
    kind: str,
    place: SourcePlace,
    why: str,
    cause: WhyNot,
    dear: WithoutRoom | None,
    dtypes: tuple[str, ...],
) -> Lacking:
    shape, seconds = ("", None) if dear is None else (dear.shape, dear.seconds)
    return Lacking(kind=kind, place=place, why=why, cause=cause, shape=shape, seconds=seconds, dtypes=dtypes)


def _beyond(dear: WithoutRoom, does: str) -> str:
    """Say which shape had no room, what it does and what it costs."""
    which = "the" if dear.seconds <= CASE_SECONDS else "every"
    return f"beyond {which} budget: {dear.shape} {does}, about {math.ceil(dear.seconds)} s"


def _only_in(dtypes: Collection[str]) -> str:
    return f"only in {' and '.join(dtypes)}, which {'was' if len(dtypes) == 1 else 'were'} not audited"


_LEFT_OUT = (
    "its function ran without it: the compiler leaves out what a constant excludes, and what has no effect "
    "on any result"
)
_OF_ONE_DTYPE = frozenset([WhyNot.NO_SHAPE, WhyNot.REFUSED, WhyNot.AT_MOST_ONCE])
"""What may hold of the dtypes alone that were audited."""
_TRIED_DRY = f"that was tried dry, up to {MOST_ROWS} rows and {MOST_COLUMNS} columns"


def _tuned(place: SourcePlace, found: Mapping[str, Collection[str]]) -> TunedReach:
    """Sum up what became of each configuration: of several fates, the first that `TunedState` names."""
    fates = {words: next(s.value for s in TunedState if s in states) for words, states in found.items()}
    return TunedReach(
        place=place,
        ran=tuple(sorted(words for words, fate in fates.items() if fate == TunedState.RAN)),
        untried=tuple(sorted(one for one in fates.items() if one[1] != TunedState.RAN)),
    )


def reach_of_lines(
    lines: Iterable[Line], named: Iterable[tuple[str, str]], *, asks: bool = False
) -> list[SubjectReach]:
    """Join what the lines of each subject saw run; subjects that ran nowhere have none.

    named: path and name of each subject. A file that has gone meanwhile has no sources to compare with.
    asks: whether dry runs in dtypes that were not audited may say where something runs that ran in none.
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
            one = SubjectReach(
                subject=name,
                path=path,
                sources=source_map(subject),
                found=reach,
                dtypes=subject.dtypes,
                modes=tuple(m for m in MODES if not any(_tried(m, one) for one in of_modes)),
            )
            if asks and any(part.cause in _OF_ONE_DTYPE for part in one.lacking()):
                one = replace(one, unaudited=_in_other_dtypes(subject, own))
            found.append(one)
    return found


def _in_other_dtypes(subject: Subject, own: Iterable[Line]) -> dict[str, Reach]:
    """Return what could be launched, and which loops may turn again, in each dtype without a line."""
    lines = [line for line in own if line.reach.recorded]
    audited, places = {line.dtype for line in lines}, [line.backend for line in lines]
    swept = {d: sweep(subject, d, places[0]) for d in subject.dtypes if d not in audited}
    return {d: Reach(launchable=one.launched, turnable=one.loops) for d, one in swept.items()}


def _tried(mode: str, line: Line) -> bool:
    """Return whether a line of `modes` was run and has tried a mode."""
    return bool(line.counts) and mode not in line.untried

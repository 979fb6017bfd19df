"""What of a subject's sources ran: functions, turns of loops, lines of its wrapper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from verifier.records.case import Case

MANY = 3
"""Turns of a loop that are not told apart from more."""

READS_MULTIPROCESSORS = ("multiprocessors", "read")
"""Is given where the wrapper has asked for their number."""


class SourcePlace(NamedTuple):
    """A function, a loop or a statement in a source: the file's name, the function's, and the first line.

    No path: a file that was moved or copied is the same source.
    """

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        """Render as `function (file:line)`."""
        return f"{self.function} ({self.file}:{self.line})"


class WithoutRoom(NamedTuple):
    """A kernel (line 0) or a loop of a file that a shape without room reaches, and the shape's price."""

    what: str
    line: int
    rows: int
    columns: int
    seconds: float

    @property
    def shape(self) -> str:
        """The extents in words."""
        return f"{self.rows} x {self.columns}"


@dataclass(frozen=True, kw_only=True)
class CompiledForm:
    """One compiled form of a kernel: Triton compiles anew for other block sizes, formats and values of 1.

    digest: of its text, by which forms are told apart. kernel: the name of its function. blocks: the number
    of each basic block that control can come to, and near which place of the source it lies. guards: near
    which place each of its guards stands, and whether lanes of one thread block may differ.
    """

    digest: str
    kernel: str = field(default="", compare=False)
    blocks: tuple[tuple[int, SourcePlace | None], ...] = field(default=(), compare=False)
    guards: tuple[tuple[SourcePlace | None, bool], ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What was seen to run, of one execution or of many.

    functions: functions of kernels of which an instruction ran. compiled: those that stand in compiled code
    that was launched, run or not. loops: each with how often it turned at once: 0, 1, 2, or `MANY` for more.
    lines: statements of the wrapper. configurations: of autotuned kernels, each with what became of it: it
    "ran", or why it did not. forms: compiled forms that were launched; blocks: basic blocks of them that
    ran, by the form's digest; guards: the same of guards, with "all", "some" or "none" of the lanes that
    came there for which it held. left_out: shapes that a budget had no room for, with their estimated
    price in seconds. unswept: why it could not be asked what the wrapper would launch. launchable: kernels
    that it would launch at any shape; turnable: of their loops, by file and line, whether one may turn more
    than once. without_room: what the shapes that had no room would reach; refused: the least shape that its
    wrapper refuses, and in which words. given: what cases and machines were, as (what, which). compared:
    numbers that compiled code compares floats with. unfollowed: kernels that were launched and stand in no
    source that was read. recorded: "code"
    where functions and loops were followed, "lines" where the wrapper was; what was not is unknown, not 0.
    """

    functions: frozenset[SourcePlace] = frozenset()
    compiled: frozenset[SourcePlace] = frozenset()
    loops: frozenset[tuple[SourcePlace, int]] = frozenset()
    lines: frozenset[SourcePlace] = frozenset()
    configurations: frozenset[tuple[SourcePlace, str, str]] = frozenset()
    forms: frozenset[CompiledForm] = frozenset()
    blocks: frozenset[tuple[str, int]] = frozenset()
    guards: frozenset[tuple[str, int, str]] = frozenset()
    left_out: frozenset[tuple[str, float]] = frozenset()
    unswept: frozenset[str] = frozenset()
    launchable: frozenset[str] = frozenset()
    turnable: frozenset[tuple[str, int, bool]] = frozenset()
    without_room: frozenset[WithoutRoom] = frozenset()
    refused: frozenset[tuple[str, str]] = frozenset()
    given: frozenset[tuple[str, str]] = frozenset()
    compared: frozenset[float] = frozenset()
    unfollowed: frozenset[str] = frozenset()
    recorded: frozenset[str] = frozenset()

    def without(self, known: Reach) -> Reach:
        """Return what is not known yet."""
        return Reach(
            functions=self.functions - known.functions,
            compiled=self.compiled - known.compiled,
            loops=self.loops - known.loops,
            lines=self.lines - known.lines,
            configurations=self.configurations - known.configurations,
            forms=self.forms - known.forms,
            blocks=self.blocks - known.blocks,
            guards=self.guards - known.guards,
            left_out=self.left_out - known.left_out,
            unswept=self.unswept - known.unswept,
            launchable=self.launchable - known.launchable,
            turnable=self.turnable - known.turnable,
            without_room=self.without_room - known.without_room,
            refused=self.refused - known.refused,
            given=self.given - known.given,
            compared=self.compared - known.compared,
            unfollowed=self.unfollowed - known.unfollowed,
            recorded=self.recorded - known.recorded,
        )


NOTHING = Reach()


def joined(found: Iterable[Reach]) -> Reach:
    """Return what ran in one or another of several."""
    several = list(found)
    return Reach(
        functions=frozenset().union(*(one.functions for one in several)),
        compiled=frozenset().union(*(one.compiled for one in several)),
        loops=frozenset().union(*(one.loops for one in several)),
        lines=frozenset().union(*(one.lines for one in several)),
        configurations=frozenset().union(*(one.configurations for one in several)),
        forms=frozenset().union(*(one.forms for one in several)),
        blocks=frozenset().union(*(one.blocks for one in several)),
        guards=frozenset().union(*(one.guards for one in several)),
        left_out=frozenset().union(*(one.left_out for one in several)),
        unswept=frozenset().union(*(one.unswept for one in several)),
        launchable=frozenset().union(*(one.launchable for one in several)),
        turnable=frozenset().union(*(one.turnable for one in several)),
        without_room=frozenset().union(*(one.without_room for one in several)),
        refused=frozenset().union(*(one.refused for one in several)),
        given=frozenset().union(*(one.given for one in several)),
        compared=frozenset().union(*(one.compared for one in several)),
        unfollowed=frozenset().union(*(one.unfollowed for one in several)),
        recorded=frozenset().union(*(one.recorded for one in several)),
    )


def of_case(case: Case) -> Reach:
    """Return what a case gives: dtypes and layouts of its tensors, by argument, and arguments left out."""
    given = {(f"dtype of {name}", str(t.dtype).removeprefix("torch.")) for name, t in case.given.items()}
    given |= {(f"layout of {name}", case.layout(name)) for name in case.given}
    given |= {(name, "None") for name, tensor in case.tensors.items() if tensor is None}
    return Reach(given=frozenset(given))

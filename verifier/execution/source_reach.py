"""From blocks of compiled code that ran to functions and loops of the source."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

from verifier.machine.execute.reached_code import On, ReachedCode
from verifier.machine.ptx.compared import compared_numbers
from verifier.machine.ptx.loops import reachable
from verifier.machine.translate.compile_kernel import PROGRAM_IS
from verifier.records.reach import MANY, CompiledForm, Reach, SourcePlace
from verifier.subjects.source_map import SourceLoop, SourceMap

if TYPE_CHECKING:
    from verifier.machine.execute.findings import Location
    from verifier.machine.ptx.loops import Loop
    from verifier.machine.ptx.syntax import Instruction
    from verifier.machine.translate.compile_kernel import TranslatedKernel

_FLOATS = frozenset({"f16", "bf16", "f32", "f64", "f16x2", "bf16x2"})
_ACCESSES = frozenset({"ld", "st", "atom", "red"})
_MOVES = frozenset({"mov", "ld", "st", "cvt", "selp", "shfl"})


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What of the source stands in one basic block.

    loops: of each loop, how many instructions are of its body; accesses: how many of these touch memory,
    which no compiler moves in front of a loop that may not turn. copies: of each loop, its branches and float
    arithmetic by place, which stand once for each turn that was written out; stores: its stores, which stand
    for the turns of a loop without either; moved: how many turns stand here of a loop that only loads or
    converts.
    """

    functions: frozenset[SourcePlace]
    loops: Counter[SourceLoop]
    accesses: Counter[SourceLoop]
    copies: dict[SourceLoop, Counter[tuple[str, Location]]]
    stores: dict[SourceLoop, Counter[tuple[str, Location]]]
    moved: dict[SourceLoop, int]


@dataclass(frozen=True, kw_only=True)
class _Outline:
    """What of the source stands in a compiled kernel; regions: its loops, where the source has them.

    form: its blocks and guards, each with the place near which it stands. compared: numbers that floats are
    compared with.
    """

    parts: tuple[_Part, ...]
    regions: dict[SourceLoop, list[Loop]]
    form: CompiledForm
    compared: frozenset[float] = frozenset()


@dataclass(eq=False)
class SourceReach:
    """Tells what of the sources ran, for kernels compiled from them."""

    sources: SourceMap
    _outlines: WeakKeyDictionary[TranslatedKernel, _Outline] = field(default_factory=WeakKeyDictionary)
    _alike: WeakValueDictionary[Hashable, _Outline] = field(default_factory=WeakValueDictionary)

    @cached_property
    def _reader(self) -> _Reader:
        """What reads kernels: it knows the places that it has found before."""
        return _Reader(self.sources)

    def news(self, reached: ReachedCode) -> Reach:
        """Return what the kernels that changed have reached by now; empties the set of them."""
        functions: set[SourcePlace] = set()
        compiled: set[SourcePlace] = set()
        loops: set[tuple[SourcePlace, int]] = set()
        unfollowed: set[str] = set()
        forms: set[CompiledForm] = set()
        blocks: set[tuple[str, int]] = set()
        guards: set[tuple[str, int, str]] = set()
        compared: set[float] = set()
        for kernel in reached.changed:
            outline, ran = self._outline(kernel), reached.blocks.get(kernel, set())
            if self.sources.functions and not any(part.functions for part in outline.parts):
                unfollowed.add(kernel.program.kernel.name)
            digest = outline.form.digest
            forms.add(outline.form)
            compared |= outline.compared
            blocks |= {(digest, number) for number in ran}
            held = reached.guards.get(kernel, {})
            guards |= {(digest, number, word) for number, on in held.items() for word in _words(on)}
            compiled.update(*(part.functions for part in outline.parts))
            functions.update(*(outline.parts[number].functions for number in ran))
            for loop in dict.fromkeys(one for part in outline.parts for one in part.loops):
                turns = reached.turns.get(kernel, {})
                loops |= {(loop.place, turned) for turned in _turned(outline, loop, ran, turns)}
        reached.changed.clear()
        return Reach(
            functions=frozenset(functions),
            compiled=frozenset(compiled),
            loops=frozenset(loops),
            forms=frozenset(forms),
            blocks=frozenset(blocks),
            guards=frozenset(guards),
            compared=frozenset(compared),
            unfollowed=frozenset(unfollowed),
            recorded=frozenset({"code"}),
        )

    def _outline(self, kernel: TranslatedKernel) -> _Outline:
        found = self._outlines.get(kernel)
        if found is None:
            found = self._outlines[kernel] = self._read(kernel)
        return found

    def _read(self, kernel: TranslatedKernel) -> _Outline:
        """Read a kernel, once for all shadows that it is translated with: its instructions are the same."""
        guards = tuple((guard.block, guard.instruction.line, guard.by_lane) for guard in kernel.guards)
        key = (*kernel.question[:PROGRAM_IS], guards)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self._reader.outline(kernel)
        return found


def _words(on: On) -> Iterable[str]:
    return (state.name.lower() for state in On if state in on and state.name)


def _turned(outline: _Outline, loop: SourceLoop, ran: set[int], turns: dict[int, set[int]]) -> Iterable[int]:
    """Yield how often a loop of the source turned in one compiled kernel, each number once or more often.

    Where the kernel has the loop no more, its body ran once, or as often as the compiler wrote it out.
    """
    regions = outline.regions.get(loop, [])
    for region in regions:
        inside = {number for number in range(region.first, region.last + 1) if number in ran}
        for turned in turns.get(region.first, ()):
            yield min(turned * _copies(outline, loop, inside), MANY) if turned else 0
    if any(region.first in ran for region in regions):
        return
    if regions or not _body_ran(outline, loop, ran):
        yield 0
    elif loop.unrolled:
        yield MANY
    else:
        yield min(_copies(outline, loop, ran), MANY)


def _body_ran(outline: _Outline, loop: SourceLoop, ran: set[int]) -> bool:
    """Return whether a body without a loop about it ran, not only what the compiler moved in front of it."""
    if any(part.accesses[loop] for part in outline.parts):
        return any(outline.parts[number].accesses[loop] for number in ran)
    if any(loop in part.copies for part in outline.parts):
        return any(loop in outline.parts[number].copies for number in ran)
    return any(outline.parts[number].loops[loop] for number in ran)


def _copies(outline: _Outline, loop: SourceLoop, blocks: Collection[int]) -> int:
    """Return how often the compiler wrote the body out, as far as these blocks have it.

    For Triton it is 1: a thread has several elements of a tile, and an instruction for each.
    """
    if loop.path.endswith(".py"):
        return 1
    count: Counter[tuple[str, Location]] = Counter()
    stored: Counter[tuple[str, Location]] = Counter()
    for number in blocks:
        count.update(outline.parts[number].copies.get(loop, ()))
        stored.update(outline.parts[number].stores.get(loop, ()))
    if count or stored:
        return max((count or stored).values())
    return max((outline.parts[number].moved.get(loop, 1) for number in blocks), default=1)


def _moves(parts: Sequence[str]) -> bool:
    """Whether an opcode of these parts loads an element, or converts one to another format."""
    loads = parts[0] == "ld" and parts[1] != "param"
    return loads or (parts[0] == "cvt" and len(_FLOATS & set(parts)) > 1)


def _turns_of_moves(
    moves: Mapping[tuple[tuple[SourceLoop, ...], tuple[str, Location]], int],
    copies: Mapping[SourceLoop, Counter[tuple[str, Location]]],
) -> dict[SourceLoop, int]:
    """Return how many turns of loops stand in one block by what they load or convert.

    moves: how often each stands there, with the loops about it, innermost first; one about it may be written
    out in the same block, and copies tell how often.
    """
    turns: dict[SourceLoop, int] = {}
    for ((inner, *about), _), count in moves.items():
        outer = max((n for one in about for n in copies.get(one, Counter()).values()), default=1)
        turns[inner] = max(turns.get(inner, 1), count // outer)
    return turns


class _Reader:
    """Finds the places of instructions in the sources."""

    def __init__(self, sources: SourceMap) -> None:
        self.functions: dict[str, list[tuple[range, SourcePlace]]] = {}
        self.loops: dict[str, list[SourceLoop]] = {}
        for function in sources.functions:
            self.functions.setdefault(function.path, []).append((function.lines, function.place))
        for loop in sources.loops:
            self.loops.setdefault(loop.path, []).append(loop)
        paths = {*self.functions, *self.loops}
        names = Counter(Path(path).name for path in paths)
        self.by_name = {Path(path).name: path for path in paths if names[Path(path).name] == 1}
        self.paths = paths
        self.known: dict[Location, tuple[frozenset[SourcePlace], tuple[SourceLoop, ...]]] = {}

    def outline(self, kernel: TranslatedKernel) -> _Outline:
        """Read a kernel."""
        blocks = kernel.program.blocks
        regions: dict[SourceLoop, list[Loop]] = {}
        for loop in sorted(kernel.loops, key=lambda one: one.last - one.first):  # inner ones first
            ends = [blocks[number].instructions[-1] for number in sorted(loop.latches)]
            within = {
                one
                for one, inner in regions.items()
                if any(loop.first <= i.first <= loop.last for i in inner)
            }
            if (found := self.loop_of(ends, within)) is not None:
                regions.setdefault(found, []).append(loop)
        parts = tuple(self.part(b.instructions) for b in blocks)
        compared = compared_numbers(kernel.program)
        return _Outline(parts=parts, regions=regions, form=self.form(kernel), compared=compared)

    def form(self, kernel: TranslatedKernel) -> CompiledForm:
        """Say of each block and guard of a kernel near which place of the sources it stands."""
        program = kernel.program
        text = f"{program.kernel.name}\n{program.module.text}"
        return CompiledForm(
            digest=hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
            kernel=program.kernel.name,
            blocks=tuple((n, self.near(program.blocks[n].instructions)) for n in reachable(program.blocks)),
            guards=tuple((self.near([guard.instruction]), guard.by_lane) for guard in kernel.guards),
        )

    def near(self, instructions: Sequence[Instruction]) -> SourcePlace | None:
        """Return the outermost place in the sources of the first instruction that has one."""
        for instruction in instructions:
            if (location := instruction.location) is None:
                continue
            for file, line in ((location.file, location.line), *reversed(location.inlined)):
                path = self.path_of(file)
                inside = [(len(lines), p) for lines, p in self.functions.get(path, ()) if line in lines]
                if inside:
                    return min(inside)[1]._replace(line=line)
        return None

    def loop_of(self, ends: Sequence[Instruction], within: Collection[SourceLoop]) -> SourceLoop | None:
        """Return the innermost loop of the source about all branches back of a compiled loop.

        A branch from the end of a loop inside may lead back to the outer one, and stand at the inner one's
        line. within: what loops inside have become, which it is not if there is another about it.
        """
        around = [self.at(end.location)[1] for end in ends if end.location is not None]
        known = [loops for loops in around if loops]
        if not known:
            return None
        common = [one for one in known[0] if all(one in loops for loops in known)] or [known[0][0]]
        return next((one for one in common if one not in within), common[0])

    def part(self, instructions: Sequence[Instruction]) -> _Part:
        """Read a basic block."""
        functions: set[SourcePlace] = set()
        loops: Counter[SourceLoop] = Counter()
        accesses: Counter[SourceLoop] = Counter()
        copies: dict[SourceLoop, Counter[tuple[str, Location]]] = {}
        stores: dict[SourceLoop, Counter[tuple[str, Location]]] = {}
        moves: Counter[tuple[tuple[SourceLoop, ...], tuple[str, Location]]] = Counter()
        for instruction in instructions:
            if instruction.location is None:
                continue
            places, around = self.at(instruction.location)
            functions |= places
            loops.update(around)
            parts, place = instruction.parts, (instruction.opcode, instruction.location)
            if around and (parts[0] == "bra" or (parts[0] not in _MOVES and _FLOATS & set(parts))):
                copies.setdefault(around[0], Counter())[place] += 1
            elif around and parts[0] == "st":
                stores.setdefault(around[0], Counter())[place] += 1
            elif around and _moves(parts):
                moves[around, place] += 1
            if parts[0] in _ACCESSES and parts[1] != "param":
                accesses.update(around)
        return _Part(
            functions=frozenset(functions),
            loops=loops,
            accesses=accesses,
            copies=copies,
            stores=stores,
            moved=_turns_of_moves(moves, copies),
        )

    def path_of(self, file: str) -> str:
        """Return the path of a source that compiled code names, which may have been moved since."""
        return file if file in self.paths else self.by_name.get(Path(file).name, "")

    def at(self, location: Location) -> tuple[frozenset[SourcePlace], tuple[SourceLoop, ...]]:
        """Return the functions about a place and its calls, and the loops, innermost first."""
        found = self.known.get(location)
        if found is None:
            functions: set[SourcePlace] = set()
            loops: list[SourceLoop] = []
            for file, line in (*location.inlined, (location.file, location.line)):
                path = self.path_of(file)
                functions |= {place for lines, place in self.functions.get(path, ()) if line in lines}
                around = [one for one in self.loops.get(path, ()) if line in one.body or line in one.head]
                loops += sorted(around, key=lambda one: one.place.line, reverse=True)
            found = self.known[location] = frozenset(functions), tuple(loops)
        return found

"""Finds where compiled code certainly keeps a sum in half precision, by how its values flow.

One addition in half precision is no sum: a bias, a residual or a product by a weight is added once.
These are: what another thread brought is added to the thread's own number of the same kind; an addition reads
its own result of the round before; three or more elements of one vector or row are added up; partial sums
in shared memory are added up there; a number is added under a lock to what memory holds; atomics add halves.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import TYPE_CHECKING

from verifier.machine.ptx.liveness import following
from verifier.machine.ptx.reaching_definitions import FLOATS, HALVES, OUTSIDE, ReachingDefinitions, moves
from verifier.machine.ptx.syntax import Address, Immediate, Register, Vector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction, Operand

_ADDING = frozenset({"add", "sub", "fma", "mad"})
_COMPUTING = frozenset({"mul", "neg", "abs", "min", "max", "cvt", "add", "sub", "fma", "mad"})
_ONES = frozenset({0x3C00, 0x3F80, 0x3C003C00, 0x3F803F80})  # 1 in float16, in bfloat16, and pairs of them
FEW = 3
"""So many elements of one row are no two operands of an elementwise operation (x, residual)."""
_WRITING = frozenset({"st", "stmatrix", "cp"})
_Row = tuple[frozenset[int], frozenset[int]]
"""What computed the address of a load, and that of what it finds in shared memory, if it is of that."""
_Term = tuple[frozenset[int], _Row | None]
_Counts = dict[int, Counter[_Row]]

THREADS = "numbers of several threads"
ROUNDS = "one number after the other in a loop"
ELEMENTS = "several elements of a row"
SHARED = "partial sums in shared memory"
LOCKED = "partial sums under a lock"
ATOMIC = "by atomics"


@dataclass(frozen=True, kw_only=True)
class HalfSum:
    """A place where a sum is kept in half precision: the source line, or the PTX line, and what is added."""

    place: str
    kind: str

    def __str__(self) -> str:
        """Name the place and the kind."""
        return f"{self.place}: {self.kind}"


def half_sums(program: Program) -> tuple[HalfSum, ...]:
    """Return the places where sums are certainly kept in half precision, in the order of the text."""
    if not any(HALVES & set(i.parts) for i in program.instructions()):
        return ()
    flow = Additions(program)
    found = dict.fromkeys(
        HalfSum(place=_place(flow.instructions[at]), kind=kind) for at, kind in sorted(_found(flow))
    )
    return tuple(found)


def _place(instruction: Instruction) -> str:
    return str(instruction.location) if instruction.location else f"PTX line {instruction.line}"


def _found(flow: Additions) -> Iterator[tuple[int, str]]:
    rounds, known = flow.rounds, _Counts()
    for at, instruction in enumerate(flow.instructions):
        parts = instruction.parts
        if parts[0] in ("atom", "red") and "add" in parts and parts[-1] in HALVES:
            yield at, ATOMIC
        if parts[0] == "atom" and "cas" in parts and flow.stored_sum(at, instruction.operands[-1:]):
            yield at, ATOMIC  # where no atomic addition of halves exists, it is made of exchanges
        if not flow.adds_halves(at):
            continue
        if _meets_itself(flow, at):
            yield at, THREADS
        elif at in rounds:
            yield at, ROUNDS
        elif _many_of_a_row(flow, at, known):
            yield at, ELEMENTS
        elif _locked(flow, at):
            yield at, LOCKED
    yield from _in_shared_memory(flow)


# -- how values flow ---------------------------------------------------------------------------------


class Additions(ReachingDefinitions):
    """What compiled code adds in half precision, and where the terms come from."""

    def adds_halves(self, at: int) -> bool:
        """Whether an instruction adds in half precision; a conversion that rounds a sum to half does too."""
        instruction = self.instructions[at]
        if instruction.parts[0] in _ADDING and instruction.parts[-1] in HALVES:
            return True
        return bool(self._rounded(at))

    def _rounded(self, at: int) -> set[int]:
        """Return the wider additions whose result this conversion rounds to half."""
        parts = self.instructions[at].parts
        if parts[0] != "cvt" or not HALVES & set(parts[:-1]) or parts[-1] != "f32":
            return set()
        came = {source for source, _ in self.origins(at, self.instructions[at].operands[1:])} - {OUTSIDE}
        return {s for s in came if _adds(self.instructions[s])}

    def additions(self, at: int) -> set[int]:
        """Return the additions of a half sum: itself, or the wider ones, two perhaps, that it rounds."""
        return self._rounded(at) or {at}

    def addends(self, at: int) -> list[tuple[int, Operand, bool]]:
        """Return (instruction, operand, whether it is a factor of a product) for each term of a half sum."""
        return [(adding, *term) for adding in self.additions(at) for term in self.terms(adding)]

    def terms(self, adding: int) -> list[tuple[Operand, bool]]:
        """Return (operand, whether it is a factor of a product) for each term of an addition."""
        instruction = self.instructions[adding]
        operands = instruction.operands[1:]
        if instruction.parts[0] in ("add", "sub"):
            return [(operand, False) for operand in operands]
        first, second, third = operands[:3]
        if self._one(adding, first) or self._one(adding, second):  # bfloat16 on sm_80: x * 1 + y
            return [(second if self._one(adding, first) else first, False), (third, False)]
        return [(first, True), (third, False)]

    def row(self, load: int) -> _Row:
        """Return what computed the address of a load, and that of what shared memory has its numbers from.

        A compiler stages one tensor after the other at the same place there, to give lanes other elements.
        """
        shared = any(part.startswith("shared") for part in self.instructions[load].parts)
        written = max((at for at in self._written if at < load), default=OUTSIDE) if shared else OUTSIDE
        return _address(self, load)[0], frozenset() if written == OUTSIDE else self._staged(written)

    def _staged(self, at: int) -> frozenset[int]:
        """Return what computed the one address that numbers of a store come from; else the store itself."""
        operands = self.instructions[at].operands
        if self.instructions[at].parts[0] == "cp":
            addresses = [o for o in operands if isinstance(o, Address)]
            return frozenset(self.sources(at, addresses[1:])) or frozenset({at})
        stored = [o for o in operands if not isinstance(o, Address)]
        came = {s for o in stored for s, _ in self.narrow_origins(at, o)} - {OUTSIDE}
        came = {s for s in came if self.instructions[s].parts[0] != "mov"}  # what a mask gives instead
        rows = {_address(self, s)[0] if _reads(self.instructions[s], "global") else frozenset() for s in came}
        return (next(iter(rows)) if len(rows) == 1 else frozenset()) or frozenset({at})

    @cached_property
    def _written(self) -> list[int]:
        """Instructions that write to shared memory."""
        return [
            at
            for at, instruction in enumerate(self.instructions)
            if instruction.parts[0] in _WRITING and any(p.startswith("shared") for p in instruction.parts)
        ]

    def _one(self, at: int, operand: Operand) -> bool:
        """Whether an operand is the constant 1 (or a pair of them), in either format."""
        if isinstance(operand, Immediate):
            return operand.value in _ONES
        constants = [self.instructions[s].operands[1] for s, _ in self.origins(at, [operand]) if s != OUTSIDE]
        return bool(constants) and all(isinstance(c, Immediate) and c.value in _ONES for c in constants)

    def narrow_origins(self, at: int, operand: Operand) -> set[tuple[int, bool]]:
        """Return the origins of an operand, looking through conversions that only widen a half."""
        found: set[tuple[int, bool]] = set()
        waiting, seen = [(s, b) for s, b in self.origins(at, [operand])], set()
        while waiting:
            place = waiting.pop()
            if place in seen:
                continue
            seen.add(place)
            source, brought = place
            parts = () if source == OUTSIDE else self.instructions[source].parts
            if parts and parts[0] == "cvt" and parts[-1] in HALVES and "f32" in parts:
                further = self.origins(source, self.instructions[source].operands[1:])
                waiting += [(s, b or brought) for s, b in further]
            else:
                found.add(place)
        return found

    def stored_sum(self, at: int, operands: Iterable[Operand]) -> set[int]:
        """Return the half additions whose results these operands are."""
        return {s for s, _ in self.origins(at, operands) if s != OUTSIDE and self.adds_halves(s)}

    @cached_property
    def rounds(self) -> frozenset[int]:
        """Half additions that read their own result of an earlier round of a loop."""
        return frozenset(
            at for at in range(len(self.instructions)) if self.adds_halves(at) and self._returns(at)
        )

    def _returns(self, at: int) -> bool:
        seen: set[int] = set()
        waiting = [
            s
            for term, operand, factor in self.addends(at)
            if not factor
            for s in self.sources(term, [operand])
        ]
        while waiting:
            source = waiting.pop()
            if source == at:
                return True
            if source in seen or source == OUTSIDE:
                continue
            seen.add(source)
            instruction = self.instructions[source]
            parts = instruction.parts
            if moves(instruction) or (parts[0] in _COMPUTING and parts[-1] in FLOATS):
                waiting += self.sources(source, instruction.operands[1:])
        return False


def _adds(instruction: Instruction) -> bool:
    return instruction.parts[0] in _ADDING and instruction.parts[-1] in FLOATS


# -- between threads, and within one ------------------------------------------------------------------


def _meets_itself(flow: Additions, at: int) -> bool:
    """Whether one term is another thread's copy of the other: a step of a reduction, and nothing else.

    A change of layout shuffles one of two operands, too, but not the other's own number. Where wider numbers
    are added, it must be a rounded sum that was exchanged: one sum of two halves rounds once, as it should.
    """
    sides = [flow.narrow_origins(term, operand) for term, operand, factor in flow.addends(at) if not factor]
    met = {
        place[0] for a in sides for b in sides if a is not b for place in a if (place[0], not place[1]) in b
    }
    if flow.instructions[at].parts[0] == "cvt":
        return any(source != OUTSIDE and flow.adds_halves(source) for source in met)
    return bool(met)


def _many_of_a_row(flow: Additions, at: int, known: _Counts) -> bool:
    """Whether at least `FEW` of the terms that half additions join here lie at one address."""
    return any(max(_joined(flow, one, known).values(), default=0) >= FEW for one in flow.additions(at))


def _joined(flow: Additions, last: int, known: _Counts) -> Counter[_Row]:
    """Count the terms that lie at one address, of an addition and of the half sums among its terms.

    known: the counts of additions, which come to it before those that they are terms of: a chain may be
    longer than Python calls functions. In a circle the one that was come to first counts as no sum.
    """
    waiting, begun = [last], dict[int, list[_Term]]()
    while waiting:
        adding = waiting[-1]
        if adding not in begun and adding not in known:
            begun[adding] = list(_sums_and_rows(flow, adding))
            waiting += [s for sums, _ in begun[adding] for s in sums if s not in begun and s not in known]
            continue
        waiting.pop()
        if adding not in known:
            known[adding] = _counted(begun[adding], known)
    return known[last]


def _counted(terms: Iterable[_Term], known: _Counts) -> Counter[_Row]:
    """Count the terms of an addition. A conversion may pack two sums, of which a term is either."""
    counted: Counter[_Row] = Counter()
    for sums, row in terms:
        if sums:
            counted += reduce(or_, [known.get(one, Counter()) for one in sums])
        elif row:
            counted[row] += 1
    return counted


def _sums_and_rows(flow: Additions, adding: int) -> Iterator[_Term]:
    """Yield, of each term of an addition, the half sums that it may be, or else the place that it lies at."""
    for operand, _ in flow.terms(adding):
        sources = {s for s, _ in flow.narrow_origins(adding, operand)} - {OUTSIDE}
        sums = frozenset(one for s in sources if flow.adds_halves(s) for one in flow.additions(s))
        yield sums, None if sums else _row(flow, sources)


def _row(flow: Additions, sources: set[int]) -> _Row | None:
    """Return the one place that these numbers, or the factors of these products, lie at."""
    products = {s for s in sources if flow.instructions[s].parts[0] == "mul"}
    loaded = sources - products
    for product in products:
        operands = flow.instructions[product].operands[1:2]
        loaded |= {s for o in operands for s, _ in flow.narrow_origins(product, o)} - {OUTSIDE}
    rows = {flow.row(s) for s in loaded if flow.instructions[s].parts[0] == "ld"}
    others = [s for s in loaded if flow.instructions[s].parts[0] not in ("ld", "mov")]
    found = next(iter(rows)) if len(rows) == 1 and not others else None
    return found if found and found[0] else None


# -- in memory ---------------------------------------------------------------------------------------


def _address(flow: Additions, at: int) -> tuple[frozenset[int], str, int]:
    """Return what computed an access's address, the variable it lies in, and the offset."""
    place = next((o for o in flow.instructions[at].operands if isinstance(o, Address)), None)
    if place is None:
        return frozenset(), "", 0
    if isinstance(place.base, Register):
        return frozenset(flow.sources(at, [place])), "", place.offset
    return frozenset(), str(place.base), place.offset


def _in_shared_memory(flow: Additions) -> Iterator[tuple[int, str]]:
    """Find sums of two numbers of shared memory that go back to where one of them was read."""
    found: set[int] = set()
    for at, instruction in enumerate(flow.instructions):
        if instruction.parts[0] != "st" or "shared" not in instruction.parts:
            continue
        for adding in flow.stored_sum(
            at, [v for v in instruction.operands if isinstance(v, Register | Vector)]
        ):
            terms = [_loads(flow, term, operand, "shared") for term, operand, _ in flow.addends(adding)]
            if all(terms) and any(_address(flow, s) == _address(flow, at) for term in terms for s in term):
                found.add(adding)
    blocks = {flow.blocks[adding] for adding in found}
    # One step alone may be an elementwise sum of two things that were staged there.
    if len(found) > 1 or any(block in _after(flow.program, block) for block in blocks):
        yield from ((adding, SHARED) for adding in found)


def _loads(flow: Additions, at: int, operand: Operand, space: str) -> set[int]:
    """Return the loads of halves from a space that an operand of an addition comes from."""
    direct = {s for s, _ in flow.origins(at, [operand])}
    if flow.instructions[at].parts[-1] not in HALVES:  # a wider addition: its operand must be a widened half
        direct = {s for s, _ in flow.narrow_origins(at, operand)} - direct
    return {s for s in direct - {OUTSIDE} if _reads(flow.instructions[s], space)}


def _reads(instruction: Instruction, space: str) -> bool:
    return instruction.parts[0] == "ld" and any(part.startswith(space) for part in instruction.parts)


def _after(program: Program, number: int, without: frozenset[int] = frozenset()) -> set[int]:
    """Return the blocks that may run after a block."""
    found: set[int] = set()
    waiting = [number]
    while waiting:
        for block in following(program.blocks, waiting.pop()):
            if block not in found and block not in without:
                found.add(block)
                waiting.append(block)
    return found


def _locked(flow: Additions, at: int) -> bool:
    """Whether a term is read from memory after waiting for other threads, with a release still to come."""
    spins = frozenset(n for n, block in enumerate(flow.program.blocks) if block.spins)
    if not spins:
        return False
    loads = {s for term, operand, _ in flow.addends(at) for s in _loads(flow, term, operand, "global")}
    free = {0, *_after(flow.program, 0, spins)} | spins
    if all(flow.blocks[load] in free for load in loads):
        return False
    here, behind = flow.blocks[at], _after(flow.program, flow.blocks[at])
    return any(
        (i.parts[0] == "atom" or "release" in i.parts)
        and (flow.blocks[n] in behind or (flow.blocks[n] == here and n > at))
        for n, i in enumerate(flow.instructions)
    )

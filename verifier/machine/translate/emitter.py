"""Translation of a program to Python: one line of numpy per instruction, for all lanes and for a subset."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from verifier.machine.execute.findings import UnsupportedFeature, meaning
from verifier.machine.execute.memory import LOCAL_WINDOW, REGION_SHIFT, SHARED_WINDOW
from verifier.machine.operations.operation import Operation
from verifier.machine.operations.resolve import resolve
from verifier.machine.ptx import liveness
from verifier.machine.ptx.basic_blocks import EXIT, is_barrier, is_collective, is_of_cluster
from verifier.machine.ptx.syntax import (
    BITS,
    CARRY,
    Immediate,
    Instruction,
    Operand,
    Pair,
    Register,
    Unread,
    Vector,
)
from verifier.machine.translate import emit_barriers, emit_memory, emit_warps
from verifier.machine.translate.expressions import Code, ShadowEmitter, UnknownName, Writer
from verifier.machine.translate.uniformity import RegisterShapes

if TYPE_CHECKING:
    from collections.abc import Collection

    from verifier.machine.ptx.basic_blocks import Program

_IGNORED = frozenset(
    {
        "prefetch",
        "prefetchu",
        "applypriority",
        "nanosleep",
        "griddepcontrol",
        "setmaxnreg",
        "pmevent",
    }
)


class RegisterViews(NamedTuple):
    """A register: bits, shape class, whether it may be read before it is written, numpy types by name."""

    width: int
    shape: int
    exposed: bool
    views: dict[str, str]


class SeenAs(NamedTuple):
    """Which of some registers the code sees in one numpy type, and by what names, as arrays and flat.

    places: among them; None where all are seen so, in order.
    """

    places: tuple[int, ...] | None
    names: tuple[str, ...]
    flat_names: tuple[str, ...]


class AlikeRegisters(NamedTuple):
    """Registers of one width, shape class and exposure: their names, and by numpy type how they are seen."""

    width: int
    shape: int
    exposed: bool
    names: tuple[str, ...]
    views: dict[str, SeenAs]


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """Python of a program: what prepares a wave, and a function for each block.

    prologue: what is constant over a wave, `renew`, `renew_shadows` and the `members_<block>` of some. full,
    part: by block, for all lanes and for a subset; `part` is empty where lanes never part. members: blocks
    that begin with a collective whose member mask is in a register. registers, shadows: what to allocate, by
    name; a shadow by an expression.
    """

    prologue: str
    full: list[str]
    part: list[str]
    members: tuple[int, ...]
    registers: dict[str, RegisterViews]
    shadows: dict[str, str]

    @cached_property
    def alike(self) -> tuple[AlikeRegisters, ...]:
        """The registers, those that are alike together."""
        groups: dict[tuple[int, int, bool], dict[str, RegisterViews]] = {}
        for base, register in self.registers.items():
            groups.setdefault((register.width, register.shape, register.exposed), {})[base] = register
        return tuple(
            AlikeRegisters(*kind, names=tuple(several), views=_views(several.values()))
            for kind, several in groups.items()
        )


def _views(registers: Collection[RegisterViews]) -> dict[str, SeenAs]:
    seen: dict[str, list[tuple[int, str]]] = {}
    for number, register in enumerate(registers):
        for name, dtype in register.views.items():
            seen.setdefault(dtype, []).append((number, name))
    found = {}
    for dtype, several in seen.items():
        numbers, names = tuple(number for number, _ in several), tuple(name for _, name in several)
        every = numbers == tuple(range(len(registers)))
        found[dtype] = SeenAs(None if every else numbers, names, tuple(f"{name}_flat" for name in names))
    return found


class Emitter:
    """Walks a program and writes its Python."""

    def __init__(
        self, program: Program, shapes: RegisterShapes, shadow_emitter: ShadowEmitter | None = None
    ) -> None:
        """`shadow_emitter`: writes the lines that keep shadows, or None."""
        self.program, self.shapes, self.shadow_emitter = program, shapes, shadow_emitter
        self.code = Code(program=program, shapes=shapes)
        self.sites: list[Instruction] = []
        self.named: list[int] = []
        self.exposed = liveness.exposed(program)

    def emit(self) -> Emitted:
        """Write every block, for all lanes and for some, and what has to be there before they run."""
        blocks = range(len(self.program.blocks))
        full = [self.function(number, part=False) for number in blocks]
        part = [] if self.shapes.uniform else [self.function(number, part=True) for number in blocks]
        members = [] if self.shapes.uniform else self.members()
        prologue = [*self.prologue(), *self.renewal(), *members]
        return Emitted(
            prologue="\n".join(prologue),
            full=full,
            part=part,
            members=tuple(self.named),
            registers=self.registers(),
            shadows=self.shadows(),
        )

    def members(self) -> list[str]:
        """Write a function for each block that begins with a collective whose mask is in a register."""
        lines = []
        for number, block in enumerate(self.program.blocks):
            first = block.instructions[0] if block.instructions else None
            if first is None or not is_collective(first) or not isinstance(first.operands[-1], Register):
                continue
            if first.parts[0] in ("ldmatrix", "stmatrix"):
                continue
            writer = Writer(self.code, part=True)
            mask = writer.source(first.operands[-1], "u32")
            self.named.append(number)
            setup = [f"    {name} = g.{'span' if name == 'ix' else name}" for name in sorted(writer.needs)]
            lines += [f"def members_{number}(g):", *setup, f"    return {mask}"]
        return lines

    def registers(self) -> dict[str, RegisterViews]:
        """Give every register by its Python name."""
        found: dict[str, RegisterViews] = {}
        for register, dtype in sorted(self.code.views):
            base = self.code.register(register)
            width, shape = self.code.width(register), self.shapes.of(register)
            known = found.setdefault(base, RegisterViews(width, shape, register in self.exposed, {}))
            known.views[self.code.view(register, dtype)] = dtype
        return found

    def shadows(self) -> dict[str, str]:
        """Give the expression that allocates each shadow register, by its Python name."""
        return {
            name: self.shadow_emitter.allocation(self.shapes.of(register), tags, register in self.exposed)
            for name, (register, tags) in self.code.shadows.items()
            if self.shadow_emitter is not None
        }

    def prologue(self) -> list[str]:
        """Compute what is constant over a wave."""
        return [
            "everyone = wave.everyone",
            *(f"{name} = {expression}" for expression, name in self.code.lazy.items()),
        ]

    def renewal(self) -> list[str]:
        """Write `renew()`, which computes anew, in place, what the wave tells for another launch.

        And `renew_shadows()`, which does so for what the slots of another session tell.
        """
        lines = ["def renew():", "    pass"]
        for expression, name in self.code.lazy.items():
            if expression.startswith("wave."):
                lines.append(f"    copyto({name}, {expression})")
        lines += ["def renew_shadows():", "    pass"]
        for expression, name in self.code.lazy.items():
            if expression.startswith("slots."):
                lines.append(f"    copyto({name}, {expression})")
        return lines

    def function(self, number: int, *, part: bool) -> str:
        """Write one basic block in one form, as a function called `block`."""
        writer = Writer(self.code, part=part, shadow_emitter=self.shadow_emitter)
        block = self.program.blocks[number]
        following = number + 1 if number + 1 < len(self.program.blocks) else EXIT
        ended = False
        for instruction in block.instructions:
            self.sites.append(instruction)
            writer.site = len(self.sites) - 1
            writer.narrow = writer.one_block = False
            written = len(writer.lines)
            try:
                ended = self.instruction(writer, instruction, block.target, following)
            except UnsupportedFeature as lacking:
                del writer.lines[written:]
                self.lacks(writer, instruction, lacking)
        if not ended:
            writer.add(f"return {following}")
        names = {"ix": "ix = g.span", "it": "it = g.it", "ib": "ib = g.ib"}
        setup = [names[name] for name in sorted(writer.needs)] if part else []
        head = "def block(g):" if part else "def block():"
        return "\n".join([head, *(f"    {line}" for line in [*setup, *writer.lines])])

    def lacks(self, writer: Writer, instruction: Instruction, lacking: UnsupportedFeature) -> None:
        """Write that the launch ends here if a lane executes it; what is never reached does no harm."""
        writer.narrow = False
        guard = writer.guard(instruction)
        writer.add(f"wave.lacks({writer.code.constant(lacking)}, {guard})")

    def instruction(
        self, writer: Writer, instruction: Instruction, target: int | None, following: int
    ) -> bool:
        """Write one instruction; True if it ends the block by itself.

        Raises UnsupportedFeature for an instruction outside the subset.
        """
        name = instruction.parts[0]
        unread = next((o.text for o in instruction.operands if isinstance(o, Unread)), None)
        if name not in _IGNORED and unread is not None:
            raise writer.refuse(instruction, "" if meaning(instruction.opcode) else f"operand {unread}")
        try:
            return self.known(writer, instruction, target, following)
        except UnknownName as unknown:
            raise writer.refuse(instruction, str(unknown)) from None
        except (AssertionError, IndexError, KeyError, StopIteration, TypeError, ValueError) as unknown:
            # An opcode that is known by its first words, in a form that is not.
            why = f"in this form ({type(unknown).__name__}: {unknown})"
            raise writer.refuse(instruction, why) from unknown

    def known(self, writer: Writer, instruction: Instruction, target: int | None, following: int) -> bool:
        """Write one instruction whose operands are read; True if it ends the block by itself."""
        name = instruction.parts[0]
        if self.shadow_emitter is not None:
            self.shadow_emitter.before(writer, instruction)
        if name in ("bra", "ret", "exit"):
            self.branch(writer, instruction, target, following)
            return True
        if is_barrier(instruction):
            return emit_barriers.of_block(writer, instruction, following)
        if is_of_cluster(instruction):
            return emit_barriers.of_cluster(writer, instruction, following)
        if emit_memory.write(writer, instruction) or emit_warps.write(writer, instruction):
            return False
        if name in _IGNORED or instruction.parts[:2] == ("bar", "warp"):
            return False
        if self.address_arithmetic(writer, instruction) or self.pack(writer, instruction):
            return False
        if name == "call":
            self.runtime_call(writer, instruction)
            return False
        if name == "trap":
            writer.add(f"wave.fail({writer.site}, {writer.group}, 'trap', {writer.guard(instruction)})")
            return False
        operation = resolve(instruction.opcode)
        if operation is None:
            raise writer.refuse(instruction)
        self.pure(writer, instruction, operation)
        return False

    # Control flow.

    def branch(self, writer: Writer, instruction: Instruction, target: int | None, following: int) -> None:
        """`bra`, `ret` and `exit`, guarded or not."""
        to = target if instruction.parts[0] == "bra" else EXIT
        guard = writer.guard(instruction)
        if guard is None:
            writer.add(f"return {to}")
        else:
            writer.add(f"return wave.branch({writer.group}, {guard}, {to}, {following})")

    # Values.

    def destinations(self, operand: Operand) -> tuple[Operand, ...]:
        """Give the registers that a destination operand names."""
        if isinstance(operand, Pair):
            return (operand.first, operand.second)
        return operand.items if isinstance(operand, Vector) else (operand,)

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Write an operation without side effects."""
        targets = self.destinations(instruction.operands[0])
        writer.narrow = writer.is_narrow(targets)
        sources = [
            writer.source(operand, kind)
            for operand, kind in zip(instruction.operands[1:], operation.sources, strict=False)
        ]
        if len(sources) != len(operation.sources):
            raise writer.refuse(instruction, f"{len(sources)} operands instead of {len(operation.sources)}")
        if operation.carry_in:
            sources.append(writer.source(Register(CARRY), "pred"))
        if operation.model:
            sources.insert(0, "model")
        guard = writer.guard(instruction)
        shadowed = self.shadow_emitter is not None and self.shadow_emitter.follows(instruction)
        plain = not shadowed and len(targets) == 1 and not operation.carry_out
        if plain and operation.moves:
            writer.assign(targets[0], operation.results[0], sources[0], guard)
            return
        whole = plain and (not writer.part or writer.narrow) and self.fits(targets[0], operation)
        if whole and operation.casts:
            writer.assign(targets[0], operation.results[0], sources[0], guard, cast=True)
            return
        shift = self.fixed_shift(instruction, operation)
        if shift is None:
            function, in_place = self.function_name(writer, operation), operation.out
        else:
            function, in_place = shift.__name__, True
            sources[1] = writer.source(instruction.operands[2], operation.sources[0])
        if whole and in_place and not guard:
            target = targets[0]
            assert isinstance(target, Register)
            out = writer.code.view(target.name, writer.destination_type(target.name, operation.results[0]))
            writer.add(f"{function}({', '.join(sources)}, out={out})")
            return
        several = len(operation.results) > 1 or operation.carry_out
        writer.add(f"{'v0, v1' if several else 'v0'} = {function}({', '.join(sources)})")
        if self.shadow_emitter is not None:
            self.shadow_emitter.pure(writer, instruction, operation)
        if isinstance(instruction.operands[0], Pair) and not several:
            writer.assign(targets[0], operation.results[0], "v0", guard)
            self.second_predicate(writer, instruction, targets[1], operation, guard)
            return
        writer.assign(targets[0], operation.results[0], "v0", guard)
        if operation.carry_out:
            writer.assign(Register(CARRY), "pred", "v1", guard)
        elif several:
            writer.assign(targets[1], operation.results[1], "v1", guard)

    def second_predicate(
        self,
        writer: Writer,
        instruction: Instruction,
        target: Operand,
        operation: Operation,
        guard: str | None,
    ) -> None:
        """`setp p|q`: q holds where the comparison does not, joined with the same third operand."""
        if len(operation.sources) > 2:
            raise writer.refuse(instruction, "two results with a third operand")
        writer.assign(target, "pred", "~v0", guard)

    def fits(self, target: Operand, operation: Operation) -> bool:
        """Whether the result can be written in place."""
        return isinstance(target, Register) and self.code.width(target.name) == BITS[operation.results[0]]

    def fixed_shift(self, instruction: Instruction, operation: Operation) -> np.ufunc | None:
        """Give NumPy's shift where the distance is a number below the width: beyond, C leaves it open."""
        distance = instruction.operands[-1]
        if operation.name not in ("shl", "shr") or not isinstance(distance, Immediate):
            return None
        if not 0 <= distance.value < BITS[operation.sources[0]]:
            return None
        return np.left_shift if operation.name == "shl" else np.right_shift

    def function_name(self, writer: Writer, operation: Operation) -> str:
        """Name of a function in emitted code, readable for numpy's own."""
        if isinstance(operation.function, np.ufunc):
            return operation.function.__name__
        return writer.code.constant(operation.function)

    def pack(self, writer: Writer, instruction: Instruction) -> bool:
        """`mov.b32 {a, b}, r` and `mov.b32 r, {a, b}`: registers cut into parts and put together."""
        if instruction.parts[0] != "mov" or not any(isinstance(o, Vector) for o in instruction.operands):
            return False
        target, origin = instruction.operands
        width = BITS[instruction.parts[-1]]
        guard = writer.guard(instruction)
        if isinstance(origin, Vector):
            self.join(writer, target, origin, width, guard)
        elif isinstance(target, Vector):
            self.split(writer, target, origin, width, guard)
        if self.shadow_emitter is not None:
            self.shadow_emitter.move(writer, instruction, "pack")
        return True

    def join(self, writer: Writer, target: Operand, origin: Vector, width: int, guard: str | None) -> None:
        """Put parts together, the first lowest."""
        each = width // len(origin.items)
        writer.narrow = writer.is_narrow((target,))
        pieces = []
        for number, item in enumerate(origin.items):
            word = writer.source(item, f"u{each}")
            piece = f"{word}.astype('u{width // 8}')"
            shift = writer.code.constant(np.array(each * number, dtype=f"u{width // 8}"))
            pieces.append(f"({piece} << {shift})" if number else piece)
        writer.assign(target, f"u{width}", " | ".join(pieces), guard)

    def split(self, writer: Writer, target: Vector, origin: Operand, width: int, guard: str | None) -> None:
        """Cut a register into parts, the first lowest."""
        each = width // len(target.items)
        writer.narrow = writer.is_narrow(target.items)
        word = writer.source(origin, f"u{width}")
        writer.add(f"w = {word}")
        for number, item in enumerate(target.items):
            shift = writer.code.constant(np.array(each * number, dtype=f"u{width // 8}"))
            moved = f"(w >> {shift})" if number else "w"
            writer.narrow = writer.is_narrow((item,))
            writer.assign(item, f"u{each}", f"{moved}.astype('u{each // 8}')", guard)

    def address_arithmetic(self, writer: Writer, instruction: Instruction) -> bool:
        """`cvta` and `isspacep`: generic addresses begin with the number of their window."""
        parts = instruction.parts
        if parts[0] not in ("cvta", "isspacep"):
            return False
        guard = writer.guard(instruction)
        writer.narrow = writer.is_narrow((instruction.operands[0],))
        kind = parts[-1] if parts[-1] in BITS else "u64"
        value = writer.source(instruction.operands[1], "u64")
        space = next(
            (
                p.split("::")[0]
                for p in parts[1:]
                if p.split("::")[0] in ("shared", "local", "global", "const", "param")
            ),
            "global",
        )
        window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space)
        shifted = writer.code.constant(np.array((window or 0) << REGION_SHIFT, dtype="u8"))
        if parts[0] == "isspacep":
            shift = writer.code.constant(np.array(REGION_SHIFT, dtype="u8"))
            if window:
                test = f"({value} >> {shift}) == {window}"
            else:
                test = (
                    f"~((({value} >> {shift}) == {SHARED_WINDOW}) | (({value} >> {shift}) == {LOCAL_WINDOW}))"
                )
            writer.assign(instruction.operands[0], "pred", test, guard)
            return True
        if window and "to" in parts:
            value = f"({value} & {writer.code.constant(np.array(0xFFFFFFFF, dtype='u8'))})"
        elif window:
            value = f"({value} | {shifted})"
        if kind != "u64":
            value = f"{value}.astype('u4')"
        writer.assign(instruction.operands[0], kind, value, guard)
        if self.shadow_emitter is not None:
            self.shadow_emitter.move(writer, instruction, "address")
        return True

    def runtime_call(self, writer: Writer, instruction: Instruction) -> None:
        """`vprintf` prints nothing; `__assertfail` is the kernel's own assertion."""
        if instruction.callee == "__assertfail":
            writer.add(f"wave.fail({writer.site}, {writer.group}, 'an assertion in the kernel failed', None)")
        elif instruction.callee != "vprintf":
            raise writer.refuse(instruction, f"call to {instruction.callee}")

"""Values that were never written: followed silently through arithmetic, reported where they take effect.

A register has one bit for each of its half-words, since compilers pack a value with an undefined half
and unpack it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import collectives
from verifier.machine.execute.memory import Fault
from verifier.machine.ptx.syntax import BITS, Address, Immediate, Instruction, Operand, Pair, Register, Vector
from verifier.machine.translate.slot_layouts import names, sources, targets

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.extents import GridExtents
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.memory import Located, Region
    from verifier.machine.model import Machine
    from verifier.machine.operations.operation import Operation
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.translate.expressions import Writer
    from verifier.machine.translate.uniformity import RegisterShapes

LARGEST = 1 << 26  # bytes of a tensor up to which it is filled with the poison and watched
_ALL = np.uint8(15)  # four half-words
_RUN = 8  # so many poisoned bytes in a row, aligned, count as never written

SANITIZES = frozenset({"uninitialised"})


class Flags:
    """One flag a byte of memory: true where nothing has been written."""

    def __init__(self, extents: GridExtents, poison: int | None) -> None:
        """Keep the extents of the wave, and the byte that fills what is not written."""
        self.shape = (extents.blocks, extents.threads)
        self.poison = 0xA5 if poison is None else poison & 0xFF

    def fresh(self) -> Array:
        """Give the flags of a register: nothing has been written yet."""
        return np.full(self.shape, _ALL, dtype=np.uint8)

    def spread(self, value: object) -> Array:
        """All half-words of a result depend on all of the operands."""
        return np.where(np.asarray(value) != 0, _ALL, np.uint8(0))

    def of(self, region: Region) -> Array:
        """Give the flags of a region; tensors count as unwritten where words still hold the poison."""
        if region.flags is None:
            if region.number == 0:
                region.flags = np.ones(region.size, dtype=bool)
            elif region.size > LARGEST:
                region.flags = np.zeros(region.size, dtype=bool)
            else:
                region.flags = self.poisoned(region.octets)
        return region.flags

    def poisoned(self, octets: Array) -> Array:
        """Bytes that belong to an aligned run of poison."""
        flags = np.zeros(octets.size, dtype=bool)
        whole = octets.size // _RUN * _RUN
        runs = (octets[:whole].reshape(-1, _RUN) == self.poison).all(axis=1)
        flags[:whole] = np.repeat(runs, _RUN)
        return flags

    def load(self, found: list[Located], shape: tuple[int, ...], width: int) -> Array:
        """Whether any byte of each lane's access was never written."""
        result = np.zeros(shape, dtype=np.uint8)
        for located in found:
            flags = self.of(located.region)
            missing = np.zeros(located.offsets.shape, dtype=bool)
            for byte in range(width):
                missing |= flags[located.offsets + byte]
            if located.selection is None:
                result = self.spread(np.broadcast_to(missing, shape))
            else:
                result[located.selection] = self.spread(missing)
        return result

    def save(self, found: list[Located], width: int, value: Array | bool) -> None:
        """Mark the bytes of a store."""
        for located in found:
            flags = self.of(located.region)
            active = located.active(value) != 0 if isinstance(value, np.ndarray) else bool(value)
            for byte in range(width):
                flags[located.offsets + byte] = active

    def check(self, site: int, _group: Group, flags: Array, mask: Array | None, what: str) -> None:
        """Report the first active lane whose value was never written."""
        wrong = np.asarray(flags) != 0
        wrong = wrong if mask is None else wrong & mask
        if not np.any(wrong):
            return
        shape = np.shape(wrong)
        place = int(np.flatnonzero(wrong.reshape(-1))[0])
        raise Fault("uninitialised", site, place, shape, f"{what} was never written")

    def check_store(self, site: int, found: list[Located], value: Array, what: str) -> None:
        """Report a store of an unwritten value to global memory."""
        for located in found:
            if located.region.number == 0 or not np.ndim(value):
                continue
            active = np.broadcast_to(located.active(value), located.offsets.shape).reshape(-1) != 0
            if active.any():
                place = int(np.flatnonzero(active)[0])
                if located.selection is not None:
                    place = int(np.flatnonzero(located.selection.reshape(-1))[place])
                raise Fault(
                    "uninitialised",
                    site,
                    place,
                    located.shape,
                    f"{what} was never written",
                    tensor=located.region.name,
                )


class FlagEmitter:
    """Writes the lines that keep one flag for every register."""

    def __init__(self, program: Program, shapes: RegisterShapes) -> None:
        """All registers have one value a lane here."""
        self.program, self.shapes = program, shapes

    def allocation(self, shape: int, tags: bool, exposed: bool) -> str:
        """Expression that allocates a flag register."""
        return "flags.fresh()"

    def follows(self, instruction: Instruction) -> bool:
        """Whether there is anything to write for an operation without side effects."""
        return True

    def broken(self) -> tuple[Instruction, ...]:
        """Give nothing: flags pass through every instruction."""
        return ()

    def flag(self, writer: Writer, register: str) -> str:
        """Expression of a register's flag in the lanes of this form."""
        name = f"U_{writer.code.register(register)}"
        writer.code.shadows[name] = (register, False)
        if not writer.part:
            return name
        writer.needs.add("ix")
        return f"{name}_flat[ix]"

    def any_of(self, writer: Writer, registers: list[str]) -> str:
        """Expression that is true where any register is unwritten."""
        return " | ".join(dict.fromkeys(self.flag(writer, r) for r in registers)) or "np.uint8(0)"

    def write(self, writer: Writer, register: str, value: str, guard: str | None) -> None:
        """Set a flag where the guard holds."""
        name = f"U_{writer.code.register(register)}"
        writer.code.shadows[name] = (register, False)
        if not writer.part:
            writer.add(f"copyto({name}, {value}{f', where={guard}' if guard else ''})")
            return
        writer.needs.add("ix")
        merged = f"where({guard}, {value}, {name}_flat[ix])" if guard else value
        writer.add(f"{name}_flat[ix] = {merged}")

    def before(self, writer: Writer, instruction: Instruction) -> None:
        """Check what takes effect: addresses, guards of memory operations, branch conditions."""
        name = instruction.parts[0]
        if name in ("bra", "ret", "exit") and instruction.guard is not None:
            self.check(writer, self.flag(writer, instruction.guard.name), None, "the condition of a branch")
        if name not in ("ld", "st", "atom", "red", "cp", "ldmatrix", "stmatrix"):
            return
        guard = writer.guard(instruction)
        if instruction.guard is not None:
            self.check(
                writer, self.flag(writer, instruction.guard.name), None, "the guard of a memory access"
            )
        bases = [
            o.base.name
            for o in instruction.operands
            if isinstance(o, Address) and isinstance(o.base, Register)
        ]
        if bases:
            self.check(writer, self.any_of(writer, bases), guard, "an address")

    def check(self, writer: Writer, flags: str, mask: str | None, what: str) -> None:
        """Write a check."""
        writer.add(f"flags.check({writer.site}, {writer.group}, {flags}, {mask}, {what!r})")

    def pure(self, writer: Writer, instruction: Instruction, operation: Operation) -> None:
        """Results are unwritten where an operand is; a choice takes the flag of its side."""
        read = sources(instruction)
        guard = writer.guard(instruction)
        if operation.name == "selp" and isinstance(instruction.operands[3], Register):
            first, second, predicate = instruction.operands[1:]
            condition = writer.source(predicate, "pred")
            sides = [self.any_of(writer, names(o)) for o in (first, second)]
            undecided = self.flag(writer, instruction.operands[3].name)
            value = f"where({condition}, {sides[0]}, {sides[1]}) | flags.spread({undecided})"
        else:
            value = self.result(writer, instruction, operation, self.any_of(writer, read))
        for register in self.written(instruction):
            self.write(writer, register, value, guard)

    def result(self, writer: Writer, instruction: Instruction, operation: Operation, value: str) -> str:
        """Expression of a result's flags; operations that keep half-words apart keep their flags apart."""
        name, operands = operation.name, instruction.operands
        if name in ("mov", "and", "or", "xor", "not") or (
            operation.results[0].endswith("x2") and name != "cvt"
        ):
            return value
        if name == "cvt" and operation.results[0] in ("f16x2", "bf16x2") and len(operation.sources) == 2:
            upper, lower = (self.any_of(writer, names(o)) for o in operands[1:3])
            return f"(flags.spread({upper}) & 2) | (flags.spread({lower}) & 1)"
        kinds = (operation.results[0], operation.sources[0])
        if name == "cvt" and all(k[0] in "us" for k in kinds) and BITS[kinds[0]] < BITS[kinds[1]]:
            return f"flags.spread({value} & {(1 << max(BITS[kinds[0]] // 16, 1)) - 1})"
        if name in ("shl", "shr") and isinstance(operands[2], Immediate) and operands[2].value % 16 == 0:
            return f"({value} {'<<' if name == 'shl' else '>>'} {operands[2].value // 16}) & 15"
        return f"flags.spread({value})"

    def pack(self, writer: Writer, instruction: Instruction, guard: str | None) -> None:
        """`mov` that joins or splits registers: each part keeps its own flags."""
        target, origin = instruction.operands
        halves = BITS[instruction.parts[-1]] // 16
        if isinstance(origin, Vector) and isinstance(target, Register):
            each = max(halves // len(origin.items), 1)
            mask = (1 << each) - 1
            parts = [
                f"((({self.any_of(writer, names(o))}) & {mask}) << {n * each})"
                for n, o in enumerate(origin.items)
            ]
            self.write(writer, target.name, f"({' | '.join(parts)}) & 15", guard)
        elif isinstance(target, Vector):
            each = max(halves // len(target.items), 1)
            value = self.any_of(writer, names(origin))
            for number, item in enumerate(target.items):
                if isinstance(item, Register):
                    self.write(writer, item.name, f"({value} >> {number * each}) & {(1 << each) - 1}", guard)

    def written(self, instruction: Instruction) -> list[str]:
        """List the registers that an instruction writes, both of a pair."""
        first = instruction.operands[0]
        if isinstance(first, Pair):
            return names(first.first) + names(first.second)
        return names(first)

    def move(self, writer: Writer, instruction: Instruction, kind: str) -> None:
        """Follow flags through memory, packing and shuffles."""
        guard = writer.guard(instruction)
        if kind == "pack":
            self.pack(writer, instruction, guard)
        elif kind == "address":
            value = self.any_of(writer, sources(instruction))
            for register in targets(instruction):
                self.write(writer, register, value, guard)
        elif kind == "load":
            width = _width(instruction)
            for name in names(instruction.operands[0]):
                self.write(writer, name, f"flags.load(wave.found, m[0].shape, {width})", guard)
        elif kind == "store":
            value = self.any_of(writer, names(instruction.operands[1]))
            writer.add(f"u = {value}")
            writer.add(f"flags.check_store({writer.site}, wave.found, u, 'the value stored')")
            writer.add(f"flags.save(wave.found, {_width(instruction)}, u)")
        elif kind == "shfl":
            self.shuffle(writer, instruction)
        elif kind == "atomic":
            self.check(
                writer,
                f"np.asarray({self.any_of(writer, names(instruction.operands[-1]))})",
                guard,
                "an atomic's operand",
            )
        elif kind not in ("ldmatrix", "stmatrix", "copy"):
            for register in self.written(instruction) if instruction.operands else []:
                self.write(writer, register, "0", guard)

    def shuffle(self, writer: Writer, instruction: Instruction) -> None:
        """Move flags as the values move."""
        target, origin, distance, control = instruction.operands[:4]
        first = target.first if isinstance(target, Pair) else target
        mode = instruction.parts[2] if instruction.parts[1] == "sync" else instruction.parts[1]
        function = writer.code.constant(collectives.shuffle)
        where = f"{writer.source(distance, 'b32')}, {writer.source(control, 'b32')}"
        if isinstance(first, Register) and names(origin):
            moved = f"{function}({writer.group}, {mode!r}, {self.any_of(writer, names(origin))}, {where})[0]"
            self.write(writer, first.name, moved, None)
        elif isinstance(first, Register):
            self.write(writer, first.name, "0", None)
        if isinstance(target, Pair) and isinstance(target.second, Register):
            self.write(writer, target.second.name, "0", None)

    def matrix(self, writer: Writer, item: Operand, half: int, loading: bool) -> None:
        """Follow one half-word of `ldmatrix` or `stmatrix`."""
        if not isinstance(item, Register):
            return
        if not loading:
            writer.add(f"flags.save(wave.found, 2, {self.flag(writer, item.name)})")
            return
        loaded = f"flags.load(wave.found, {'hi' if half else 'lo'}.shape, 2)"
        self.write(writer, item.name, f"{loaded} | {self.flag(writer, item.name)}" if half else loaded, None)


def _width(instruction: Instruction) -> int:
    """Bytes of a whole access, all elements of a vector together."""
    count = next((int(p[1:]) for p in instruction.parts if p in ("v2", "v4", "v8")), 1)
    return BITS[instruction.parts[-1]] // 8 * count


def poison_storage(tensor: torch.Tensor, poison: int) -> None:
    """Fill fresh memory with the poison, so that what nobody writes can be told."""
    import ctypes

    storage = tensor.untyped_storage()
    if 0 < storage.nbytes() <= LARGEST:
        ctypes.memset(storage.data_ptr(), poison, storage.nbytes())


def monitor(machine: Machine, *, replicated: bool) -> None:
    """Make nothing: the emitted code keeps the flags."""

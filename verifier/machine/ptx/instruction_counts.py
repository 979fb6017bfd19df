"""Static reading of a compiled kernel: what its arithmetic promises and what it does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verifier.machine.execute.findings import LaunchError
from verifier.machine.kept_results import kept
from verifier.machine.ptx import basic_blocks
from verifier.machine.ptx.half_sums import HalfSum, half_sums
from verifier.machine.ptx.parser import parsed
from verifier.machine.ptx.reaching_definitions import FLOATS, HALVES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verifier.machine.ptx.syntax import Instruction

_SUMS = frozenset({"add", "sub", "fma", "mad"})
_ROUNDINGS = frozenset({"rn", "rz", "rm", "rp"})


@dataclass(frozen=True, kw_only=True)
class InstructionCounts:
    """Counts of instructions in one kernel, as the PTX has them.

    `approximate`: by name (div, sqrt, rsqrt, rcp, ex2, lg2, sin, cos, tanh) those that round as they like.
    `flushing`: those that treat subnormals as zero. `fused`: multiply-adds that round once.
    `contractible`: sums that ptxas fuses with a product although the PTX does not say so.
    `half_sums`: additions in float16 or bfloat16; `half_atomics`: the same as atomics.
    `float_atomics`: float additions whose order is not determined. `lines`: opcode to source lines.
    `flushing_operations`: those of `flushing` that are not approximate. `open_products`, `open_sums`: float
    products and sums that name no rounding, which a compiler may fuse. `directed`: by name, quotients and
    roots that do not round to nearest. `kept_in_half`: where sums certainly are.
    """

    kernel: str
    architecture: int
    instructions: int
    opcodes: Mapping[str, int]
    approximate: Mapping[str, int]
    flushing: int
    fused: int
    contractible: int
    half_sums: int
    half_atomics: int
    float_atomics: int
    barriers: int
    flushing_operations: int = 0
    open_products: int = 0
    open_sums: int = 0
    directed: Mapping[str, int] = field(default_factory=dict)
    kept_in_half: tuple[HalfSum, ...] = ()
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def correctly_rounded(self) -> bool:
        """Whether every float operation is IEEE 754's, subnormals included."""
        return not self.approximate and not self.flushing


def count_instructions(ptx: str, kernel: str | None = None) -> InstructionCounts:
    """Count what a kernel of a module consists of; the only kernel, if none is named.

    Raises LaunchError when the module has no such kernel.
    """
    return kept("counts", (ptx, kernel or ""), lambda: _counted(ptx, kernel))


def _counted(ptx: str, kernel: str | None) -> InstructionCounts:
    module = parsed(ptx)
    kernels = {name: f for name, f in module.functions.items() if f.is_kernel}
    name = kernel or next(iter(kernels), "")
    if name not in kernels:
        raise LaunchError(f"no kernel {name!r} in the module; it has: {', '.join(kernels)}")
    program = basic_blocks.build(module, kernels[name])
    instructions = list(program.instructions())
    contracted = list(basic_blocks.build(module, kernels[name], contraction=True).instructions())
    written = Counter((i.opcode, i.operands) for i in instructions if is_fused(i))
    after = Counter((i.opcode, i.operands) for i in contracted if is_fused(i))
    return InstructionCounts(
        kernel=name,
        architecture=module.architecture,
        instructions=len(instructions),
        opcodes=Counter(i.opcode for i in instructions),
        approximate=Counter(i.parts[0] for i in instructions if is_approximate(i)),
        flushing=sum("ftz" in i.parts for i in instructions),
        fused=written.total(),
        contractible=(after - written).total(),  # what is written and not used is left out before
        half_sums=sum(i.parts[0] in _SUMS and i.parts[-1] in HALVES for i in instructions),
        half_atomics=sum(is_float_atomic(i) and i.parts[-1] in HALVES for i in instructions),
        float_atomics=sum(is_float_atomic(i) for i in instructions),
        barriers=sum(basic_blocks.is_barrier(i) for i in instructions),
        flushing_operations=sum("ftz" in i.parts and not is_approximate(i) for i in instructions),
        open_products=sum(is_open(i, ("mul", "div")) for i in instructions),
        open_sums=sum(is_open(i, ("add", "sub")) for i in instructions),
        directed=Counter(i.parts[0] for i in instructions if is_directed(i)),
        kept_in_half=half_sums(program),
        lines=source_lines(instructions),
    )


def is_approximate(instruction: Instruction) -> bool:
    """Instructions with `.approx`, and `div.full`, which is a product with an approximate reciprocal."""
    return "approx" in instruction.parts or "full" in instruction.parts


def is_fused(instruction: Instruction) -> bool:
    """Floating multiply-adds, also those that took in a division."""
    floating = instruction.parts[-1].startswith(("f", "bf"))
    return instruction.parts[0] in ("fma", "mad", "divfma") and floating


def is_float_atomic(instruction: Instruction) -> bool:
    """Atomic additions of floats."""
    parts = instruction.parts
    return parts[0] in ("atom", "red") and "add" in parts and parts[-1].startswith(("f", "bf"))


def is_open(instruction: Instruction, names: tuple[str, ...]) -> bool:
    """Float operations that name no rounding, so that a compiler may fuse them."""
    parts = instruction.parts
    return parts[0] in names and parts[-1] in FLOATS and not _ROUNDINGS & set(parts)


def is_directed(instruction: Instruction) -> bool:
    """Quotients and roots that round up, down or to zero: up to two units of roundoff."""
    parts = instruction.parts
    return parts[0] in ("div", "rcp", "sqrt") and bool({"rz", "rm", "rp"} & set(parts))


def source_lines(instructions: list[Instruction]) -> dict[str, tuple[str, ...]]:
    """Source lines of each opcode that deserves a look."""
    found: dict[str, set[str]] = {}
    for instruction in instructions:
        notable = is_approximate(instruction) or is_float_atomic(instruction) or "ftz" in instruction.parts
        if instruction.location and (notable or instruction.parts[-1] in HALVES):
            found.setdefault(instruction.opcode, set()).add(str(instruction.location))
    return {opcode: tuple(sorted(lines)) for opcode, lines in sorted(found.items())}

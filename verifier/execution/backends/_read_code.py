"""Reads off the compiled code what its arithmetic is, for a backend that has the code."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from verifier.machine.ptx.instruction_counts import InstructionCounts, count_instructions
from verifier.records.compiled_code import CompiledCode, KernelContents, joined

_SHOWN = 3  # source lines named of one kind
_HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
_OF_SOURCE = re.compile(
    r"//[^\n]*|^[ \t]*\.(?:loc|file)\b[^\n]*\n|^[ \t]*\.section[^{]*\{[^}]*\}|\$L__tmp\d+:\n|\s+$",
    re.MULTILINE,
)
"""What PTX says of its source alone: comments, lines, files, sections for debuggers, their labels."""
_ADDING = frozenset({"add", "sub", "fma", "mad", "atom", "red"})


def of_codes(codes: Iterable[tuple[str, str]], host: Iterable[str] = ()) -> CompiledCode | None:
    """Return what (PTX, kernel) pairs consist of, together; None for none.

    host: names of torch operations that computed between the launches.
    """
    found = joined(of_kernel(ptx, kernel) for ptx, kernel in sorted(codes))
    return None if found is None else joined((found, CompiledCode(host=frozenset(host))))


@lru_cache(maxsize=256)
def of_kernel(ptx: str, kernel: str) -> CompiledCode:
    """Read one kernel, once."""
    counts, mark = count_instructions(ptx, kernel), digest(ptx, kernel)
    return replace(of_counts(counts), texts=frozenset({mark}), contents=frozenset({contents(counts, mark)}))


def contents(found: InstructionCounts, mark: str) -> KernelContents:
    """Return what a kernel consists of; mark: the digest of its code."""
    return KernelContents(
        kernel=found.kernel,
        digest=mark,
        architecture=found.architecture,
        instructions=found.instructions,
        opcodes=tuple(sorted(found.opcodes.items(), key=lambda one: (-one[1], one[0]))),
        fused=found.fused,
        contractible=found.contractible,
        flushing=found.flushing,
        barriers=found.barriers,
    )


def digest(ptx: str, kernel: str) -> str:
    """Return what two texts of a kernel share if they differ in nothing but the lines of source they name."""
    code = _OF_SOURCE.sub("", ptx)
    return hashlib.sha256(f"{kernel}\0{code}".encode()).hexdigest()[:16]


def of_counts(found: InstructionCounts) -> CompiledCode:
    """Return what the counts of instructions say that the bounds need."""
    roughly = [c for c in found.opcodes if {"approx", "full"} & set(c.split(".")) and c.endswith(".f32")]
    return CompiledCode(
        kernels=(found.kernel,),
        approximate=frozenset(c.split(".")[0] for c in roughly) | frozenset(found.directed),
        roots=any(c.startswith("sqrt.") and c.endswith(".f32") for c in found.opcodes),
        flushes=bool(found.flushing_operations),
        fuses=bool(found.fused or (found.open_products and found.open_sums)),
        half_sums=_shown(found),
        half_places=_places(found, "half precision") if found.half_sums or found.half_atomics else (),
        atomics=_places(found, "atomics") if found.float_atomics else (),
    )


def _shown(found: InstructionCounts) -> tuple[str, ...]:
    """Return where sums are kept in half, a few places of each kind."""
    kinds: dict[str, list[str]] = {}
    for one in found.kept_in_half:
        kinds.setdefault(one.kind, []).append(str(one))
    return tuple(text for texts in kinds.values() for text in texts[:_SHOWN])


def _places(found: InstructionCounts, kind: str) -> tuple[str, ...]:
    """Return source lines of one kind of addition; the kernel's name where they are unknown."""
    lines = [line for opcode, lines in found.lines.items() if _is(opcode, kind) for line in lines]
    return tuple(dict.fromkeys(lines))[:_SHOWN] or (f"in {found.kernel}",)


def _is(opcode: str, kind: str) -> bool:
    parts = opcode.split(".")
    if kind == "atomics":
        return parts[0] in {"atom", "red"}
    return parts[0] in _ADDING and parts[-1] in _HALVES

"""Reads off the compiled code what its arithmetic is, for a backend that has the code."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from verifier.compiled import Compiled, joined
from verifier.machine.census import Census, census

_SHOWN = 3  # source lines named of one kind
_HALVES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
_ADDING = frozenset({"add", "sub", "fma", "mad", "atom", "red"})


def of_codes(codes: Iterable[tuple[str, str]], host: Iterable[str] = ()) -> Compiled | None:
    """Return what (PTX, kernel) pairs consist of, together; None for none.

    host: names of torch operations that computed between the launches.
    """
    found = joined(of_kernel(ptx, kernel) for ptx, kernel in sorted(codes))
    return None if found is None else joined((found, Compiled(host=frozenset(host))))


@lru_cache(maxsize=256)
def of_kernel(ptx: str, kernel: str) -> Compiled:
    """Read one kernel, once."""
    return of_census(census(ptx, kernel))


def of_census(found: Census) -> Compiled:
    """Return what of a census bears on the bounds."""
    roughly = [c for c in found.opcodes if {"approx", "full"} & set(c.split(".")) and c.endswith(".f32")]
    return Compiled(
        kernels=(found.kernel,),
        approximate=frozenset(c.split(".")[0] for c in roughly) | frozenset(found.directed),
        roots=any(c.startswith("sqrt.") and c.endswith(".f32") for c in found.opcodes),
        flushes=bool(found.flushing_operations),
        fuses=bool(found.fused or (found.open_products and found.open_sums)),
        half_sums=_shown(found),
        half_places=_places(found, "half precision") if found.half_sums or found.half_atomics else (),
        atomics=_places(found, "atomics") if found.float_atomics else (),
    )


def _shown(found: Census) -> tuple[str, ...]:
    """Return where sums are kept in half, a few places of each kind."""
    kinds: dict[str, list[str]] = {}
    for one in found.kept_in_half:
        kinds.setdefault(one.kind, []).append(str(one))
    return tuple(text for texts in kinds.values() for text in texts[:_SHOWN])


def _places(found: Census, kind: str) -> tuple[str, ...]:
    """Return source lines of one kind of addition; the kernel's name where they are unknown."""
    lines = [line for opcode, lines in found.lines.items() if _is(opcode, kind) for line in lines]
    return tuple(dict.fromkeys(lines))[:_SHOWN] or (f"in {found.kernel}",)


def _is(opcode: str, kind: str) -> bool:
    parts = opcode.split(".")
    if kind == "atomics":
        return parts[0] in {"atom", "red"}
    return parts[0] in _ADDING and parts[-1] in _HALVES

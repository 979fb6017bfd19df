"""What is known of the arithmetic of the code that was executed, as far as it bears on bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KernelContents:
    """What one compiled kernel consists of, as its PTX stands.

    digest: as in `CompiledCode.texts`. architecture: such as 90. opcodes: how often each stands there.
    fused: multiply-adds that round once; contractible: sums that ptxas may fuse with a product besides.
    flushing: instructions that treat subnormals as zero.
    """

    kernel: str
    digest: str
    architecture: int
    instructions: int
    opcodes: tuple[tuple[str, int], ...]
    fused: int
    contractible: int
    flushing: int
    barriers: int


@dataclass(frozen=True, kw_only=True)
class CompiledCode:
    """The arithmetic of all kernels that one execution launched, and of the host between them.

    approximate: float32 instructions that are not correctly rounded, by name (div, rcp, sqrt, rsqrt, ...).
    roots: whether there is a square root. flushes: operations but approximate ones treat subnormals as zero.
    fuses: products and sums are fused, or a later compiler may fuse them. half_sums: places where a sum is
    certainly kept in half precision, each with what is added there; `half_places` where anything is added in
    half. atomics: where floats are added in no certain order.
    host: torch operations between the launches that compute. texts: digests of the code, without the lines of
    source that it comes from. contents: what each kernel consists of.
    """

    kernels: tuple[str, ...] = ()
    approximate: frozenset[str] = frozenset()
    roots: bool = False
    flushes: bool = False
    fuses: bool = False
    half_sums: tuple[str, ...] = ()
    half_places: tuple[str, ...] = ()
    atomics: tuple[str, ...] = ()
    host: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    contents: frozenset[KernelContents] = frozenset()


def joined(found: Iterable[CompiledCode]) -> CompiledCode | None:
    """Return what holds of several together; None for none."""
    total: CompiledCode | None = None
    for one in found:
        total = one if total is None or total == one else _both(total, one)
    return total


def _both(a: CompiledCode, b: CompiledCode) -> CompiledCode:
    def places(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted({*first, *second}))

    return CompiledCode(
        kernels=places(a.kernels, b.kernels),
        approximate=a.approximate | b.approximate,
        roots=a.roots or b.roots,
        flushes=a.flushes or b.flushes,
        fuses=a.fuses or b.fuses,
        half_sums=places(a.half_sums, b.half_sums),
        half_places=places(a.half_places, b.half_places),
        atomics=places(a.atomics, b.atomics),
        host=a.host | b.host,
        texts=a.texts | b.texts,
        contents=a.contents | b.contents,
    )

"""Read-modify-write operations, lane after lane in lane order."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from verifier.machine.arithmetic import numerics
from verifier.machine.arithmetic.numerics import Array
from verifier.machine.execute.memory import Fault, GlobalMemory, ScatteredError
from verifier.machine.operations.operation import DTYPE
from verifier.machine.operations.resolve import resolve

if TYPE_CHECKING:
    from collections.abc import Callable

Observer: TypeAlias = "Callable[[slice | Array, Array, Array], None]"
"""Called after each round of an atomic with its lanes, old and new values."""
_INTEGERS = frozenset({"u32", "s32", "b32", "u64", "s64"})
_FEW = 32  # lanes up to which a Python set finds repeated addresses sooner than sorting does


@dataclass(frozen=True, kw_only=True)
class Atomic:
    """What an atomic instruction does to each element.

    `operation`: add, min, cas, ... `kind`: PTX type of an element. `words`: of the opcode, which name its
    semantics and scope. `wanted`: whether the old values are.
    """

    operation: str
    kind: str
    words: tuple[str, ...]
    wanted: bool

    @cached_property
    def dtype(self) -> str:
        """NumPy type of an element."""
        return DTYPE[self.kind]

    @cached_property
    def width(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize


def apply(
    view: Array,
    index: Array,
    what: Atomic,
    operands: list[Array],
    *,
    flush: bool,
    observe: Observer | None = None,
) -> Array | None:
    """Perform an atomic for each entry of `index` in order; return the old values if wanted.

    `view`: the memory as elements; `operands`: (n,) arrays, one (two for cas); `observe`: called after each
    round with its lanes, old and new values.
    """
    function = _function(what.operation, what.kind, flush)
    if not what.wanted and observe is None and what.operation == "add" and what.kind in _INTEGERS:
        np.add.at(view, index, operands[0])
        return None
    old = np.empty(index.shape, dtype=view.dtype)
    for turn in _turns(index):
        place = index[turn]
        before = view[place]
        old[turn] = before
        after = np.asarray(function(before, *(x[turn] for x in operands)), dtype=view.dtype)
        view[place] = after
        if observe is not None:
            observe(turn, before, after)
    return old if what.wanted else None


def sparse(
    memory: GlobalMemory,
    site: int,
    whole: tuple[int, ...],
    address: Array,
    what: Atomic,
    operands: list[list[Array]],
    mask: Array,
) -> list[Array] | None:
    """Do an atomic on few lanes, such as one a block, alone; None if they lie in several regions."""
    results = [np.zeros(whole, dtype=what.dtype) for _ in operands]
    chosen = np.nonzero(np.broadcast_to(mask, whole))
    if not chosen[0].size:
        return results
    addresses = np.broadcast_to(address, whole)[chosen]
    try:
        found = memory.locate(site, addresses, what.width * len(operands), None)
    except ScatteredError:
        return None
    except Fault as fault:
        place = int(np.ravel_multi_index(chosen, whole)[fault.place])
        raise Fault(fault.kind, site, place, whole, fault.message, tensor=fault.tensor) from None
    assert found is not None
    for number, values in enumerate(operands):
        old = apply(
            found.region.view(what.dtype),
            found.offsets // what.width + number,
            what,
            [np.broadcast_to(v, whole)[chosen] for v in values],
            flush=True,
        )
        if old is not None:
            results[number][chosen] = old
    return results


def _turns(index: Array) -> list[slice | Array]:
    """Split into rounds in which no address occurs twice, keeping the order of lanes at each address."""
    if len(index) <= _FEW and len(set(index.tolist())) == len(index):
        return [slice(None)]
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    if starts.all():
        return [slice(None)]
    first = np.flatnonzero(starts)
    rank = np.arange(len(index)) - np.repeat(first, np.diff(np.append(first, len(index))))
    by_rank = np.argsort(rank, kind="stable")
    counts = np.bincount(rank)
    return [np.sort(order[part]) for part in np.split(by_rank, np.cumsum(counts)[:-1])]


def _function(operation: str, kind: str, flush: bool) -> Callable[..., Array]:
    """Give new = f(old, operands)."""
    if operation == "cas":

        def swapped(old: Array, compare: Array, value: Array) -> Array:
            return np.where(old == compare, value, old)

        return swapped
    if operation == "exch":
        return lambda old, value: value
    if kind in ("f16x2", "bf16x2", "bf16", "f16", "f32", "f64") and operation in ("add", "min", "max"):
        return _floating(operation, kind, flush)
    integers: dict[str, Callable[..., Array]] = {
        "add": np.add,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "min": np.minimum,
        "max": np.maximum,
        "inc": lambda old, limit: np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1)),
        "dec": lambda old, limit: np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1)),
    }
    return integers[operation]


def _floating(operation: str, kind: str, flush: bool) -> Callable[..., Array]:
    modifier = ".rn" if operation == "add" and "16" in kind else ""
    found = resolve(f"{operation}{modifier}.{kind}")
    assert found is not None
    function = found.function
    if flush and kind == "f32":
        # PTX: on global memory atom.add.f32 flushes subnormal operands and results to signed zeros.
        return lambda old, value: numerics.flush32(function(numerics.flush32(old), numerics.flush32(value)))
    return function

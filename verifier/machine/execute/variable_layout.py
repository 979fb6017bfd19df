"""Where a kernel's variables lie: shared, local and global ones."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.memory import REGION_SHIFT, GlobalMemory
from verifier.machine.ptx.syntax import Module, Variable

if TYPE_CHECKING:
    from verifier.machine.ptx.basic_blocks import Program


@dataclass(kw_only=True)
class Frame:
    """Byte offsets of a kernel's static shared and local variables.

    dynamic: bytes of shared memory that the launch asks for. gaps: where nothing lies behind variables:
    first byte, end, and name of the variable before it. moved: bytes by which shared ones were moved away
    from addresses that happen to be better aligned than they are declared.
    """

    symbols: dict[str, int]
    shared: int
    local: int
    dynamic: int = 0
    gaps: tuple[tuple[int, int, str], ...] = ()
    moved: int = 0

    @property
    def shared_used(self) -> int:
        """Bytes of shared memory that the kernel asks for."""
        return self.shared - sum(end - start for start, end, _ in self.gaps) - self.moved


_BEST = 16
"""The largest access: a variable that is declared to be so aligned is aligned for each."""


def _place(free: int, alignment: int, *, barely: bool) -> int:
    """Return the first address from `free` on with an alignment; barely: that has no better one."""
    found = -(-free // alignment) * alignment
    return found + alignment if barely and alignment < _BEST and not found % (2 * alignment) else found


def lay_out(
    program: Program, named: frozenset[str], memory: GlobalMemory, dynamic_shared: int, *, apart: int = 0
) -> Frame:
    """Place variables: static shared first, then the dynamic array; local ones in each lane's frame.

    apart: bytes to leave behind each static shared one. With it each variable lies where it is aligned as it
    is declared and no better, which is all that PTX says; so does the dynamic array behind static ones. Alone
    that array begins where shared memory does.
    """
    symbols: dict[str, int] = {}
    gaps: list[tuple[int, int, str]] = []
    shared, local, moved, barely = 0, 0, 0, bool(apart)
    everything = {**program.module.variables, **program.variables}
    for variable in everything.values():
        if variable.space == "shared" and variable.size and variable.name in named:
            start = _place(shared, variable.alignment, barely=barely)
            moved += start - _place(shared, variable.alignment, barely=False)
            symbols[variable.name] = start
            shared = start + variable.size
            if apart:
                gaps.append((shared, shared + apart, variable.name))
                shared += apart
    dynamic = -(-shared // 16) * 16
    for variable in everything.values():
        if variable.space == "shared" and not variable.size:
            start = _place(dynamic, variable.alignment, barely=barely and bool(dynamic))
            symbols[variable.name] = start
            moved += start - dynamic
            shared = start + dynamic_shared
        elif variable.space in ("local", "param"):
            local = _place(local, variable.alignment, barely=barely)
            symbols[variable.name] = local
            local += variable.size
        elif variable.space in ("global", "const") and variable.name in named:
            symbols[variable.name] = _global_variable(program.module, variable, memory, barely=barely)
    _fill_references(everything, symbols, memory)
    return Frame(
        symbols=symbols, shared=shared, local=local, dynamic=dynamic_shared, gaps=tuple(gaps), moved=moved
    )


def _global_variable(module: Module, variable: Variable, memory: GlobalMemory, *, barely: bool) -> int:
    """Map a module variable; its contents live as long as the module."""
    data = module.data.get(variable.name)
    if data is None or data.ctypes.data != _place(data.ctypes.data, variable.alignment, barely=barely):
        size = max(variable.size, 1)
        room = np.zeros(size + 2 * max(variable.alignment, _BEST), dtype=np.uint8)
        first = room.ctypes.data
        start = _place(first, variable.alignment, barely=barely) - first
        held = np.frombuffer(variable.initial or b"", dtype=np.uint8) if data is None else data
        data = module.data[variable.name] = room[start : start + size]
        data[: len(held)] = held
    return memory.map_array(data, f"variable {variable.name}").base


def _fill_references(variables: dict[str, Variable], symbols: dict[str, int], memory: GlobalMemory) -> None:
    """Write the addresses that initialisers name."""
    for variable in variables.values():
        for offset, name in variable.references if variable.name in symbols else ():
            region = memory.regions[symbols[variable.name] >> REGION_SHIFT]
            address = symbols[name.split("+")[0].strip()]
            region.octets[offset : offset + 8] = np.frombuffer(struct.pack("<Q", address), dtype=np.uint8)

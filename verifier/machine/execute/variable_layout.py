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
    first byte, end, and name of the variable before it.
    """

    symbols: dict[str, int]
    shared: int
    local: int
    dynamic: int = 0
    gaps: tuple[tuple[int, int, str], ...] = ()

    @property
    def shared_used(self) -> int:
        """Bytes of shared memory that the kernel asks for."""
        return self.shared - sum(end - start for start, end, _ in self.gaps)


def lay_out(
    program: Program, named: frozenset[str], memory: GlobalMemory, dynamic_shared: int, *, apart: int = 0
) -> Frame:
    """Place variables: static shared first, then the dynamic array; local ones in each lane's frame.

    apart: bytes to leave behind each static shared one.
    """
    symbols: dict[str, int] = {}
    gaps: list[tuple[int, int, str]] = []
    shared, local = 0, 0
    everything = {**program.module.variables, **program.variables}
    for variable in everything.values():
        if variable.space == "shared" and variable.size and variable.name in named:
            shared = -(-shared // variable.alignment) * variable.alignment
            symbols[variable.name] = shared
            shared += variable.size
            if apart:
                gaps.append((shared, shared + apart, variable.name))
                shared += apart
    dynamic = -(-shared // 16) * 16
    for variable in everything.values():
        if variable.space == "shared" and not variable.size:
            symbols[variable.name] = dynamic
            shared = dynamic + dynamic_shared
        elif variable.space in ("local", "param"):
            local = -(-local // variable.alignment) * variable.alignment
            symbols[variable.name] = local
            local += variable.size
        elif variable.space in ("global", "const") and variable.name in named:
            symbols[variable.name] = _global_variable(program.module, variable, memory)
    _fill_references(everything, symbols, memory)
    return Frame(symbols=symbols, shared=shared, local=local, dynamic=dynamic_shared, gaps=tuple(gaps))


def _global_variable(module: Module, variable: Variable, memory: GlobalMemory) -> int:
    """Map a module variable; its contents live as long as the module."""
    data = module.data.get(variable.name)
    if data is None:
        data = np.zeros(max(variable.size, 1), dtype=np.uint8)
        if variable.initial:
            data[: len(variable.initial)] = np.frombuffer(variable.initial, dtype=np.uint8)
        module.data[variable.name] = data
    return memory.map_array(data, f"variable {variable.name}").base


def _fill_references(variables: dict[str, Variable], symbols: dict[str, int], memory: GlobalMemory) -> None:
    """Write the addresses that initialisers name."""
    for variable in variables.values():
        for offset, name in variable.references if variable.name in symbols else ():
            region = memory.regions[symbols[variable.name] >> REGION_SHIFT]
            address = symbols[name.split("+")[0].strip()]
            region.octets[offset : offset + 8] = np.frombuffer(struct.pack("<Q", address), dtype=np.uint8)

"""Arguments of a launch as the bytes of its parameters."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.culprit import passed_on
from verifier.machine.execute.findings import LaunchError
from verifier.machine.execute.memory import GlobalMemory
from verifier.machine.ptx.syntax import BITS, Function, Variable

if TYPE_CHECKING:
    import torch


def pack(
    kernel: Function, names: Sequence[str], arguments: Sequence[object], memory: GlobalMemory, bounds: str
) -> bytes:
    """Give the parameter buffer of a kernel; tensors become addresses. names: what reports call them."""
    parameters = kernel.parameters
    if len(arguments) != len(parameters):
        raise LaunchError(f"{kernel.name} takes {len(parameters)} arguments, not {len(arguments)}")
    offsets = kernel.parameter_offsets()
    size = max((offsets[p.name] + p.size for p in parameters), default=0)
    buffer = bytearray(size)
    for parameter, name, value in zip(parameters, names, arguments, strict=True):
        data = argument_bytes(parameter, name, value, memory, bounds)
        if len(data) > parameter.size:
            raise LaunchError(f"argument {name} has {len(data)} bytes, the parameter {parameter.size}")
        buffer[offsets[parameter.name] : offsets[parameter.name] + len(data)] = data
    return bytes(buffer)


def argument_bytes(parameter: Variable, name: str, value: Any, memory: GlobalMemory, bounds: str) -> bytes:
    """Bytes of one argument."""
    if value is None:
        return bytes(parameter.size)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if hasattr(value, "data_ptr"):
        return struct.pack("<Q", map_tensor(memory, value, name, bounds))
    if isinstance(value, np.generic | np.ndarray):
        return value.tobytes()
    if isinstance(value, bool | int | float):
        return scalar_bytes(parameter, value)
    view: memoryview[int] = passed_on(memoryview, value)
    return bytes(view)


def scalar_bytes(parameter: Variable, value: float) -> bytes:
    """Bytes of a Python number in the type of the parameter."""
    kind, size = parameter.type, parameter.size
    if kind in ("f32", "f64", "f16") or (
        isinstance(value, float) and kind in ("b32", "b64", "b16", "u32", "u64", "u16")
    ):
        return passed_on(struct.pack, {2: "<e", 4: "<f", 8: "<d"}[size], value)
    width = BITS[kind] // 8
    return (passed_on(int, value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def map_tensor(memory: GlobalMemory, tensor: torch.Tensor, name: str, bounds: str) -> int:
    """Map the tensor's storage where it lies and return the address of its first element."""
    storage = tensor.untyped_storage()
    pointer, size = storage.data_ptr(), storage.nbytes()
    region = memory.by_host.get(pointer)
    offset = tensor.data_ptr() - pointer
    if region is None or size == 0:
        region = memory.map_bytes(pointer, size, name, keep=tensor)
        if bounds == "view":
            region.low, region.high = extent_of(tensor, offset)
    else:
        region.name = region.name if name in region.name.split("/") else f"{region.name}/{name}"
        if bounds == "view":
            low, high = extent_of(tensor, offset)
            region.low, region.high = min(region.low, low), max(region.high, high)
    return region.base + offset


def extent_of(tensor: torch.Tensor, offset: int) -> tuple[int, int]:
    """First byte and one past the last byte of a tensor's elements within its storage."""
    if tensor.numel() == 0:
        return offset, offset
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return offset, offset + (reach + 1) * tensor.element_size()

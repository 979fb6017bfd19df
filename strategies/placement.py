"""Tensors with chosen strides between red zones, and the search for what a kernel wrote beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strategies.formats import dtype_name

# Guards are whole multiples of 64 elements (128 bytes and more), so that a tensor begins where its
# allocation is aligned: torch gives 64 bytes on the CPU and 512 on CUDA. Triton specialises on 16 bytes.
GUARD_MULTIPLE = 64

BITS = {
    "float16": torch.int16,
    "bfloat16": torch.int16,
    "float32": torch.int32,
    "float64": torch.int64,
    "bool": torch.uint8,
}

# Quiet NaNs with a payload that no instruction makes by itself, and -12288 = -3 * 2^12 and 12288, which all
# formats hold and which are nowhere near a norm's output. A maximum or minimum may swallow NaN and one of the
# others, and never all three. Zeros are what a kernel that reads them may have been written for. Booleans are
# one of their two values, never both.
POISONS = {
    "nan": {
        "float16": 0x7EAD,
        "bfloat16": 0x7FED,
        "float32": 0x7FC0DEAD,
        "float64": 0x7FF80000DEADBEEF,
        "bool": 1,
    },
    "finite": {
        "float16": 0xF200,
        "bfloat16": 0xC640,
        "float32": 0xC6400000,
        "float64": 0xC0C8000000000000,
        "bool": 0,
    },
    "positive": {
        "float16": 0x7200,
        "bfloat16": 0x4640,
        "float32": 0x46400000,
        "float64": 0x40C8000000000000,
        "bool": 1,
    },
    "zero": dict.fromkeys(BITS, 0),
}


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Storage that changed although nobody may write there.

    region: "before" or "after" the storage (red zones), "gap" (between elements) or "values" (the elements).
    count: how many elements changed.
    offset: of the first one, in elements from the tensor's first element.
    expected, actual: the bits of that one, before and now.
    """

    region: str
    count: int
    offset: int
    expected: int
    actual: int

    def __str__(self) -> str:
        """Say what changed, in one sentence."""
        where = {
            "before": "in the red zone before the tensor",
            "after": "in the red zone behind the tensor",
            "gap": "between the tensor's elements",
            "values": "of the tensor itself",
        }
        return (
            f"{self.count} place(s) {where[self.region]} changed, first at offset {self.offset} elements "
            f"from the tensor's first: bits {self.expected:#x} became {self.actual:#x}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """A tensor with chosen strides, and all of the memory about it.

    tensor: what a kernel gets; its storage starts behind the red zone: its storage offset is the layout's.
    buffer: (elements,) the whole allocation: red zone, storage, red zone.
    original: (elements,) the bits of the buffer as they were placed.
    reached: (elements,) whether an element of the tensor lies there.
    first: index in the buffer of the tensor's first element.
    storage: half-open range of the tensor's storage in the buffer; the red zones are what is outside.
    """

    tensor: torch.Tensor
    buffer: torch.Tensor
    original: torch.Tensor
    reached: torch.Tensor
    first: int
    storage: tuple[int, int]

    def damage(self) -> tuple[Damage, ...]:
        """Find changes outside of the tensor's elements, one record per region; empty if there is none."""
        if self._same():
            return ()
        changed = self._changed() & ~self.reached
        start, end = self.storage
        regions = {"before": (0, start), "gap": (start, end), "after": (end, changed.numel())}
        found = (self._record(region, changed, *bounds) for region, bounds in regions.items())
        return tuple(damage for damage in found if damage is not None)

    def value_damage(self) -> tuple[Damage, ...]:
        """Find changes of the tensor's own elements, bit for bit; empty if there is none."""
        if self._same():
            return ()
        damage = self._record("values", self._changed() & self.reached, *self.storage)
        return () if damage is None else (damage,)

    def _same(self) -> bool:
        """Whether nothing changed at all, which is usual, and seen faster than what did."""
        # What torch tells Python of data, a recording takes for the kernel's question; NumPy's array is ours.
        return not self._changed().any().cpu().numpy()

    def _changed(self) -> torch.Tensor:
        return self._bits() != self.original

    def _bits(self) -> torch.Tensor:
        return self.buffer.detach().view(self.original.dtype)

    def _record(self, region: str, changed: torch.Tensor, begin: int, end: int) -> Damage | None:
        places = np.flatnonzero(changed[begin:end].cpu().numpy())
        if not len(places):
            return None
        index = begin + int(places[0])
        mask = 2 ** (8 * self.original.element_size()) - 1
        return Damage(
            region=region,
            count=len(places),
            offset=index - self.first,
            expected=int(self.original[index]) & mask,
            actual=int(self._bits()[index]) & mask,
        )


def poison_bits(poison: str | int, dtype: str | torch.dtype) -> int:
    """Return the pattern named "nan", "finite" or "positive", or the given one, as an unsigned integer.

    Raises: ValueError for another name, or for a pattern wider than the dtype.
    """
    name = _held_name(dtype)
    if isinstance(poison, str):
        if poison not in POISONS:
            raise ValueError(f"there is no poison {poison!r}; choose {', '.join(POISONS)} or an integer")
        return POISONS[poison][name]
    width = 8 * BITS[name].itemsize
    if not 0 <= poison < 2**width:
        raise ValueError(f"the pattern {poison:#x} does not fit the {width} bits of {name}")
    return poison


def _held_name(dtype: str | torch.dtype) -> str:
    """Return the name of a dtype that memory is filled with: a float's, or "bool"."""
    return "bool" if str(dtype).removeprefix("torch.") == "bool" else dtype_name(dtype)


def place_strided(
    values: torch.Tensor, strides: Sequence[int], offset: int, *, guard_elements: int, poison: str | int
) -> Placed:
    """Put values into fresh memory on their device, with these strides and this storage offset.

    values: of any shape; along an axis of stride 0 they must not vary (see `Layout.project`).
    strides, offset, guard_elements: in elements; the guards are rounded up to whole multiples of 64.
    poison: what fills red zones and gaps: one of `POISONS` or a bit pattern.
    Raises: ValueError for a dtype other than the four and bool, a negative guard, or an unknown poison.
    """
    name = _held_name(values.dtype)
    pattern = poison_bits(poison, name)
    if guard_elements < 0:
        raise ValueError(f"guard_elements is {guard_elements}, and a red zone is never negative")
    guard = math.ceil(guard_elements / GUARD_MULTIPLE) * GUARD_MULTIPLE
    reach = [(extent - 1) * stride for extent, stride in zip(values.shape, strides, strict=True)]
    size = offset + (1 + sum(reach) if values.numel() else 1)
    bits = BITS[name]
    signed = pattern - 2 ** (8 * bits.itemsize) if pattern >> (8 * bits.itemsize - 1) else pattern
    memory = torch.full((size + 2 * guard,), signed, dtype=bits, device=values.device)
    # elements that share an address are written once
    once = tuple(slice(None) if stride else slice(0, 1) for stride in strides)
    source = values.detach().contiguous().view(bits)[once]
    memory.as_strided(source.shape, strides, guard + offset).copy_(source)
    reached = torch.zeros(memory.shape, dtype=torch.bool, device=values.device)
    reached.as_strided(source.shape, strides, guard + offset).fill_(True)
    buffer = memory.view(values.dtype)
    # Through DLPack the storage begins behind the red zone: an offset of 0 is then truly 0 for the kernel.
    storage = torch.utils.dlpack.from_dlpack(buffer[guard : guard + size])
    return Placed(
        tensor=storage.as_strided(values.shape, strides, offset),
        buffer=buffer,
        original=memory.clone(),
        reached=reached,
        first=guard + offset,
        storage=(guard, guard + size),
    )

"""The machine's memory: tensors mapped where they lie, shared memory per block, local memory per lane.

A global address is `region << 48 | host address`: regions are 2^48 bytes apart, so that no offset of a
kernel can stray from one tensor into another unseen, and the low bits keep the host's alignment.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from verifier.machine.arithmetic.numerics import Array

if TYPE_CHECKING:
    from verifier.machine.shadow.shadow_memory import Store

REGION_SHIFT = 48
OFFSET_MASK = (1 << REGION_SHIFT) - 1
SHARED_WINDOW = 0x7F01
"""In the place of a region's number: a generic address into the block's shared memory."""
LOCAL_WINDOW = 0x7F02
"""The same for the lane's local memory."""
FIRST_REGION = 0x0010
_SHIFT = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4}
WIDTH = {f"{kind}{width}": width for kind in "iuf" for width in (1, 2, 4, 8)}
"""Bytes of the types of elements, by the names that emitted code gives them."""


def joint_shape(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which arrays of two shapes broadcast; what most have is told without NumPy."""
    if one == other:
        return one
    if len(one) == len(other) == 2 and all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True)):
        return max(one[0], other[0]), max(one[1], other[1])
    return np.broadcast_shapes(one, other)


def spread(values: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast an array, unless it has the shape."""
    return values if values.shape == shape else np.broadcast_to(values, shape)


class Fault(Exception):  # noqa: N818 - internal, becomes a finding
    """An access that failed: what, at which place of the address array, in which instruction."""

    def __init__(
        self,
        kind: str,
        site: int,
        place: int,
        shape: tuple[int, ...],
        message: str,
        *,
        tensor: str | None = None,
    ) -> None:
        """Keep the coordinates for the scheduler, which knows the lanes."""
        super().__init__(message)
        self.kind, self.site, self.place, self.shape = kind, site, place, shape
        self.message, self.tensor = message, tensor


@dataclass(eq=False, kw_only=True)
class Region:
    """A stretch of memory with its views, one per element width.

    `stride` is the size of one lane's or block's share, for shared and local memory; 0 for global.
    """

    name: str
    base: int
    octets: Array
    number: int = 0
    read_only: bool = False
    low: int = 0
    high: int = 0
    views: dict[str, Array] = field(default_factory=dict)
    store: Store | None = None
    flags: Array | None = None
    keep: Any = None

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.octets.size)

    def view(self, dtype: str) -> Array:
        """All whole elements of a type, as one array over the same bytes."""
        found = self.views.get(dtype)
        if found is None:
            width = np.dtype(dtype).itemsize
            whole = self.octets[: self.octets.size // width * width]
            found = self.views[dtype] = whole.view(dtype)
        return found


@dataclass(kw_only=True, slots=True)
class Located:
    """Where an access goes: a region, byte offsets of the active lanes, and which lanes those are.

    `selection` is None when every lane of `shape` is active, else a boolean array of that shape;
    `offsets` then holds only the active ones.
    """

    region: Region
    offsets: Array
    selection: Array | None
    shape: tuple[int, ...]

    def gather(self, dtype: str, count: int) -> list[Array]:
        """Read `count` consecutive elements for each lane; inactive lanes read 0."""
        view, width = self.region.view(dtype), WIDTH[dtype]
        index = self.offsets >> _SHIFT[width]
        results = []
        for k in range(count):
            values = view.take(index + k if k else index, mode="clip")
            if self.selection is not None:
                full = np.zeros(self.shape, dtype=dtype)
                full[self.selection] = values
                values = full
            results.append(values)
        return results

    def scatter(self, dtype: str, values: list[Array]) -> None:
        """Write consecutive elements for each active lane; the last of equal addresses wins."""
        view, width = self.region.view(dtype), WIDTH[dtype]
        index = self.offsets >> _SHIFT[width]
        for k, value in enumerate(values):
            view[index + k if k else index] = self.active(value)

    def active(self, value: Array) -> Array:
        """Values of the active lanes alone."""
        if np.ndim(value) == 0 or self.selection is None:
            if self.selection is None and np.ndim(value) and value.shape != self.offsets.shape:
                return np.broadcast_to(value, self.shape)
            return value
        return spread(value, self.shape)[self.selection]

    def lane(self, place: int) -> int:
        """Return the place among all lanes of one among the active lanes."""
        return place if self.selection is None else int(np.flatnonzero(self.selection.reshape(-1))[place])


class GlobalMemory:
    """Every tensor that a launch can see."""

    def __init__(self) -> None:
        """Start with no tensor at all."""
        self.regions: dict[int, Region] = {}
        self.by_host: dict[int, Region] = {}
        self.next_number = FIRST_REGION

    def map_bytes(
        self,
        pointer: int,
        size: int,
        name: str,
        *,
        keep: object = None,
        bounds: tuple[int, int] | None = None,
    ) -> Region:
        """Map host memory without copying it and return its region; `bounds` narrows what may be touched."""
        octets = _octets_at(pointer, size)
        region = Region(name=name, base=0, octets=octets, keep=keep)
        region.number, self.next_number = self.next_number, self.next_number + 1
        region.base = (region.number << REGION_SHIFT) | (pointer & OFFSET_MASK)
        region.low, region.high = bounds or (0, size)
        self.regions[region.number] = region
        self.by_host[pointer] = region
        return region

    def map_array(self, array: Array, name: str) -> Region:
        """Map a numpy byte array that the machine owns."""
        return self.map_bytes(array.ctypes.data, array.nbytes, name, keep=array)

    def locate(self, site: int, addresses: Array, width: int, mask: Array | None) -> Located | None:
        """Find the region of an access of `width` bytes a lane, or raise Fault; None if no lane is active."""
        shape = addresses.shape
        selection = None
        if mask is not None and np.count_nonzero(mask) != mask.size:
            if mask.shape != shape:
                shape = joint_shape(shape, mask.shape)
                addresses, mask = spread(addresses, shape), spread(mask, shape)
            selection = mask
            addresses = addresses[mask]
            if addresses.size == 0:
                return None
        region = self.regions.get(addresses.item(0) >> REGION_SHIFT)
        if region is not None:
            offsets = addresses - np.uint64(region.base)
            low, high = region.low, region.high - width
            # All bits together are no less than the largest offset: where they lie inside, it does.
            bits = int(np.bitwise_or.reduce(offsets, axis=None))
            inside = high >= 0 and (bits <= high or int(np.maximum.reduce(offsets, axis=None)) <= high)
            inside = inside and (low == 0 or int(np.minimum.reduce(offsets, axis=None)) >= low)
            aligned = width == 1 or not (bits | region.base) & (width - 1)
            if inside and (aligned or not int(np.bitwise_or.reduce(addresses, axis=None)) & (width - 1)):
                return Located(
                    region=region, offsets=offsets.view(np.int64), selection=selection, shape=shape
                )
        self.explain(site, addresses, width, selection, shape)
        return None

    def explain(
        self, site: int, addresses: Array, width: int, selection: Array | None, shape: tuple[int, ...]
    ) -> None:
        """Raise the Fault of the first wrong lane, or ScatteredError if all are right in several regions."""
        flat = addresses.reshape(-1)
        for place in range(flat.size):
            address = int(flat[place])
            region = self.regions.get(address >> REGION_SHIFT)
            offset = address - region.base if region else 0
            if region is None or offset < region.low or offset + width > region.high:
                lane = place if selection is None else int(np.flatnonzero(selection.reshape(-1))[place])
                message, tensor = self.describe(address, width)
                raise Fault("out_of_bounds", site, lane, shape, message, tensor=tensor)
            if address % width:
                lane = place if selection is None else int(np.flatnonzero(selection.reshape(-1))[place])
                above = address % width
                message = f"an access of {width} bytes at an address {above} above a multiple of {width}"
                raise Fault("misaligned", site, lane, shape, message, tensor=region.name)
        raise ScatteredError

    def describe(self, address: int, width: int) -> tuple[str, str | None]:
        """Say how far an address lies outside the nearest tensor."""
        region = self.regions.get(address >> REGION_SHIFT)
        if region is None:
            near = [r for r in self.regions.values() if abs(address - r.base) < 1 << 40]
            if not near:
                return f"{width} bytes at address {address:#x}, which belongs to no tensor", None
            region = min(near, key=lambda r: min(abs(address - r.base), abs(address - r.base - r.size)))
        offset = address - region.base
        if offset < region.low:
            where = f"{region.low - offset} bytes before the start"
        else:
            where = f"{offset + width - region.high} bytes past the end"
        return (
            f"{width} bytes at byte offset {offset}, {where} of {region.name} ({region.high} bytes)",
            region.name,
        )


class ScatteredError(Exception):
    """The lanes of one access go to several regions; it has to be done in parts."""


def _octets_at(pointer: int, size: int) -> Array:
    """Give a byte array over host memory; nothing is touched or committed."""
    if size == 0:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * size).from_address(pointer)), dtype=np.uint8)


class WindowMemory:
    """Shared memory (one window a block) or local memory (one window a lane)."""

    def __init__(self, space: str, windows: int, size: int, poison: int | None) -> None:
        """Allocate the windows side by side, each a multiple of 16 bytes."""
        self.space, self.size = space, size
        self.stride = -(-size // 16) * 16
        octets = np.empty(max(windows * self.stride, 16), dtype=np.uint8)
        octets.fill(0 if poison is None else poison & 0xFF)
        self.region = Region(name=f"{space} memory", base=0, octets=octets, high=octets.size)

    def locate(
        self, site: int, addresses: Array, window: Array, width: int, mask: Array | None
    ) -> Located | None:
        """Find the bytes of an access; `window` is the byte at which each lane's window starts."""
        offsets = (
            (addresses & np.uint64(0xFFFFFFFF)).astype(np.int64)
            if addresses.itemsize == 8
            else addresses.astype(np.int64)
        )
        shape = joint_shape(offsets.shape, window.shape)
        selection = None
        if mask is not None and np.count_nonzero(mask) != mask.size:
            shape = joint_shape(shape, mask.shape)
            selection = spread(mask, shape)
            offsets = spread(offsets, shape)[selection]
            window = spread(window, shape)[selection]
            if offsets.size == 0:
                return None
        # All bits together are negative where an offset is, and else no less than the largest one.
        bits, last = int(np.bitwise_or.reduce(offsets, axis=None)), self.size - width
        inside = 0 <= bits <= last or (bits > last and int(np.maximum.reduce(offsets, axis=None)) <= last)
        if not inside or bits & (width - 1):
            self.explain(site, offsets, width, selection, shape)
        return Located(region=self.region, offsets=offsets + window, selection=selection, shape=shape)

    def explain(
        self, site: int, offsets: Array, width: int, selection: Array | None, shape: tuple[int, ...]
    ) -> None:
        """Raise the Fault of the first lane that is wrong."""
        outside = (offsets > self.size - width) | (offsets < 0)
        wrong = outside | (offsets % width != 0)
        wrong = wrong if selection is not None else np.broadcast_to(wrong, shape)
        outside = outside if selection is not None else np.broadcast_to(outside, shape)
        offsets = offsets if selection is not None else np.broadcast_to(offsets, shape)
        place = int(np.flatnonzero(wrong.reshape(-1))[0])
        lane = place if selection is None else int(np.flatnonzero(selection.reshape(-1))[place])
        offset = int(offsets.reshape(-1)[place])
        if outside.reshape(-1)[place]:
            message = f"{width} bytes at byte {offset} of {self.space} memory, which has {self.size} bytes"
            raise Fault("out_of_bounds", site, lane, shape, message, tensor=f"{self.space} memory")
        message = f"an access of {width} bytes at byte {offset} of {self.space} memory"
        raise Fault("misaligned", site, lane, shape, message, tensor=f"{self.space} memory")

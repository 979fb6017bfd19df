"""Instructions in which the lanes of a warp exchange values."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from verifier.machine.arithmetic.numerics import Array
from verifier.machine.execute.lane_groups import WARP, Everyone, Group, Warps

_LANES = np.arange(WARP)
_BITS = np.uint32(1) << _LANES.astype(np.uint32)
EVERY_LANE = np.ones((1, 1), dtype=np.bool_)
"""What `defined` says where whole warps exchange values, whichever lane each names: a lane of its warp."""


@lru_cache(maxsize=512)
def source_lanes(mode: str, distance: int, control: int) -> tuple[Array, Array]:
    """Give the lane that each lane reads and whether it is in range, for operands equal in all lanes."""
    return _source_lanes(mode, _LANES, np.array(distance), np.array(control))


@lru_cache(maxsize=512)
def _repeated(mode: str, distance: int, control: int, threads: int) -> Array:
    """Whether each thread's source lane is in range, the same in every warp: (1, threads)."""
    return np.tile(source_lanes(mode, distance, control)[1], threads // WARP)[None]


def _source_lanes(mode: str, lane: Array, distance: Array, control: Array) -> tuple[Array, Array]:
    b, clamp, segment = distance & 31, control & 31, (control >> 8) & 31
    highest = (lane & segment) | (clamp & ~segment)
    lowest = lane & segment
    if mode == "up":
        source, valid = lane - b, lane - b >= highest
    elif mode == "down":
        source, valid = lane + b, lane + b <= highest
    elif mode == "bfly":
        source, valid = lane ^ b, (lane ^ b) <= highest
    else:
        source = lowest | (b & ~segment)
        valid = source <= highest
    return np.where(valid, source, lane), np.asarray(valid)


def shuffle(group: Group, mode: str, value: Array, distance: Array, control: Array) -> tuple[Array, Array]:
    """`shfl.sync`: values of other lanes of the warp, and whether the lane named was in range."""
    if np.size(distance) == 1 and np.size(control) == 1:
        source, valid = source_lanes(mode, np.asarray(distance).item(), np.asarray(control).item())
        if isinstance(group, Everyone) and group.threads % WARP == 0 and value.shape[-1] == group.threads:
            rows = value.reshape(-1, WARP).take(source, axis=1).reshape(value.shape)
            return rows, _repeated(
                mode, np.asarray(distance).item(), np.asarray(control).item(), group.threads
            )
        if not isinstance(group, Everyone) and group.in_whole_warps and value.shape == group.shape:
            rows = value.reshape(-1, WARP).take(source, axis=1).reshape(-1)
            return rows, np.tile(valid, len(rows) // WARP)
        warps = group.warps
        return warps.collect(_take_present(warps, warps.spread(value), source[None])), warps.collect(
            valid[None]
        )
    warps = group.warps
    source, valid = _source_lanes(
        mode, _LANES, warps.spread(distance).astype(np.int64), warps.spread(control).astype(np.int64)
    )
    return warps.collect(_take_present(warps, warps.spread(value), source)), warps.collect(valid)


def defined(group: Group, mode: str, distance: Array, control: Array, members: Array) -> Array:
    """Whether `shfl.sync` says what a lane gets: it and the lane that it reads execute it and are members.

    And where those that it names name the same members: it waits for these (PTX ISA, shfl.sync).
    """
    if isinstance(group, Everyone) and group.threads % WARP == 0 and (members == 0xFFFFFFFF).all():
        return EVERY_LANE
    warps = group.warps
    there = warps.present & _named(warps, members) & _named_alike(warps, members)
    source, _ = _source_lanes(
        mode, _LANES, warps.spread(distance).astype(np.int64), warps.spread(control).astype(np.int64)
    )
    return warps.collect(there & np.take_along_axis(there, np.broadcast_to(source, there.shape), axis=1))


def takes_part(group: Group, members: Array) -> Array:
    """Whether each lane is among the members that it names, without which a collective is undefined.

    And whether all of these name the same.
    """
    warps = group.warps
    return warps.collect((_named(warps, members) & _named_alike(warps, members)) | ~warps.present)


def whole_warps(group: Group) -> Array:
    """Whether all lanes of a warp execute an instruction, without which one that is aligned is undefined."""
    warps = group.warps
    return warps.collect(np.asarray(warps.present.all(axis=1, keepdims=True)))


def agree(group: Group, predicate: Array) -> Array:
    """Whether a predicate is the same in all lanes of a warp that execute an instruction."""
    warps = group.warps
    grid = warps.spread(predicate) & warps.present
    return warps.collect(
        grid.any(axis=1, keepdims=True) == (grid | ~warps.present).all(axis=1, keepdims=True)
    )


def _take_present(warps: Warps, grid: Array, source: Array) -> Array:
    """Read along each warp; a lane that does not take part gives the reader its own value."""
    source = np.broadcast_to(source, grid.shape)
    there = np.take_along_axis(warps.present, source, axis=1)
    return np.where(there, np.take_along_axis(grid, source, axis=1), grid)


def ballot(group: Group, predicate: Array, members: Array) -> Array:
    """Bits of the member lanes whose predicate holds, one word a warp: (warps, 1) uint32."""
    warps = group.warps
    grid = warps.spread(predicate) & warps.present & _named(warps, members)
    return np.bitwise_or.reduce(np.where(grid, _BITS, np.uint32(0)), axis=1, keepdims=True)


def _named(warps: Warps, members: Array) -> Array:
    if np.size(members) == 1 and np.asarray(members).item() == 0xFFFFFFFF:
        return warps.present
    answer: Array = (warps.spread(members) & _BITS) != 0
    return answer


def _named_alike(warps: Warps, members: Array) -> Array:
    """Whether all lanes that a lane names, and that execute an instruction with it, name the same ones."""
    if np.size(members) == 1:
        return np.ones_like(warps.present)
    held = warps.spread(members)
    met = ((held[:, :, None] & _BITS) != 0) & warps.present[:, None, :]
    return np.asarray((~met | (held[:, :, None] == held[:, None, :])).all(axis=2))


def vote(group: Group, mode: str, predicate: Array, members: Array) -> Array:
    """`vote.sync`: any, all, uni as predicates, ballot as a word."""
    bits = ballot(group, predicate, members)
    warps = group.warps
    everyone = ballot(group, np.array([True]), members)
    if mode == "ballot":
        return warps.collect(bits)
    if mode == "any":
        return warps.collect(bits != 0)
    if mode == "all":
        return warps.collect(bits == everyone)
    return warps.collect((bits == everyone) | (bits == 0))


def active_mask(group: Group) -> Array:
    """`activemask`: lanes of the warp that execute together now."""
    return group.warps.collect(ballot(group, np.array([True]), np.array([0xFFFFFFFF], dtype=np.uint32)))


def match(group: Group, mode: str, value: Array, members: Array) -> tuple[Array, Array]:
    """`match.sync`: the lanes with an equal value, and for `all` whether every member has it."""
    warps = group.warps
    grid = warps.spread(value)
    there = warps.present & _named(warps, members)
    equal = (grid[:, :, None] == grid[:, None, :]) & there[:, None, :]
    bits = np.bitwise_or.reduce(np.where(equal, _BITS, np.uint32(0)), axis=2)
    if mode == "any":
        return warps.collect(bits), warps.collect(there)
    everyone = np.bitwise_or.reduce(np.where(there, _BITS, np.uint32(0)), axis=1, keepdims=True)
    agreed = bits == everyone
    return warps.collect(np.where(agreed, bits, np.uint32(0))), warps.collect(agreed)


_REDUCTIONS: dict[str, tuple[np.ufunc, int]] = {
    "add": (np.add, 0),
    "and": (np.bitwise_and, -1),
    "or": (np.bitwise_or, 0),
    "xor": (np.bitwise_xor, 0),
}


def reduce_warp(group: Group, mode: str, value: Array, members: Array) -> Array:
    """`redux.sync`: sum, minimum, maximum or logic over the member lanes; `.abs` and `.NaN` for float32."""
    warps, words = group.warps, mode.split(".")
    grid = warps.spread(value)
    there = warps.present & _named(warps, members)
    name = words[0]
    if name in ("min", "max"):
        return warps.collect(_extremum(grid, there, words))
    ufunc, neutral = _REDUCTIONS[name]
    empty = np.array(neutral, dtype=np.int64).astype(grid.dtype)
    return warps.collect(ufunc.reduce(np.where(there, grid, empty), axis=1, keepdims=True, dtype=grid.dtype))


def _extremum(grid: Array, there: Array, words: list[str]) -> Array:
    """Smallest or largest member; NaN is skipped unless `.NaN` asks for it."""
    floating = grid.dtype.kind == "f"
    if "abs" in words:
        grid = np.abs(grid)
    if floating:
        worst = np.inf if words[0] == "min" else -np.inf
        if words[0] == "min":
            ufunc: np.ufunc = np.minimum if "NaN" in words else np.fmin
        else:
            ufunc = np.maximum if "NaN" in words else np.fmax
        if "NaN" not in words:
            nothing = np.all(np.isnan(grid) | ~there, axis=1, keepdims=True)
            result = ufunc.reduce(np.where(there, grid, grid.dtype.type(worst)), axis=1, keepdims=True)
            answer: Array = np.where(nothing, grid.dtype.type(np.nan), result)
            return answer
        return np.asarray(ufunc.reduce(np.where(there, grid, grid.dtype.type(worst)), axis=1, keepdims=True))
    info = np.iinfo(grid.dtype)
    if words[0] == "min":
        return np.asarray(np.minimum.reduce(np.where(there, grid, info.max), axis=1, keepdims=True))
    return np.asarray(np.maximum.reduce(np.where(there, grid, info.min), axis=1, keepdims=True))


def extremal_lane(group: Group, result: Array, value: Array, moved: Array, members: Array) -> Array:
    """Give `moved` of the first member lane that holds the value which a reduction chose."""
    warps = group.warps
    there = warps.present & _named(warps, members)
    chosen = (warps.spread(value) == warps.spread(result)) & there
    lane = chosen.argmax(axis=1)[:, None]
    return warps.collect(np.take_along_axis(warps.spread(moved), lane, axis=1))


def elect(group: Group, members: Array) -> tuple[Array, Array]:
    """`elect.sync`: the lowest member lane, and whether this lane is it."""
    bits = ballot(group, np.array([True]), members)
    leader = np.bitwise_count((bits & (~bits + np.uint32(1))) - np.uint32(1)).astype(np.uint32)
    warps = group.warps
    return warps.collect(leader), warps.collect(leader == _LANES)


def matrix_addresses(group: Group, address: Array, count: int, transposed: bool) -> list[tuple[Array, Array]]:
    """For `ldmatrix` and `stmatrix`: addresses of the lower and upper half-word of each 8x8 matrix.

    Lane 8m + r gives the address of row r of matrix m; lane l holds two neighbours of row l // 4,
    or of column l // 4 when transposed.
    """
    warps = group.warps
    rows = warps.spread(address)
    within = (_ROW_OF_COLUMN if transposed else _PAIR_OF_ROW).astype(rows.dtype)
    result = []
    for first in range(0, 8 * count, 8):
        if transposed:
            low, high = rows[:, first + _COLUMN_PAIR] + within, rows[:, first + _COLUMN_PAIR + 1] + within
        else:
            low = rows[:, first + _ROW] + within
            high = low + rows.dtype.type(2)
        result.append((warps.collect(low), warps.collect(high)))
    return result


_ROW, _COLUMN_PAIR = _LANES // 4, 2 * (_LANES % 4)
_PAIR_OF_ROW, _ROW_OF_COLUMN = 4 * (_LANES % 4), 2 * (_LANES // 4)
"""Of an 8x8 matrix of half-words: the row of each lane and its pair there in bytes; the pair of rows that are
columns when it is transposed, and the place there in bytes."""


def block_reduce(group: Group, mode: str, predicate: Array) -> Array:
    """`bar.red`: popc, and, or over a whole thread block, all of whose lanes are in the group."""
    if isinstance(group, Everyone):
        full = np.broadcast_to(predicate, (group.blocks, group.threads))
        count = full.sum(axis=1, keepdims=True)
        total = np.broadcast_to(count, full.shape)
        present: Array | int = group.threads
    else:
        size = int(group.ib.max()) + 1
        count = np.bincount(group.ib, weights=np.broadcast_to(predicate, group.ix.shape), minlength=size)
        total, present = count[group.ib], np.bincount(group.ib, minlength=size)[group.ib]
    if mode == "popc":
        return total.astype(np.uint32)
    return np.asarray(total == present if mode == "and" else total > 0)

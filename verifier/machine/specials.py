"""Special registers: who a thread is, and what surrounds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.numerics import Array
    from verifier.machine.wave import Wave


def value(wave: Wave, name: str) -> Array:
    """Give a special register, in its own shape."""
    thread = np.arange(wave.threads, dtype=np.uint32)[None]
    x, y, _ = wave.block
    axis = "xyz".find(name[-1])
    lane = thread & np.uint32(31)
    table: dict[str, Any] = {
        "%laneid": lane,
        "%warpid": thread >> np.uint32(5),
        "%nwarpid": -(-wave.threads // 32),
        "WARP_SZ": 32,
        "%smid": (np.arange(wave.blocks) % wave.multiprocessors)[:, None],
        "%nsmid": wave.multiprocessors,
        "%gridid": 1,
        "%dynamic_smem_size": wave.shared_size,
        "%total_smem_size": wave.shared_size,
        "%is_explicit_cluster": 0,
        "%cluster_ctarank": 0,
        "%cluster_nctarank": 1,
        "%lanemask_eq": np.uint32(1) << lane,
        "%lanemask_lt": (np.uint32(1) << lane) - np.uint32(1),
        "%lanemask_le": (np.uint32(2) << lane) - np.uint32(1),
        "%lanemask_ge": ~((np.uint32(1) << lane) - np.uint32(1)),
        "%lanemask_gt": ~((np.uint32(2) << lane) - np.uint32(1)),
    }
    if name.startswith("%tid."):
        return (
            (
                thread,
                thread % np.uint32(x),
                thread // np.uint32(x) % np.uint32(y),
                thread // np.uint32(x * y),
            )[axis + 1]
            if axis
            else thread % np.uint32(x)
        )
    if name.startswith(("%ctaid.", "%clusterid.")):
        if axis not in wave.block_numbers:
            wave.block_numbers[axis] = np.ascontiguousarray(
                wave.block_ids[:, axis].astype(np.uint32)[:, None]
            )
        return wave.block_numbers[axis]
    if name.startswith(("%nctaid.", "%nclusterid.")):
        table[name] = wave.grid[axis]
    if name.startswith("%ntid."):
        table[name] = wave.block[axis]
    if name.startswith("%cluster_ctaid."):
        table[name] = 0
    if name.startswith("%cluster_nctaid."):
        table[name] = 1
    value = np.asarray(table[name], dtype=np.uint32)
    return value if value.ndim == 2 else value.reshape(1, 1)

"""The dispatcher of the CUDA row kernels, from what a device offers to the launch: no subject.

The design is that of OneFlow's published kernels: a row of up to 1024 columns lives in the registers of a
group of lanes, a longer one in a block's shared memory, and one that does not fit is read again. The device
code of the three tiers is row_tiers_cuda.cuh.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch

from verifier import Stages

# ---- 1. Dtypes ----

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PARAMETER_DTYPES = ("input", "float32")  # of weight and bias of a layer norm


def compute_dtype(dtype):
    """Return the dtype of statistics and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


# ---- 2. What a device offers ----

WARP = 32
WARP_TIER_COLUMNS = 1024  # 32 lanes with at most 32 values each in registers
WARP_TIER_THREADS = 128
BLOCKS = (128, 256, 512, 1024)
VECTOR_BYTES = 16  # the widest load of one thread
COMPUTE_DTYPES = (torch.float32, torch.float64)  # what a plan depends on besides the number of columns
RESERVED_SHARED = (
    1024  # bytes that the system takes from each block's share, compute capability 8.0 and later
)

# CUDA C++ Programming Guide, technical specifications per compute capability: threads and blocks resident on
# a multiprocessor, shared memory of a multiprocessor, and of a block that opts in (KiB).
RESOURCES = {
    80: (2048, 32, 164, 163),
    86: (1536, 16, 100, 99),
    87: (1536, 16, 164, 163),
    89: (1536, 24, 100, 99),
    90: (2048, 32, 228, 227),
    100: (2048, 32, 228, 227),
    103: (2048, 32, 228, 227),
    120: (1536, 24, 100, 99),
}
REFERENCE = 90  # block sizes follow this device on every device, so that a row's bits do not depend on it
SMALLEST = 48 * 1024  # bytes of shared memory that every device gives without being asked


def resident_blocks(threads, shared_bytes, architecture=REFERENCE):
    """Return how many blocks a multiprocessor holds at once, as far as threads and shared memory decide."""
    most_threads, most_blocks, shared, _ = RESOURCES[architecture]
    return min(most_threads // threads, most_blocks, shared * 1024 // (shared_bytes + RESERVED_SHARED))


def fits(shared_bytes, architecture):
    """Whether a block of this architecture can have that much dynamic shared memory, static slots apart."""
    per_block = RESOURCES[architecture][3] * 1024 if architecture in RESOURCES else SMALLEST
    return shared_bytes + RESERVED_SHARED <= per_block


# ---- 3. The dispatcher ----


@dataclass(frozen=True, kw_only=True)
class TierPlan:
    """How one row is spread over threads; a function of its length and dtype alone."""

    tier: str
    pack: int
    width: int  # threads that share a row
    columns_per_thread: int = 0
    padding: bool = False
    shared_bytes: int = 0


def plan(columns, dtype, architecture=REFERENCE):
    """Choose tier, pack and width for rows of `columns` elements of `dtype`."""
    if columns <= WARP_TIER_COLUMNS:
        pack = 2 if columns % 2 == 0 else 1
        packs = columns // pack
        width = min(WARP, 1 << (packs - 1).bit_length())
        columns_per_thread = -(-packs // width) * pack
        padding = width * columns_per_thread != columns
        return TierPlan(
            tier="warp", pack=pack, width=width, columns_per_thread=columns_per_thread, padding=padding
        )
    pack = next(p for p in (4, 2, 1) if columns % p == 0 and p * dtype.itemsize <= VECTOR_BYTES)
    shared_bytes = columns * max(dtype.itemsize, 4)  # kept in the compute type
    if not fits(shared_bytes, REFERENCE):
        return TierPlan(
            tier="streamed", pack=pack, width=BLOCKS[-1]
        )  # nothing to keep: the largest block hides best
    least = resident_blocks(BLOCKS[0], shared_bytes)
    width = max(b for b in BLOCKS if resident_blocks(b, shared_bytes) == least)
    if not fits(shared_bytes, architecture):
        return TierPlan(tier="streamed", pack=pack, width=width)  # the same threads, hence the same bits
    return TierPlan(tier="shared", pack=pack, width=width, shared_bytes=shared_bytes)


def additions(columns):
    """Return the most additions that an element of a row meets: in its thread, then in the tree."""
    return max(s.updates + s.merges for s in map(partial(_stages, columns), COMPUTE_DTYPES))


def stages(columns):
    """Return the Welford steps of the longest thread and the merges after them, over both compute types.

    Columns go round the threads, so that a lower lane never has less than a higher one, and it is the lower
    that takes the other in: no partner outweighs the one it corrects.
    """
    both = [_stages(columns, dtype) for dtype in COMPUTE_DTYPES]
    updates, merges = max(s.updates for s in both), max(s.merges for s in both)
    return Stages(updates=updates, merges=merges, imbalance=1.0)


def _stages(columns, dtype):
    chosen = plan(columns, dtype)
    turns = -(-columns // (chosen.pack * chosen.width))
    merges = (chosen.width - 1).bit_length()  # empty partners are skipped, and add nothing to a sum
    return Stages(updates=turns * chosen.pack - 1, merges=merges, imbalance=1.0)


def as_rows(tensor, columns):
    """View a tensor as (rows, columns), with any strides; leading dimensions that no stride joins: a copy."""
    return tensor.reshape(math.prod(tensor.shape) // columns, columns)


def vectorises(chosen, *tensors):
    """Whether every tensor can be read a pack at a time."""
    return all(
        t is None
        or (
            t.stride(-1) == 1
            and t.data_ptr() % (chosen.pack * t.element_size()) == 0
            and (t.dim() == 1 or t.shape[0] == 1 or t.stride(0) % chosen.pack == 0)
        )
        for t in tensors
    )


def launch_rows(module, name, chosen, rows, template, vector, arguments):
    """Launch the tier `name`_warp, _shared or _streamed; template: the arguments before the pack."""
    if chosen.tier == "warp":
        groups = WARP_TIER_THREADS // chosen.width
        rows_per_access = 2 if chosen.width < WARP and rows % 2 == 0 else 1
        shape = (chosen.columns_per_thread, chosen.width, rows_per_access, chosen.padding)
        kernel = module.kernel(f"{name}_warp", *template, chosen.pack, vector, *shape)
        grid, block = -(-rows // (groups * rows_per_access)), (chosen.width, groups)
    else:
        kernel = module.kernel(f"{name}_{chosen.tier}", *template, chosen.pack, vector)
        grid, block = rows, chosen.width
    kernel[grid, block, chosen.shared_bytes](*arguments)

"""Layer normalization by Welford's variance in three CUDA tiers, with the dispatcher of all row kernels.

The design is that of OneFlow's published kernels: a row of up to 1024 columns lives in the registers of a
group of lanes, a longer one in a block's shared memory, and one that does not fit is read again. This file
reads from the dispatcher (which tier, which pack, which block) to the launch, autograd and the subject; the
device code is in the .cu of the same name and in row_tiers_cuda.cuh. Beyond the published form it takes every
stride, misaligned storage, a missing weight or bias, and any number of rows and columns.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch.autograd.function import once_differentiable

from verifier import Domain, Trees, load, source, subject, tree
from verifier.trees import Stages

SOURCE = "OneFlow, efficient LayerNorm and Softmax CUDA kernels; corrected"

# ---- 1. What a device offers ----

WARP = 32
WARP_TIER_COLUMNS = 1024  # 32 lanes with at most 32 values each in registers
WARP_TIER_THREADS = 128
BLOCKS = (128, 256, 512, 1024)
VECTOR_BYTES = 16  # the widest load of one thread
COMPUTE_DTYPES = (torch.float32, torch.float64)  # what a plan depends on besides the number of columns
LARGEST_GRID = 2**31 - 1  # the kernels stride over rows, so a capped grid loses nothing
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


# ---- 2. The dispatcher ----


@dataclass(frozen=True, kw_only=True)
class Plan:
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
        return Plan(
            tier="warp", pack=pack, width=width, columns_per_thread=columns_per_thread, padding=padding
        )
    pack = next(p for p in (4, 2, 1) if columns % p == 0 and p * dtype.itemsize <= VECTOR_BYTES)
    shared_bytes = columns * max(dtype.itemsize, 4)  # kept in the compute type
    if not fits(shared_bytes, REFERENCE):
        return Plan(
            tier="streamed", pack=pack, width=BLOCKS[-1]
        )  # nothing to keep: the largest block hides best
    least = resident_blocks(BLOCKS[0], shared_bytes)
    width = max(b for b in BLOCKS if resident_blocks(b, shared_bytes) == least)
    if not fits(shared_bytes, architecture):
        return Plan(tier="streamed", pack=pack, width=width)  # the same threads, hence the same bits
    return Plan(tier="shared", pack=pack, width=width, shared_bytes=shared_bytes)


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
    kernel[min(grid, LARGEST_GRID), block, chosen.shared_bytes](*arguments)


# ---- 3. Layer normalization ----

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def compute_dtype(dtype):
    """Return the dtype of statistics and sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def normalized_columns(input, normalized_shape, weight, bias, residual=None):
    """Return the number of columns, or refuse what the kernels do not do.

    Raises:
        ValueError: a dtype or shape that does not fit, or tensors on several devices.

    """
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if input.dtype not in DTYPES:
        raise ValueError(f"layer_norm takes float16, bfloat16, float32 or float64, not {input.dtype}")
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape {shape} is not the end of the input's shape {tuple(input.shape)}")
    for name, tensor, expected in (
        ("weight", weight, shape),
        ("bias", bias, shape),
        ("residual", residual, tuple(input.shape)),
    ):
        if tensor is None:
            continue
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must have {expected}")
        if tensor.dtype != input.dtype or tensor.device != input.device:
            raise ValueError(
                f"{name} is {tensor.dtype} on {tensor.device}; input {input.dtype} on {input.device}"
            )
    return math.prod(shape)


def normalize(module, variance, input, columns, weight, bias, eps, residual=None, output_dtype=None):
    """Launch the kernel of `variance` in `module`; returns (output, mean, rstd).

    output: the shape of input, contiguous, in `output_dtype` (None: the input's).
    mean, rstd: (rows,), in the compute dtype.
    """
    output_dtype = output_dtype or input.dtype
    rows = math.prod(input.shape) // columns if columns else 0
    output = torch.empty(input.shape, dtype=output_dtype, device=input.device)
    mean, rstd = (torch.empty(rows, dtype=compute_dtype(input.dtype), device=input.device) for _ in range(2))
    if rows == 0:
        return output, mean, rstd
    x = as_rows(input, columns)
    r = None if residual is None else as_rows(residual, columns)
    w, b = (None if t is None else t.reshape(columns) for t in (weight, bias))
    chosen = plan(columns, input.dtype, module.architecture(input))
    strides = (*x.stride(), r, *(r.stride() if r is not None else (0, 0)))
    affine = (w, w.stride(0) if w is not None else 0, b, b.stride(0) if b is not None else 0)
    launch_rows(
        module,
        "layer_norm",
        chosen,
        rows,
        (variance, input.dtype, output_dtype, r is not None),
        vectorises(chosen, x, r, w, b),
        (x, *strides, *affine, output, mean, rstd, rows, columns, float(eps)),
    )
    return output, mean, rstd


def backward_module():
    """Return the file of the backward, which in turn uses this one's dispatcher."""
    return load(Path(__file__).with_name("layer_norm_backward_cuda.py")).module


class Normalization(torch.autograd.Function):
    """Layer normalization by any of the variance algorithms, with the deterministic CUDA backward."""

    @staticmethod
    def forward(ctx, input, weight, bias, columns, eps, module, variance):
        output, mean, rstd = normalize(module, variance, input, columns, weight, bias, eps)
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.columns = columns
        ctx.shapes = tuple(None if t is None else t.shape for t in (weight, bias))
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        found = backward_module().gradients(grad_output, *ctx.saved_tensors, columns=ctx.columns)
        grad_input, grad_weight, grad_bias = found
        weight_shape, bias_shape = ctx.shapes
        grad_weight = None if weight_shape is None else grad_weight.reshape(weight_shape)
        grad_bias = None if bias_shape is None else grad_bias.reshape(bias_shape)
        return grad_input, grad_weight, grad_bias, None, None, None, None


def layer_norm_by(module, variance, input, normalized_shape, weight, bias, eps):
    """Normalize the last dimensions of `input`; returns (output, mean, rstd): the body of every subject."""
    columns = normalized_columns(input, normalized_shape, weight, bias)
    return Normalization.apply(input, weight, bias, columns, eps, module, variance)


# ---- 4. The subject ----

WELFORD = source(__file__)
TREES = Trees(
    statistics=replace(tree(depth=additions), stages_of=stages),
    row_gradients=tree(depth=lambda columns: backward_module().row_additions(columns)),
    columns=tree(depth=lambda rows: backward_module().column_additions(rows)),
)


@subject(
    op="layer_norm",
    language="cuda",
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=TREES,
    mean_contraction="none",  # the mean is the end of a division or an addition: one machine number
    divide_by_n="division",
    clamp=True,
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e2, max_abs=1e15),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def layer_norm_welford_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by Welford's variance, the row kept in registers or shared memory."""
    return layer_norm_by(WELFORD, "Welford", input, normalized_shape, weight, bias, eps)

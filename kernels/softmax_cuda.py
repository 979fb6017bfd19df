"""Softmax in three CUDA tiers, the other half of the published library.

Packs, groups, blocks and tiers are those of the layer norm (row_norm_skeleton_cuda.py); only the work on a
row differs. Log-softmax is the same launch with another kind (log_softmax_cuda.py). Any dimension, any
strides, forward and backward.
"""

from pathlib import Path

import torch
from torch.autograd.function import once_differentiable

from verifier import Source, Trees, load, source, subject, tree

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="every dimension and stride, misaligned storage, any number of rows and columns",
)

tiers = load(Path(__file__).with_name("row_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)
WARPS = 4  # rows of a block in the gradient's warp form
BLOCK = 256  # threads a row in its block form


def backward_additions(columns):
    """Return the most additions that an element meets in the gradient's sum over a row."""
    pack, threads = 4, tiers.WARP if columns <= tiers.WARP_TIER_COLUMNS else BLOCK
    in_thread = -(-columns // (pack * threads)) * pack - 1
    return min(in_thread + (threads - 1).bit_length(), columns - 1)


def rows_of(input, dim):
    """Return `input` with `dim` moved to the end; refuse what the kernels do not do.

    Raises:
        ValueError: another dtype than the four floating ones, or no such dimension.

    """
    if input.dtype not in tiers.DTYPES:
        raise ValueError(f"softmax takes float16, bfloat16, float32 or float64, not {input.dtype}")
    if not -input.dim() <= dim < input.dim():
        raise ValueError(f"softmax over dimension {dim} of a tensor of rank {input.dim()}")
    return input.movedim(dim, -1)


class RowSoftmax(torch.autograd.Function):
    """Softmax or log-softmax over the last dimension."""

    @staticmethod
    def forward(ctx, input, module, kind):
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        ctx.save_for_backward(output)
        ctx.kind = (module, kind)
        if input.numel():
            columns = input.shape[-1]
            x = tiers.as_rows(input, columns)
            chosen = tiers.plan(columns, x.dtype, module.architecture(x))
            arguments = (x, *x.stride(), output, x.shape[0], columns)
            vector = tiers.vectorises(chosen, x)
            tiers.launch_rows(module, "softmax", chosen, x.shape[0], (kind, x.dtype), vector, arguments)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        grad_input = torch.empty(output.shape, dtype=output.dtype, device=output.device)
        if output.numel():
            _launch_backward(*ctx.kind, grad_output, output, grad_input)
        return grad_input, None, None


def _launch_backward(module, kind, grad_output, output, grad_input):
    columns = output.shape[-1]
    dy, y = tiers.as_rows(grad_output, columns), tiers.as_rows(output, columns)
    pack = next(p for p in (4, 2, 1) if columns % p == 0 and p * y.element_size() <= tiers.VECTOR_BYTES)
    vector = tiers.vectorises(tiers.TierPlan(tier="", pack=pack, width=0), dy, y)
    by_block = columns > tiers.WARP_TIER_COLUMNS
    block = (BLOCK, 1) if by_block else (tiers.WARP, WARPS)
    kernel = module.kernel("softmax_backward", kind, y.dtype, pack, vector, by_block)
    rows = y.shape[0]
    kernel[-(-rows // block[1]), block](dy, *dy.stride(), y, *y.stride(), grad_input, rows, columns)


def softmax_by(module, kind, input, dim):
    """Apply the kernels of `kind` in `module` over one dimension."""
    return RowSoftmax.apply(rows_of(input, dim), module, kind).movedim(-1, dim)


TREES = Trees(statistics=tree(depth=tiers.additions), row_gradients=tree(depth=backward_additions))


@subject(
    op="softmax",
    language="cuda",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=TREES,
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def softmax_cuda(input, dim):
    """Softmax in CUDA C++, the row kept in registers or shared memory."""
    return softmax_by(KERNELS, "Softmax", input, dim)

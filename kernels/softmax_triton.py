"""Softmax of one Triton program a row, forward and backward, over any dimension and layout.

Forward: the largest element, the sum of exp(x - largest), and the quotients, in tiles of at most 64 KB.
Backward: dx = y * (dy - sum(dy * y)), where y is computed again in fp32 from the row's two saved statistics:
a y that was stored in half would bring its rounding into every element.
Log-softmax (log_softmax_triton.py) is the same launch with LOG set: it differs in four expressions. The
online forms (softmax_online_triton.py) bring a `sums` of their own, which sweeps the row once, and a tile.

A row that holds NaN or +infinity, and a row of -infinity alone, comes out as NaN, as in PyTorch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from verifier import Source, Trees, load, subject, tile, tree

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="our own in Triton",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
row_tile = skeleton.row_tile

DTYPES = ("float16", "bfloat16", "float32")


@triton.jit
def _output(shifted, whole, LOG: tl.constexpr):
    """An element of the output, from x - largest and the row's sum of exponentials (or its logarithm)."""
    return shifted - whole if LOG else tl.div_rn(tl.exp(shifted), whole)


@triton.jit
def _sums(x, x_column, columns, BLOCK: tl.constexpr):
    """Two sweeps over the row at x: its largest element, so that no exponential overflows, then the sum."""
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, value)
    top = tl.max(largest, axis=0)
    # A masked lane is -infinity and adds 0.
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        lanes += tl.exp(value - top)
    return top, tl.sum(lanes, axis=0)


@triton.jit
def _forward(
    x, y, tops, totals, x_row, x_column, columns,
    SUMS: tl.constexpr, LOG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes one row; SUMS finds its largest element and its sum of exponentials, as `_sums` does."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    top, total = SUMS(x, x_column, columns, BLOCK)
    tl.store(tops + row, top)
    tl.store(totals + row, total)
    whole = tl.log(total) if LOG else total
    # Last sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        tl.store(y + row * columns + column, _output(value - top, whole, LOG), mask=column < columns)


@triton.jit
def _backward(
    dx, dy, x, tops, totals, dy_row, dy_column, x_row, x_column, columns,
    LOG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    top = tl.load(tops + row)
    total = tl.load(totals + row)
    whole = tl.log(total) if LOG else total
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        term = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        if not LOG:
            value = tl.load(x + column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
            term *= _output(value - top, whole, LOG)
        lanes += term
    dot = tl.sum(lanes, axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
        out = _output(value - top, whole, LOG)
        d = d - tl.exp(out) * dot if LOG else out * (d - dot)
        tl.store(dx + row * columns + column, d, mask=inside)


def as_rows(tensor, dim):
    """The tensor as (rows, columns), a view where its strides allow it."""
    columns = tensor.shape[dim]
    return tensor.movedim(dim, -1).reshape(tensor.numel() // columns, columns)


def as_before(rows, shape, dim):
    """Undoes `as_rows`."""
    rest = [extent for axis, extent in enumerate(shape) if axis != dim]
    return rows.reshape(*rest, shape[dim]).movedim(-1, dim)


@dataclass(frozen=True, kw_only=True)
class SoftmaxDesign:
    """What tells one softmax from another: how the forward sums a row, and how a row is tiled.

    tile: (columns of a tile, warps) for so many columns of a dtype, in the forward and in the backward.
    """

    sums: Any
    tile: Callable[[int, torch.dtype], tuple[int, int]] = row_tile


class _RowSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim, log, design):
        ctx.dim, ctx.log, ctx.tile = dim, log, design.tile
        if not input.numel():
            ctx.save_for_backward(input, None, None)
            return torch.empty_like(input)
        x = as_rows(input, dim)
        rows, columns = x.shape
        output = torch.empty(rows, columns, dtype=input.dtype, device=input.device)
        top = torch.empty(rows, dtype=torch.float32, device=input.device)
        total = torch.empty_like(top)
        block, warps = design.tile(columns, input.dtype)
        with skeleton.on(input):
            _forward[(rows,)](
                x, output, top, total, *x.stride(), columns,
                SUMS=design.sums, LOG=log, BLOCK=block, num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(input, top, total)
        return as_before(output, input.shape, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, top, total = ctx.saved_tensors
        if top is None:
            return torch.empty_like(saved), None, None, None
        x, dy = as_rows(saved, ctx.dim), as_rows(grad_output, ctx.dim)
        rows, columns = x.shape
        grad_input = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
        block, warps = ctx.tile(columns, x.dtype)
        with skeleton.on(x):
            _backward[(rows,)](
                grad_input, dy, x, top, total, *dy.stride(), *x.stride(), columns,
                LOG=ctx.log, BLOCK=block, num_warps=warps,
            )  # fmt: skip
        return as_before(grad_input, saved.shape, ctx.dim), None, None, None


def row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    tiles = [(*row_tile(columns, dtype), dtype.itemsize) for dtype in (torch.float16, torch.float32)]
    return max(tile(block=b, threads=32 * w, element_bytes=size).depth(columns) for b, w, size in tiles)


DESIGN = SoftmaxDesign(sums=_sums)


def softmax_by(op, input, dim, design):
    """Softmax, or its logarithm, over one dimension; refuses before the first launch what it cannot take."""
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"{op} takes {', '.join(DTYPES)}, not {input.dtype}.")
    if not input.dim() or not -input.dim() <= dim < input.dim():
        raise ValueError(f"dim {dim} is not a dimension of shape {tuple(input.shape)}.")
    if input.shape[dim] > skeleton.LONGEST_ROW:
        raise ValueError(f"Rows of more than {skeleton.LONGEST_ROW} columns are not supported.")
    return _RowSoftmax.apply(input, dim % input.dim(), op == "log_softmax", design)


TREES = Trees(statistics=tree(depth=row_depth), row_gradients=tree(depth=row_depth))


@subject(
    op="softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=DTYPES,
    trees=TREES,
    guarantees=skeleton.GUARANTEES,
)
def softmax_triton(input, dim):
    return softmax_by("softmax", input, dim, DESIGN)

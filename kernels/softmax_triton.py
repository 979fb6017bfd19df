"""Softmax of one Triton program a row, forward and backward, over any dimension and layout.

Forward: the largest element, the sum of exp(x - largest), and the quotients, in tiles of at most 64 KB.
Backward: dx = y * (dy - sum(dy * y)), where y is computed again in fp32 from the row's two saved statistics:
a y that was stored in half would bring its rounding into every element.

A row that holds NaN or +infinity, and a row of -infinity alone, comes out as NaN, as in PyTorch.
"""

import contextlib

import torch
import triton
import triton.language as tl

from verifier import Trees, subject, tile, tree

DTYPES = ("float16", "bfloat16", "float32")
ROW_BYTES = 65536  # a tile is at most this wide: more would spill registers
LONGEST_ROW = 2**30  # columns are counted in 32 bits


@triton.jit
def _forward(x, y, tops, totals, x_row, x_column, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    # First sweep: the largest element, so that no exponential overflows.
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        largest = tl.maximum(largest, value)
    top = tl.max(largest, axis=0)
    # Second sweep: the sum. A masked lane is -infinity and adds 0.
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        lanes += tl.exp(value - top)
    total = tl.sum(lanes, axis=0)
    tl.store(tops + row, top)
    tl.store(totals + row, total)
    # Third sweep: the output.
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        out = tl.div_rn(tl.exp(value - top), total)
        tl.store(y + row * columns + column, out, mask=column < columns)


@triton.jit
def _backward(dx, dy, x, tops, totals, dy_row, dy_column, x_row, x_column, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * x_row
    dy += row * dy_row
    top = tl.load(tops + row)
    total = tl.load(totals + row)
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
        lanes += d * tl.div_rn(tl.exp(value - top), total)
    dot = tl.sum(lanes, axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        d = tl.load(dy + column * dy_column, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(x + column * x_column, mask=inside, other=float("-inf")).to(tl.float32)
        out = tl.div_rn(tl.exp(value - top), total)
        tl.store(dx + row * columns + column, out * (d - dot), mask=inside)


def _on(tensor):
    """Triton launches on the current device, which need not be the tensor's."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def _tile(columns, element_size):
    block = min(ROW_BYTES // element_size, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 8)


def _as_rows(tensor, dim):
    """The tensor as (rows, columns), a view where its strides allow it."""
    columns = tensor.shape[dim]
    return tensor.movedim(dim, -1).reshape(tensor.numel() // columns, columns)


def _as_before(rows, shape, dim):
    """Undoes `_as_rows`."""
    rest = [extent for axis, extent in enumerate(shape) if axis != dim]
    return rows.reshape(*rest, shape[dim]).movedim(-1, dim)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim):
        ctx.dim = dim
        if not input.numel():
            ctx.save_for_backward(input, None, None)
            return torch.empty_like(input)
        x = _as_rows(input, dim)
        rows, columns = x.shape
        output = torch.empty(rows, columns, dtype=input.dtype, device=input.device)
        top = torch.empty(rows, dtype=torch.float32, device=input.device)
        total = torch.empty_like(top)
        block, warps = _tile(columns, input.element_size())
        with _on(input):
            _forward[(rows,)](x, output, top, total, *x.stride(), columns, BLOCK=block, num_warps=warps)
        ctx.save_for_backward(input, top, total)
        return _as_before(output, input.shape, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, top, total = ctx.saved_tensors
        if top is None:
            return torch.empty_like(saved), None
        x, dy = _as_rows(saved, ctx.dim), _as_rows(grad_output, ctx.dim)
        rows, columns = x.shape
        grad_input = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
        block, warps = _tile(columns, x.element_size())
        with _on(x):
            _backward[(rows,)](
                grad_input, dy, x, top, total, *dy.stride(), *x.stride(), columns,
                BLOCK=block, num_warps=warps,
            )  # fmt: skip
        return _as_before(grad_input, saved.shape, ctx.dim), None


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    tiles = [(*_tile(columns, size), size) for size in (2, 4)]
    return max(tile(block=b, threads=32 * w, element_bytes=size).depth(columns) for b, w, size in tiles)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=DTYPES,
    trees=Trees(statistics=tree(depth=_row_depth), row_gradients=tree(depth=_row_depth)),
    guarantees={
        "determinism",
        "batch_invariance",
        "gradgradcheck",
        "special_values",
        "layouts",
        "large_offsets",
    },
)
def softmax_triton(input, dim):
    if str(input.dtype).removeprefix("torch.") not in DTYPES:
        raise ValueError(f"softmax takes {', '.join(DTYPES)}, not {input.dtype}.")
    if not input.dim() or not -input.dim() <= dim < input.dim():
        raise ValueError(f"dim {dim} is not a dimension of shape {tuple(input.shape)}.")
    if input.shape[dim] > LONGEST_ROW:
        raise ValueError(f"Rows of more than {LONGEST_ROW} columns are not supported.")
    return _Softmax.apply(input, dim % input.dim())

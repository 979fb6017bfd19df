"""Softmax with whole rows in registers, one long or several short ones a program: a row is read once.

Forward: the largest element, the exponentials of x - largest, their sum, and their products with its
reciprocal: a quotient for each element would take longer than its way through memory.
Backward: dx = y * (dy - sum(dy * y)), where y is computed again in fp32 from the row's two saved statistics:
a y that was stored in half would bring its rounding into every element.
Log-softmax (log_softmax_tiled_triton.py) is the same launch with LOG set: it differs in four expressions.
Rows that fit into no tile go through softmax_triton.py, which takes any width.

A row that holds NaN or +infinity, and a row of -infinity alone, comes out as NaN, as in PyTorch.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Source, Trees, load, subject, tile, tree

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="our own in Triton: several rows a program, each in registers",
)

tiles = load(Path(__file__).with_name("row_tiles_skeleton_triton.py")).module
wide = load(Path(__file__).with_name("softmax_triton.py")).module
skeleton = tiles.skeleton
product = skeleton.product
LONGEST_ROW = 2**15  # the backward has two tensors in registers
AHEAD = 3  # stages of a loop over rows: one is computed, two are on their way


@triton.jit
def _normalize(
    x, y, tops, totals, x_row, start, rows, columns,
    LOG: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Takes the tile of rows from `start` on."""
    row = start + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK).to(tl.int64)
    there = row < rows
    inside = there[:, None] & (column < columns)[None, :]
    place = x + row[:, None] * x_row + column[None, :]
    value = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
    top = tl.max(value, axis=1)
    shifted = value - top[:, None]
    exponential = tl.exp(shifted)  # a masked lane is -infinity and adds 0
    total = tl.sum(exponential, axis=1)
    tl.store(tops + row, top, mask=there)
    tl.store(totals + row, total, mask=there)
    if LOG:
        out = shifted - product(tl.log(total), 1.0)[:, None]
    else:
        out = exponential * tl.div_rn(tl.full((TALL,), 1.0, tl.float32), total)[:, None]
    tl.store(y + row[:, None] * columns + column[None, :], out, mask=inside)


@triton.jit
def _forward(
    x, y, tops, totals, x_row, rows, columns,
    LOG: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """A program has one tile; or, AHEAD, takes tiles in turns, the next ones on their way meanwhile."""
    first = tl.program_id(0).to(tl.int64) * TALL
    if AHEAD:
        for start in tl.range(first, rows, tl.num_programs(0) * TALL, num_stages=AHEAD):
            _normalize(x, y, tops, totals, x_row, start, rows, columns, LOG, TALL, BLOCK)
    else:
        _normalize(x, y, tops, totals, x_row, first, rows, columns, LOG, TALL, BLOCK)


@triton.jit
def _backward(
    dx, dy, x, tops, totals, dy_row, x_row, rows, columns,
    LOG: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """AGAIN: dy is loaded again, from the cache, after its sum, and fills no registers until then."""
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK).to(tl.int64)
    there = row < rows
    inside = there[:, None] & (column < columns)[None, :]
    top = tl.load(tops + row, mask=there, other=0.0)
    total = tl.load(totals + row, mask=there, other=1.0)
    incoming = dy + row[:, None] * dy_row + column[None, :]
    d = tl.load(incoming, mask=inside, other=0.0)
    place = x + row[:, None] * x_row + column[None, :]
    value = tl.load(place, mask=inside, other=float("-inf")).to(tl.float32)
    shifted = value - top[:, None]
    if LOG:
        output = tl.exp(shifted - product(tl.log(total), 1.0)[:, None])
        term = d.to(tl.float32)
    else:
        output = tl.exp(shifted) * tl.div_rn(tl.full((TALL,), 1.0, tl.float32), total)[:, None]
        term = product(d.to(tl.float32), output)
    dot = tl.sum(term, axis=1)[:, None]
    if AGAIN:
        tl.debug_barrier()  # a compiler takes loads on both sides of it for two
        d = tl.load(incoming, mask=inside, other=0.0)
    d = d.to(tl.float32)
    out = tl.fma(-output, dot, d) if LOG else output * (d - dot)
    tl.store(dx + row[:, None] * columns + column[None, :], out, mask=inside)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim, log):
        ctx.dim, ctx.log = dim, log
        x = tiles.as_rows(wide.as_rows(input, dim))
        rows, columns = x.shape
        output = torch.empty(rows, columns, dtype=input.dtype, device=input.device)
        top, total = torch.empty(2, rows, dtype=torch.float32, device=input.device)
        tall, block, warps = forward_tile(columns, input.dtype)
        programs, ahead = forward_programs(rows, tall, block, input.dtype)
        with skeleton.on(input):
            _forward[(programs,)](
                x, output, top, total, x.stride(0), rows, columns,
                LOG=log, TALL=tall, BLOCK=block, AHEAD=ahead, num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(input, top, total)
        return wide.as_before(output, input.shape, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, top, total = ctx.saved_tensors
        x, dy = (tiles.as_rows(wide.as_rows(tensor, ctx.dim)) for tensor in (saved, grad_output))
        rows, columns = x.shape
        grad_input = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
        tall, block, warps, again = backward_tile(columns, x.dtype, ctx.log)
        with skeleton.on(x):
            _backward[(triton.cdiv(rows, tall),)](
                grad_input, dy, x, top, total, dy.stride(0), x.stride(0), rows, columns,
                LOG=ctx.log, TALL=tall, BLOCK=block, AGAIN=again, num_warps=warps,
            )  # fmt: skip
        return wide.as_before(grad_input, saved.shape, ctx.dim), None, None


def softmax_by(op, input, dim):
    """Softmax, or its logarithm, over one dimension; what is no row of a tile goes the way of any width."""
    fits = input.dim() and -input.dim() <= dim < input.dim() and input.shape[dim] <= LONGEST_ROW
    if not fits or not input.numel() or str(input.dtype).removeprefix("torch.") not in wide.DTYPES:
        return wide.softmax_by(op, input, dim, wide.DESIGN)
    return _Softmax.apply(input, dim % input.dim(), op == "log_softmax")


# By the bytes of an element and the columns of a tile, where others are faster: its rows and its warps.
FORWARD = {
    (2, 256): (8, 2), (2, 512): (8, 4),
    (4, 32): (16, 1), (4, 64): (16, 1), (4, 256): (4, 1), (4, 512): (2, 2), (4, 1024): (1, 2),
}  # fmt: skip
BACKWARD = {
    (2, 64): (64, 4), (2, 8192): (1, 8), (2, 16384): (1, 16),
    (4, 32): (32, 1), (4, 64): (32, 1), (4, 512): (2, 4), (4, 1024): (1, 4), (4, 32768): (1, 8),
}  # fmt: skip
LOG_BACKWARD = {**BACKWARD, (4, 64): (64, 2), (4, 32768): (1, 16)}


def _tile(columns, size, known):
    """Rows and columns of a tile, and its warps; unless another is known, with 16 to 64 elements a lane."""
    block = triton.next_power_of_2(columns)
    elements = 1024 if size == 4 and block <= 256 else 2048
    tall, warps = known.get((size, block), (max(1, elements // block), min(max(block // 512, 4), 32)))
    return tall, block, warps


def forward_tile(columns, dtype):
    """Rows and columns of a tile of the forward, and its warps."""
    return _tile(columns, dtype.itemsize, FORWARD)


def forward_programs(rows, tall, block, dtype):
    """Programs of the forward, and tiles that each loads ahead.

    The longest half rows leave no room for a second tile in registers, but for two in shared memory.
    """
    if block == LONGEST_ROW and dtype.itemsize == 2:
        return min(rows, tiles.PROGRAMS), AHEAD
    return triton.cdiv(rows, tall), 0


def backward_tile(columns, dtype, log):
    """The same of the backward, and whether dy is loaded again.

    Half rows of 16384 columns leave room for a second tile so; the longest of a softmax in float16 need just
    as many registers as they have without dy.
    """
    tall, block, warps = _tile(columns, dtype.itemsize, LOG_BACKWARD if log else BACKWARD)
    at_limit = block == LONGEST_ROW and dtype == torch.float16 and not log
    return tall, block, warps, at_limit or (dtype.itemsize == 2 and block == LONGEST_ROW // 2)


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in a tile or beyond."""
    if columns > LONGEST_ROW:
        return wide.row_depth(columns)
    tiled = (forward_tile(columns, dtype) for dtype in (torch.float16, torch.float32))
    return max(_depth(*one[1:3], columns) for one in tiled)


def _backward_depth(columns):
    """The same of the backward."""
    if columns > LONGEST_ROW:
        return wide.row_depth(columns)
    tiled = [(dtype, log) for dtype in (torch.float16, torch.float32) for log in (False, True)]
    return max(_depth(*backward_tile(columns, *one)[1:3], columns) for one in tiled)


def _depth(block, warps, columns):
    return tile(block=block, threads=32 * warps, element_bytes=2).depth(columns)


TREES = Trees(statistics=tree(depth=_row_depth), row_gradients=tree(depth=_backward_depth))


@subject(
    op="softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="reciprocal_recomputed",
    dtypes=wide.DTYPES,
    trees=TREES,
    guarantees=skeleton.GUARANTEES,
)
def softmax_tiled_triton(input, dim):
    return softmax_by("softmax", input, dim)

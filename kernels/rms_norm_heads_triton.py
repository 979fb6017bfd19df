"""Root-mean-square normalization over heads (QK-norm): queries and keys are read where a projection has them.

What attention normalizes is a part of a packed projection, (samples, tokens, heads, columns) in steps that
are no products of extents, or has heads and tokens exchanged. Here three steps lead to a row, and nothing is
copied but where the elements of a row do not lie side by side.

Forward, a program has a tile of rows in registers. Backward, a fixed number of programs takes tiles in turns,
and keeps its part of the weight's gradient in fp32; a last kernel joins the parts in a fixed order.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the sum of squares may overflow in fp32: the kernel
makes no promise there.
"""

from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="our own: its RMSNorm over heads of packed projections, with a backward",
)

tiles = load(Path(__file__).with_name("row_tiles_skeleton_triton.py")).module
skeleton = tiles.skeleton
divide, product, root = skeleton.divide, skeleton.product, skeleton.root
step, scalar = skeleton.step, skeleton.scalar
WIDEST_HEAD = 1024


@triton.jit
def _row_start(row, tokens, heads, sample_step, token_step, head_step):
    """Where rows begin: a row is a head of a token of a sample."""
    sample, token, head = row // (tokens * heads), row // heads % tokens, row % heads
    return sample * sample_step + token * token_step + head * head_step


@triton.jit
def _forward(
    x, y, weight, rstds, x_sample, x_token, x_head, weight_step, tokens, heads, rows, columns, eps,
    TALL: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * TALL + tl.arange(0, TALL)
    column = tl.arange(0, BLOCK).to(tl.int64)
    there, within = row < rows, column < columns
    inside = there[:, None] & within[None, :]
    if rstds.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    place = x + _row_start(row, tokens, heads, x_sample, x_token, x_head)[:, None] + column[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    mean_square = divide(tl.sum(product(value, value), axis=1), tl.cast(columns, ACCUMULATE))
    rstd = divide(tl.full((TALL,), 1.0, ACCUMULATE), root(mean_square + eps))
    tl.store(rstds + row, rstd, mask=there)
    out = value * rstd[:, None]
    if weight is not None:
        out *= tiles.entries(weight, column, weight_step, within).to(ACCUMULATE)
    tl.store(y + row[:, None] * columns + column[None, :], out, mask=inside)


@triton.jit
def _backward(
    dx, dy, x, weight, rstds, parts_dw, dy_sample, dy_token, dy_head, x_sample, x_token, x_head, weight_step,
    tokens, heads, rows, columns,
    TALL: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    within = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if weight is not None:
        w = tiles.entries(weight, column, weight_step, within).to(ACCUMULATE)
    part_dw = tl.zeros((TALL, BLOCK), ACCUMULATE)
    for start in tl.range(program * TALL, rows, tl.num_programs(0) * TALL, num_stages=AHEAD):
        row = start + tl.arange(0, TALL)
        there = row < rows
        inside = there[:, None] & within[None, :]
        rstd = tl.load(rstds + row, mask=there, other=0.0)
        place = x + _row_start(row, tokens, heads, x_sample, x_token, x_head)[:, None] + column[None, :]
        value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
        place = dy + _row_start(row, tokens, heads, dy_sample, dy_token, dy_head)[:, None] + column[None, :]
        d = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
        hat = value * rstd[:, None]
        g = d
        if weight is not None:
            g = product(d, w)
        c1 = divide(tl.sum(product(hat, g), axis=1), count)
        out = tl.fma(-hat, c1[:, None], g) * rstd[:, None]
        tl.store(dx + row[:, None] * columns + column[None, :], out, mask=inside)
        part_dw += d * hat
    if parts_dw is not None:
        tl.store(parts_dw + program * columns + column, tl.sum(part_dw, axis=0), mask=within)


# ---- Launches ----


def as_heads(tensor, axes, columns):
    """The tensor as (samples, tokens, heads, columns), each row's elements side by side.

    Its last axes are the normalized ones. They are joined, as are axes before heads and tokens: a view where
    their strides allow it.
    """
    leading = tensor.shape[: tensor.dim() - axes]
    while len(leading) > 3:
        leading = (leading[0] * leading[1], *leading[2:])
    heads = tensor.reshape(*(1,) * (3 - len(leading)), *leading, columns)
    return heads if columns == 1 or heads.stride(3) == 1 else heads.contiguous()


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, axes, columns, eps):
        rows = input.numel() // columns if columns else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        rstd = torch.empty(rows, dtype=statistics, device=input.device)
        if rows:
            x = as_heads(input, axes, columns)
            w = None if weight is None else weight.reshape(columns)
            tall, block, warps, _, _ = tiles.forward_tile(rows, columns, input.dtype)
            with skeleton.on(input):
                _forward[(triton.cdiv(rows, tall),)](
                    x, output, w, rstd, *x.stride()[:3], step(w), x.shape[1], x.shape[2], rows, columns,
                    scalar(eps, input), TALL=tall, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        ctx.save_for_backward(input, weight, rstd)
        ctx.axes = axes
        ctx.mark_non_differentiable(rstd)
        return output, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_rstd):
        saved, weight, rstd = ctx.saved_tensors
        rows = rstd.numel()
        columns = saved.numel() // rows if rows else 0
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        grad_weight = parts = None
        if ctx.needs_input_grad[1]:
            grad_weight = skeleton.sum_over(rows, weight.shape, weight.dtype, saved.device)
        if not rows:
            return grad_input, grad_weight, None, None, None
        x, dy = (as_heads(tensor, ctx.axes, columns) for tensor in (saved, grad_output))
        w = None if weight is None else weight.reshape(columns)
        tall, block, ahead, warps, _ = tiles.backward_tile(rows, columns, saved.dtype)
        programs = tiles.backward_programs(rows, tall, warps, 1)
        if grad_weight is not None:
            parts = rstd.new_empty(programs, columns)
        with skeleton.on(saved):
            _backward[(programs,)](
                grad_input, dy, x, w, rstd, parts, *dy.stride()[:3], *x.stride()[:3], step(w), x.shape[1],
                x.shape[2], rows, columns, TALL=tall, BLOCK=block, AHEAD=ahead,
                ACCUMULATE=skeleton.accumulator(saved.dtype)[1], num_warps=warps,
            )  # fmt: skip
            skeleton.join_parts([(parts, grad_weight)], programs, columns)
        return grad_input, grad_weight, None, None, None


# ---- The subject ----


@subject(
    op="rms_norm",
    language="triton",
    source=SOURCE,
    variance="rms",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=tiles.forward_depth),
        row_gradients=tree(depth=tiles.backward_depth),
        columns=tree(depth=tiles.column_depth),
    ),
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of squares stays finite.
    domain=Domain(max_abs=1e15, max_columns=WIDEST_HEAD, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def rms_norm_heads_triton(input, normalized_shape, weight=None, eps=None):
    columns = skeleton.normalized_columns("rms_norm", input, normalized_shape, WIDEST_HEAD, weight=weight)
    if eps is None:  # as PyTorch does
        eps = torch.finfo(skeleton.accumulator(input.dtype)[0]).eps
    return _RMSNorm.apply(input, weight, len(tuple(normalized_shape)), columns, float(eps))

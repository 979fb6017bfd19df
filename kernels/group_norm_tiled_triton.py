"""Group normalization with whole groups in registers, one a program: each element is read once.

A tile is the channels of a group by their positions, so that no element's channel has to be divided out.
Backward, the same sweep leaves each channel's sums of one sample, and a last kernel joins the samples in a
fixed order: no lock, no atomic, the same bits in every run.
Groups that fit into no tile, short channels and positions that do not lie side by side go through
group_norm_triton.py, which takes any layout.

A row that holds NaN or infinity comes out as NaN, and no other row does. Beyond |x| = 1e15 the sum of
squares may overflow in fp32: the kernel makes no promise there.
"""

import math
from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="our own, after the document's other norms",
)

wide = load(Path(__file__).with_name("group_norm_triton.py")).module
skeleton = wide.skeleton
divide, product, root = skeleton.divide, skeleton.product, skeleton.root
step, sums = skeleton.step, skeleton.sums
LARGEST = 16384  # elements of a tile: the backward has two tensors in registers
SHORTEST = 64  # positions of a channel: of fewer the parts of its sums would be as many as elements


@triton.jit
def _forward(
    x, y, weight, bias, means, rstds, x_sample, x_channel, weight_step, bias_step,
    groups, channels, space, eps, TALL: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """`channels` counts those of one group."""
    row = tl.program_id(0).to(tl.int64)
    sample, group = row // groups, row % groups
    channel, at = tl.arange(0, TALL), tl.arange(0, BLOCK).to(tl.int64)
    there = channel < channels
    inside = there[:, None] & (at < space)[None, :]
    entry = group * channels + channel
    count = tl.cast(channels * space, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    place = x + sample * x_sample + entry[:, None] * x_channel + at[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(tl.sum(value, axis=1), axis=0), count)
    centred = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
    squares = tl.sum(tl.sum(product(centred, centred), axis=1), axis=0)
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(squares, count) + eps))
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + entry * weight_step, mask=there, other=0.0).to(ACCUMULATE)[:, None]
    if bias is not None:
        out += tl.load(bias + entry * bias_step, mask=there, other=0.0).to(ACCUMULATE)[:, None]
    place = y + row * channels * space + channel[:, None] * space + at[None, :]
    tl.store(place, out, mask=inside)


@triton.jit
def _backward(
    dx, dy, x, weight, means, rstds, parts_dw, parts_db, dy_sample, dy_channel, x_sample, x_channel,
    weight_step, groups, channels, space,
    TALL: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row: its dx, and its channels' parts of dw and db."""
    row = tl.program_id(0).to(tl.int64)
    sample, group = row // groups, row % groups
    channel, at = tl.arange(0, TALL), tl.arange(0, BLOCK).to(tl.int64)
    there = channel < channels
    inside = there[:, None] & (at < space)[None, :]
    entry = group * channels + channel
    count = tl.cast(channels * space, ACCUMULATE)
    mean = tl.load(means + row)
    rstd = tl.load(rstds + row)
    place = x + sample * x_sample + entry[:, None] * x_channel + at[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    place = dy + sample * dy_sample + entry[:, None] * dy_channel + at[None, :]
    d = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    hat = tl.where(inside, (value - mean) * rstd, 0.0)
    part_dw, part_db = sums(product(d, hat), d, axis=1)
    if parts_dw is not None:
        tl.store(parts_dw + row * channels + channel, part_dw, mask=there)
    if parts_db is not None:
        tl.store(parts_db + row * channels + channel, part_db, mask=there)
    g = d
    if weight is not None:
        w = tl.load(weight + entry * weight_step, mask=there, other=0.0).to(ACCUMULATE)
        g = product(d, w[:, None])
    along_hat, plain = sums(product(hat, g), g, axis=1)
    along_hat, plain = sums(along_hat, plain, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    out = (g - (hat * c1 + c2)) * rstd
    place = dx + row * channels * space + channel[:, None] * space + at[None, :]
    tl.store(place, out, mask=inside)


def _tile(channels, space):
    """Channels and positions of a tile, and its warps: 2048 elements each."""
    tall, block = triton.next_power_of_2(channels), triton.next_power_of_2(space)
    return tall, block, min(max(tall * block // 2048, 1), 8)


def _fits(input, groups):
    """Whether a group fits into a tile."""
    if not input.numel() or input.dim() < 3 or groups < 1:
        return False
    space = math.prod(input.shape[2:])
    tall, block, _ = _tile(triton.cdiv(input.shape[1], groups), space)
    return space >= SHORTEST and tall * block <= LARGEST


def _as_channels(tensor):
    """The tensor as (samples, channels, positions), each channel's positions side by side: others are copied.

    A compiler gives lanes their elements by the strides that it sees.
    """
    seen = tensor.reshape(*tensor.shape[:2], -1)
    return seen if seen.stride(2) == 1 else seen.contiguous()


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, groups, eps):
        x = _as_channels(input)
        samples, channels, space = x.shape
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(samples * groups, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        share = channels // groups
        tall, block, warps = _tile(share, space)
        with skeleton.on(input):
            _forward[(samples * groups,)](
                x, output, weight, bias, mean, rstd, *x.stride()[:2], step(weight), step(bias),
                groups, share, space, skeleton.scalar(eps, input),
                TALL=tall, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
            )  # fmt: skip
        ctx.save_for_backward(input, weight, mean, rstd)
        ctx.groups = groups
        ctx.dtypes = [None if vector is None else vector.dtype for vector in (weight, bias)]
        ctx.mark_non_differentiable(mean, rstd)
        return output, mean, rstd

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output, _grad_mean, _grad_rstd):
        saved, weight, mean, rstd = ctx.saved_tensors
        x, dy = _as_channels(saved), _as_channels(grad_output)
        samples, channels, space = x.shape
        share = channels // ctx.groups
        statistics, accumulate = skeleton.accumulator(x.dtype)
        grad_input = torch.empty(saved.shape, dtype=x.dtype, device=x.device)
        grads, parts = [], []
        for dtype, needed in zip(ctx.dtypes, ctx.needs_input_grad[1:3], strict=True):
            grads.append(torch.empty(channels, dtype=dtype, device=x.device) if needed else None)
            shape = (samples, channels)
            parts.append(torch.empty(shape, dtype=statistics, device=x.device) if needed else None)
        tall, block, warps = _tile(share, space)
        with skeleton.on(x):
            _backward[(samples * ctx.groups,)](
                grad_input, dy, x, weight, mean, rstd, *parts, *dy.stride()[:2], *x.stride()[:2],
                step(weight), ctx.groups, share, space,
                TALL=tall, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
            )  # fmt: skip
            skeleton.join_parts(zip(parts, grads, strict=True), samples, channels)
        return grad_input, *grads, None, None


def _in_tile(columns):
    """Additions that a leaf of a sum over a tile meets at most, however channels and positions share it.

    A lane has 64 elements; those along the positions are added in turn or by halves, then those of channels.
    """
    elements = min(4 * triton.next_power_of_2(columns), LARGEST)
    lanes = 32 * min(max(elements // 2048, 1), 8)
    return max(elements // lanes, 1) - 1 + (min(elements, 2 * lanes) - 1).bit_length()


def _depth(columns):
    """Additions that a leaf of a row's sum meets at most, in a tile or beyond."""
    return max(_in_tile(columns), wide.depth(columns))


def _column_depth(columns):
    """The same of a channel's sum, over its positions and then over the samples."""
    in_tiles = _in_tile(columns) + skeleton.joined_depth(triton.cdiv(columns, SHORTEST))
    return max(in_tiles, wide.depth(columns))


@subject(
    op="group_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=_depth), row_gradients=tree(depth=_depth), columns=tree(depth=_column_depth)
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def group_norm_tiled_triton(input, num_groups, weight=None, bias=None, eps=1e-5):
    if not _fits(input, num_groups):
        return wide.normalized("group_norm", input, num_groups, weight, bias, eps)
    wide.refuse("group_norm", input, num_groups, weight, bias)
    return _GroupNorm.apply(input, weight, bias, num_groups, float(eps))

"""Group normalization of one Triton program a group, two-pass, forward and backward, for any layout.

Input (N, C, *) is seen as (N, C, S) with its own three strides; a row is one sample's group: C / groups
channels of S elements. The sums over a row go tile by tile in fp32. The gradients of weight and bias are sums
over N and S, one program a channel, in a fixed order: no lock, no atomic, the same bits in every run.

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

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, product, root = skeleton.divide, skeleton.product, skeleton.root
step, sums = skeleton.step, skeleton.sums
TILE = 4096  # elements of one sweep: 16 for each of 256 threads
LONGEST_ROW = 2**30  # elements of a row are counted in 32 bits


@triton.jit
def _place(element, group, sample, channels, space, sample_step, channel_step, space_step):
    """Where the elements of a group lie, and their channels."""
    channel = (group * channels + element // space).to(tl.int64)
    return sample * sample_step + channel * channel_step + (element % space).to(
        tl.int64
    ) * space_step, channel


@triton.jit
def _forward(
    x, y, weight, bias, means, rstds, x_sample, x_channel, x_space, weight_step, bias_step,
    groups, channels, space, eps, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """`channels` counts those of one group."""
    row = tl.program_id(0).to(tl.int64)
    sample, group = row // groups, row % groups
    columns = channels * space
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)
    # First sweep: the mean.
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        place, _ = _place(element, group, sample, channels, space, x_sample, x_channel, x_space)
        total += tl.load(x + place, mask=element < columns, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(total, axis=0), count)
    # Second sweep: the variance about it. A masked lane would add mean^2.
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        place, _ = _place(element, group, sample, channels, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=element < columns, other=0.0).to(ACCUMULATE)
        centred = tl.where(element < columns, value - mean, 0.0)
        total += centred * centred
    variance = divide(tl.sum(total, axis=0), count)
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps))
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    # Third sweep: the output, which is contiguous.
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place, channel = _place(element, group, sample, channels, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        out = (value - mean) * rstd
        if weight is not None:
            out *= tl.load(weight + channel * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        if bias is not None:
            out += tl.load(bias + channel * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
        tl.store(y + row * columns + element, out, mask=inside)


@triton.jit
def _backward_input(
    dx, dy, x, weight, means, rstds, dy_sample, dy_channel, dy_space, x_sample, x_channel, x_space,
    weight_step, groups, channels, space, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one row: its dx."""
    row = tl.program_id(0).to(tl.int64)
    sample, group = row // groups, row % groups
    columns = channels * space
    count = tl.cast(columns, ACCUMULATE)
    mean = tl.load(means + row)
    rstd = tl.load(rstds + row)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place, channel = _place(element, group, sample, channels, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place, _ = _place(element, group, sample, channels, space, dy_sample, dy_channel, dy_space)
        g = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g = product(g, tl.load(weight + channel * weight_step, mask=inside, other=0.0).to(ACCUMULATE))
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        sum_hat_g += hat * g
        sum_g += g
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place, channel = _place(element, group, sample, channels, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place, _ = _place(element, group, sample, channels, space, dy_sample, dy_channel, dy_space)
        g = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        if weight is not None:
            g *= tl.load(weight + channel * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
        hat = (value - mean) * rstd
        tl.store(dx + row * columns + element, (g - (hat * c1 + c2)) * rstd, mask=inside)


@triton.jit
def _backward_channel(
    dy, x, means, rstds, dw, db, dy_sample, dy_channel, dy_space, x_sample, x_channel, x_space,
    groups, channels, samples, space, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one channel: its entries of dw and db."""
    channel = tl.program_id(0).to(tl.int64)
    group = channel // channels
    columns = samples * space
    sum_dw = tl.zeros((BLOCK,), ACCUMULATE)
    sum_db = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        sample = (element // space).to(tl.int64)
        at = (element % space).to(tl.int64)
        place = sample * x_sample + channel * x_channel + at * x_space
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = sample * dy_sample + channel * dy_channel + at * dy_space
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        mean = tl.load(means + sample * groups + group, mask=inside, other=0.0)
        rstd = tl.load(rstds + sample * groups + group, mask=inside, other=0.0)
        sum_dw += d * ((value - mean) * rstd)
        sum_db += d
    sum_dw, sum_db = sums(sum_dw, sum_db, axis=0)
    if dw is not None:
        tl.store(dw + channel, sum_dw)
    if db is not None:
        tl.store(db + channel, sum_db)


def _tile(columns):
    block = min(TILE, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 8)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, groups, eps):
        samples, channels = input.shape[:2]
        space = math.prod(input.shape[2:])
        rows = samples * groups if input.numel() else 0
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(rows, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        if rows:
            x = input.reshape(samples, channels, space)  # a view where the strides allow it
            block, warps = _tile(channels // groups * space)
            with skeleton.on(input):
                _forward[(rows,)](
                    x, output, weight, bias, mean, rstd, *x.stride(), step(weight), step(bias),
                    groups, channels // groups, space, skeleton.scalar(eps, input),
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
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
        samples, channels = saved.shape[:2]
        space = math.prod(saved.shape[2:])
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        grad_weight, grad_bias = (
            skeleton.sum_over(saved.numel(), channels, dtype, saved.device) if needed else None
            for dtype, needed in zip(ctx.dtypes, ctx.needs_input_grad[1:3], strict=True)
        )
        if not saved.numel():
            return grad_input, grad_weight, grad_bias, None, None
        x, dy = (t.reshape(samples, channels, space) for t in (saved, grad_output))
        strides = (*dy.stride(), *x.stride())
        accumulate = skeleton.accumulator(x.dtype)[1]
        share = channels // ctx.groups
        block, warps = _tile(share * space)
        with skeleton.on(x):
            _backward_input[(mean.numel(),)](
                grad_input, dy, x, weight, mean, rstd, *strides, step(weight), ctx.groups, share, space,
                BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
            )  # fmt: skip
            if grad_weight is not None or grad_bias is not None:
                block, warps = _tile(samples * space)
                _backward_channel[(channels,)](
                    dy, x, mean, rstd, grad_weight, grad_bias, *strides, ctx.groups, share, samples, space,
                    BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        return grad_input, grad_weight, grad_bias, None, None


def refuse(op, input, num_groups, weight, bias):
    """Raises before the first launch what the kernels cannot take."""
    skeleton.refuse_dtype(op, input)
    if input.dim() < 2:
        raise ValueError(f"{op} takes (N, C, *), not shape {tuple(input.shape)}.")
    if num_groups < 1 or input.shape[1] % num_groups:
        raise ValueError(f"{input.shape[1]} channels cannot be divided into {num_groups} groups.")
    skeleton.refuse_vectors(input, (input.shape[1],), weight=weight, bias=bias)
    if input.numel() // max(min(input.shape[0], input.shape[1]), 1) > LONGEST_ROW:
        raise ValueError(f"Groups and channels of more than {LONGEST_ROW} elements are not supported.")


def normalized(op, input, num_groups, weight, bias, eps):
    """Normalizes each group of channels of each sample; returns output, mean and rstd."""
    refuse(op, input, num_groups, weight, bias)
    return _GroupNorm.apply(input, weight, bias, num_groups, float(eps))


def depth(columns):
    """Additions that a leaf of a sum meets at most, in whichever dtype."""
    return skeleton.grouped_depth(columns, _tile)


@subject(
    op="group_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(statistics=tree(depth=depth), row_gradients=tree(depth=depth), columns=tree(depth=depth)),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def group_norm_triton(input, num_groups, weight=None, bias=None, eps=1e-5):
    return normalized("group_norm", input, num_groups, weight, bias, eps)

"""Batch normalization of one Triton program a channel, two-pass, for training and evaluation, differentiable.

Input (N, C, *) is seen as (N, C, S) with its own three strides; a channel's N * S elements are one row, read
tile by tile in fp32, so that every sum has one fixed order: no lock, no atomic, the same bits in every run.
Training normalizes by the biased variance and moves running_var towards the unbiased one; one value a
channel is refused there, as in PyTorch. Evaluation reads the running statistics and changes nothing.

A channel that holds NaN or infinity comes out as NaN in training. Beyond |x| = 1e15 the sum of squares may
overflow in fp32: the kernel makes no promise there.
"""

import math
from pathlib import Path

import torch
import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="our own; the document leaves the kernel to its reader",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
divide, root, step, sums = skeleton.divide, skeleton.root, skeleton.step, skeleton.sums
TILE = 4096  # elements of one sweep: 8 for each of 512 threads
LONGEST_ROW = 2**30  # elements of a row are counted in 32 bits


@triton.jit
def _place(element, channel, space, sample_step, channel_step, space_step):
    """Where the elements of a channel lie."""
    sample = (element // space).to(tl.int64)
    return sample * sample_step + channel * channel_step + (element % space).to(tl.int64) * space_step


@triton.jit
def move(
    running_mean, running_var, channel, mean_step, var_step, mean, m2, count, momentum,
    ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Moves a channel's running statistics, in place."""
    if running_mean is not None:
        old = tl.load(running_mean + channel * mean_step).to(ACCUMULATE)
        tl.store(running_mean + channel * mean_step, (1.0 - momentum) * old + momentum * mean)
    if running_var is not None:
        old = tl.load(running_var + channel * var_step).to(ACCUMULATE)
        unbiased = divide(m2, count - 1.0)
        tl.store(running_var + channel * var_step, (1.0 - momentum) * old + momentum * unbiased)


@triton.jit
def _statistics(
    x, means, rstds, running_mean, running_var, x_sample, x_channel, x_space, mean_step, var_step,
    samples, space, momentum, eps, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one channel in training: its mean and rstd, and the running statistics in place."""
    channel = tl.program_id(0).to(tl.int64)
    columns = samples * space
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)
        momentum = tl.load(momentum)
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        place = _place(element, channel, space, x_sample, x_channel, x_space)
        total += tl.load(x + place, mask=element < columns, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(total, axis=0), count)
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        place = _place(element, channel, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=element < columns, other=0.0).to(ACCUMULATE)
        centred = tl.where(element < columns, value - mean, 0.0)  # a masked lane would add mean^2
        total += centred * centred
    m2 = tl.sum(total, axis=0)
    variance = divide(m2, count)
    tl.store(means + channel, mean)
    tl.store(rstds + channel, divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps)))
    move(running_mean, running_var, channel, mean_step, var_step, mean, m2, count, momentum, ACCUMULATE)


@triton.jit
def _running(means, rstds, running_mean, running_var, mean_step, var_step, eps, ACCUMULATE: tl.constexpr):
    """Takes one channel in evaluation: mean and rstd from the running statistics."""
    channel = tl.program_id(0).to(tl.int64)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)
    variance = tl.load(running_var + channel * var_step).to(ACCUMULATE)
    tl.store(means + channel, tl.load(running_mean + channel * mean_step).to(ACCUMULATE))
    tl.store(rstds + channel, divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps)))


@triton.jit
def _normalize(
    x, y, weight, bias, means, rstds, x_sample, x_channel, x_space, weight_step, bias_step,
    samples, channels, space, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one tile of one channel: its output, which is contiguous."""
    channel = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = element < samples * space
    place = _place(element, channel, space, x_sample, x_channel, x_space)
    value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
    out = (value - tl.load(means + channel)) * tl.load(rstds + channel)
    if weight is not None:
        out *= tl.load(weight + channel * weight_step).to(ACCUMULATE)
    if bias is not None:
        out += tl.load(bias + channel * bias_step).to(ACCUMULATE)
    y_sample = tl.cast(channels, tl.int64) * space
    tl.store(y + _place(element, channel, space, y_sample, space, 1), out, mask=inside)


@triton.jit
def _backward(
    dx, dy, x, weight, means, rstds, dw, db, dy_sample, dy_channel, dy_space,
    x_sample, x_channel, x_space, weight_step, samples, channels, space,
    TRAINING: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    """Takes one channel: its dx and its entries of dw and db."""
    channel = tl.program_id(0).to(tl.int64)
    columns = samples * space
    count = tl.cast(columns, ACCUMULATE)
    mean = tl.load(means + channel)
    rstd = tl.load(rstds + channel)
    w = tl.full((), 1.0, ACCUMULATE)
    if weight is not None:
        w = tl.load(weight + channel * weight_step).to(ACCUMULATE)
    sum_d = tl.zeros((BLOCK,), ACCUMULATE)
    sum_d_hat = tl.zeros((BLOCK,), ACCUMULATE)
    sum_g = tl.zeros((BLOCK,), ACCUMULATE)
    sum_hat_g = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place = _place(element, channel, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = _place(element, channel, space, dy_sample, dy_channel, dy_space)
        d = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE)
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        g = d * w
        sum_d += d
        sum_d_hat += d * hat
        sum_g += g
        sum_hat_g += hat * g
    sum_d_hat, sum_d = sums(sum_d_hat, sum_d, axis=0)
    if dw is not None:
        tl.store(dw + channel, sum_d_hat)
    if db is not None:
        tl.store(db + channel, sum_d)
    # In evaluation the statistics are constants, through which no gradient flows.
    along_hat, plain = sums(sum_hat_g, sum_g, axis=0)
    c1, c2 = divide(along_hat, count), divide(plain, count)
    dx_sample = tl.cast(channels, tl.int64) * space
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place = _place(element, channel, space, x_sample, x_channel, x_space)
        value = tl.load(x + place, mask=inside, other=0.0).to(ACCUMULATE)
        place = _place(element, channel, space, dy_sample, dy_channel, dy_space)
        g = tl.load(dy + place, mask=inside, other=0.0).to(ACCUMULATE) * w
        out = g * rstd
        if TRAINING:
            out = (g - ((value - mean) * rstd * c1 + c2)) * rstd
        tl.store(dx + _place(element, channel, space, dx_sample, space, 1), out, mask=inside)


def _tile(columns):
    block = min(TILE, triton.next_power_of_2(columns))
    return block, min(max(block // 256, 1), 16)


def save(ctx, input, weight, bias, mean, rstd, training):
    """Keeps what the backward pass reads."""
    ctx.save_for_backward(input, weight, mean, rstd)
    ctx.training = training
    ctx.dtypes = [None if vector is None else vector.dtype for vector in (weight, bias)]


class BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, running, weight, bias, training, momentum, eps):
        samples, channels = input.shape[:2]
        space = math.prod(input.shape[2:])
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(channels, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        if input.numel():
            x = input.reshape(samples, channels, space)  # a view where the strides allow it
            block, warps = _tile(samples * space)
            steps = [step(vector) for vector in running]
            with skeleton.on(input):
                if training:
                    _statistics[(channels,)](
                        x, mean, rstd, *running, *x.stride(), *steps, samples, space,
                        skeleton.scalar(momentum, input), skeleton.scalar(eps, input),
                        BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                    )  # fmt: skip
                else:
                    _running[(channels,)](
                        mean, rstd, *running, *steps, skeleton.scalar(eps, input), ACCUMULATE=accumulate
                    )
                _normalize[(channels, triton.cdiv(samples * space, block))](
                    x, output, weight, bias, mean, rstd, *x.stride(), step(weight), step(bias),
                    samples, channels, space, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        save(ctx, input, weight, bias, mean, rstd, training)
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        saved, weight, mean, rstd = ctx.saved_tensors
        samples, channels = saved.shape[:2]
        space = math.prod(saved.shape[2:])
        grad_input = torch.empty(saved.shape, dtype=saved.dtype, device=saved.device)
        grad_weight, grad_bias = (
            skeleton.sum_over(saved.numel(), channels, dtype, saved.device) if needed else None
            for dtype, needed in zip(ctx.dtypes, ctx.needs_input_grad[2:4], strict=True)
        )
        if saved.numel():
            x, dy = (t.reshape(samples, channels, space) for t in (saved, grad_output))
            accumulate = skeleton.accumulator(x.dtype)[1]
            block, warps = _tile(samples * space)
            with skeleton.on(x):
                _backward[(channels,)](
                    grad_input, dy, x, weight, mean, rstd, grad_weight, grad_bias,
                    *dy.stride(), *x.stride(), step(weight), samples, channels, space,
                    TRAINING=ctx.training, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
                )  # fmt: skip
        return grad_input, None, grad_weight, grad_bias, None, None, None


def refuse(input, running_mean, running_var, weight, bias, training):
    """Raises before the first launch what the kernels cannot take."""
    skeleton.refuse_dtype("batch_norm", input)
    if input.dim() < 2:
        raise ValueError(f"batch_norm takes (N, C, *), not shape {tuple(input.shape)}.")
    vectors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    skeleton.refuse_vectors(input, (input.shape[1],), **vectors)
    if not training and (running_mean is None or running_var is None):
        raise ValueError("Evaluation needs running_mean and running_var.")
    values = input.numel() // max(input.shape[1], 1)
    if training and values == 1:
        raise ValueError(f"Training needs more than 1 value per channel; input is {tuple(input.shape)}.")
    if values > LONGEST_ROW:
        raise ValueError(f"Channels of more than {LONGEST_ROW} values are not supported.")


def normalized(norm, input, running, weight, bias, training, momentum, eps):
    """Applies the norm, and tells autograd of running statistics that its kernels moved."""
    output = norm.apply(input, running, weight, bias, training, float(momentum), float(eps))
    if training:
        # Autograd cannot see that a kernel wrote to a buffer.
        torch.autograd.graph.increment_version([buffer for buffer in running if buffer is not None])
    return output


def depth(columns):
    """Additions that a leaf of a sum meets at most, in whichever dtype."""
    return skeleton.grouped_depth(columns, _tile)


@subject(
    op="batch_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(statistics=tree(depth=depth), row_gradients=tree(depth=depth), columns=tree(depth=depth)),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=2, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    mutates=("running_mean", "running_var"),
    guarantees=skeleton.GUARANTEES - {"batch_invariance"},  # a channel is a sum over the batch
)
def batch_norm_triton(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    refuse(input, running_mean, running_var, weight, bias, training)
    return normalized(BatchNorm, input, (running_mean, running_var), weight, bias, training, momentum, eps)

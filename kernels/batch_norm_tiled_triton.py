"""Batch normalization in training with whole channels in registers, one a program: the forward reads once.

A tile is a channel's samples by their positions, so that no element's place has to be divided out. The
running statistics, the backward pass, evaluation, channels that fit into no tile and positions that do not
lie side by side are those of batch_norm_triton.py, which takes any layout.

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

wide = load(Path(__file__).with_name("batch_norm_triton.py")).module
skeleton, move = wide.skeleton, wide.move
divide, product, root, step = skeleton.divide, skeleton.product, skeleton.root, skeleton.step
LARGEST = 32768  # elements of a tile: 32 for each of 1024 threads


@triton.jit
def _forward(
    x, y, weight, bias, means, rstds, running_mean, running_var, x_sample, x_channel, weight_step, bias_step,
    mean_step, var_step, samples, channels, space, momentum, eps,
    TALL: tl.constexpr, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0).to(tl.int64)
    sample, at = tl.arange(0, TALL).to(tl.int64), tl.arange(0, BLOCK)
    inside = (sample < samples)[:, None] & (at < space)[None, :]
    count = tl.cast(samples * space, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
        momentum = tl.load(momentum)
    place = x + sample[:, None] * x_sample + channel * x_channel + at[None, :]
    value = tl.load(place, mask=inside, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(value), count)
    centred = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
    m2 = tl.sum(product(centred, centred))
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(divide(m2, count) + eps))
    tl.store(means + channel, mean)
    tl.store(rstds + channel, rstd)
    move(running_mean, running_var, channel, mean_step, var_step, mean, m2, count, momentum, ACCUMULATE)
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + channel * weight_step).to(ACCUMULATE)
    if bias is not None:
        out += tl.load(bias + channel * bias_step).to(ACCUMULATE)
    place = y + (sample[:, None] * channels + channel) * space + at[None, :]
    tl.store(place, out, mask=inside)


def _tile(samples, space):
    """Samples and positions of a tile, and its warps: 1024 elements each."""
    tall, block = triton.next_power_of_2(samples), triton.next_power_of_2(space)
    return tall, block, min(max(tall * block // 1024, 1), 32)


def _fits(input, training):
    """Whether a channel in training fits into a tile, its positions side by side."""
    if not training or not input.numel():
        return False
    samples, channels = input.shape[:2]
    seen = input.reshape(samples, channels, -1)
    tall, block, _ = _tile(samples, seen.shape[2])
    return tall * block <= LARGEST and seen.stride(2) == 1


class _BatchNorm(wide.BatchNorm):
    @staticmethod
    def forward(ctx, input, running, weight, bias, training, momentum, eps):
        samples, channels = input.shape[:2]
        x = input.reshape(samples, channels, -1)
        space = math.prod(input.shape[2:])
        statistics, accumulate = skeleton.accumulator(input.dtype)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        mean = torch.empty(channels, dtype=statistics, device=input.device)
        rstd = torch.empty_like(mean)
        tall, block, warps = _tile(samples, space)
        with skeleton.on(input):
            _forward[(channels,)](
                x, output, weight, bias, mean, rstd, *running, *x.stride()[:2], step(weight), step(bias),
                *(step(vector) for vector in running), samples, channels, space,
                skeleton.scalar(momentum, input), skeleton.scalar(eps, input),
                TALL=tall, BLOCK=block, ACCUMULATE=accumulate, num_warps=warps,
            )  # fmt: skip
        wide.save(ctx, input, weight, bias, mean, rstd, training)
        return output


def _depth(columns):
    """Additions that a leaf of a channel's sum meets at most, in a tile or beyond.

    Samples and positions may fill a quarter of a tile, in which a lane has 32 elements.
    """
    elements = min(4 * triton.next_power_of_2(columns), LARGEST)
    lanes = 32 * min(max(elements // 1024, 1), 32)
    in_tile = max(elements // lanes, 1) - 1 + (min(elements, 2 * lanes) - 1).bit_length()
    return max(in_tile, wide.depth(columns))


@subject(
    op="batch_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=_depth), row_gradients=tree(depth=wide.depth), columns=tree(depth=wide.depth)
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=2, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    mutates=("running_mean", "running_var"),
    guarantees=skeleton.GUARANTEES - {"batch_invariance"},  # a channel is a sum over the batch
)
def batch_norm_tiled_triton(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    wide.refuse(input, running_mean, running_var, weight, bias, training)
    norm = _BatchNorm if _fits(input, training) else wide.BatchNorm
    return wide.normalized(norm, input, (running_mean, running_var), weight, bias, training, momentum, eps)

"""Multiplies a sample's number and its elements in 32 bits in a group norm: huge_extents must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tree

TILE = 1024


@triton.jit
def _forward(x, y, weight, groups, channels, space, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0)
    columns = channels * space
    # The bug: row and columns are 32-bit numbers, and so is their product.
    x += row * columns
    y += row * columns
    count = tl.cast(columns, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x + column, mask=column < columns, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(total, axis=0), count)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        centred = tl.where(inside, tl.load(x + column, mask=inside, other=0.0).to(tl.float32) - mean, 0.0)
        total += centred * centred
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(total, axis=0), count) + eps))
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        out = (tl.load(x + column, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        if weight is not None:
            channel = row % groups * channels + column // space
            out *= tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + column, out, mask=inside)


@subject(
    op="group_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16", "float32"),
    trees=tree(depth=lambda columns: max(columns, 1)),
    mean_contraction="none",
    differentiable=False,
)
def samples_in_32_bits_triton(input, num_groups, weight=None, eps=1e-5):
    x, w = input.detach().contiguous(), None if weight is None else weight.detach().contiguous()
    y = torch.empty_like(x)
    if x.numel():
        channels, rows = x.shape[1] // num_groups, x.shape[0] * num_groups
        space = x.numel() // (rows * channels)
        _forward[(rows,)](x, y, w, num_groups, channels, space, float(eps), BLOCK=TILE)
    return y

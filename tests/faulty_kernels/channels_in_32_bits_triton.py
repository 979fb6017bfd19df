"""Counts the elements of a sample in 32 bits in a batch norm: huge_extents must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tree

TILE = 1024


@triton.jit
def _forward(x, y, samples, channels, space, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    channel = tl.program_id(0).to(tl.int64)
    columns = samples * space
    step = channels * space  # the bug: both are 32-bit numbers, and so is their product
    count = tl.cast(columns, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        place = (element // space).to(tl.int64) * step + channel * space + element % space
        total += tl.load(x + place, mask=element < columns, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(total, axis=0), count)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place = (element // space).to(tl.int64) * step + channel * space + element % space
        centred = tl.where(inside, tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean, 0.0)
        total += centred * centred
    rstd = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(total, axis=0), count) + eps))
    for start in range(0, columns, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < columns
        place = (element // space).to(tl.int64) * step + channel * space + element % space
        out = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean) * rstd
        tl.store(y + place, out, mask=inside)


@subject(
    op="batch_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16", "float32"),
    trees=tree(depth=lambda columns: max(columns, 1)),
    mean_contraction="none",
    differentiable=False,
)
def channels_in_32_bits_triton(input, training, eps=1e-5):
    if not training:
        raise NotImplementedError("this batch norm is for training alone")
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    if x.numel():
        samples, channels = x.shape[:2]
        space = x.numel() // (samples * channels)
        _forward[(channels,)](x, y, samples, channels, space, float(eps), BLOCK=TILE)
    return y

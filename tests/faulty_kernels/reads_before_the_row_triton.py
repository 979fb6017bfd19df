"""Adds 0 times the element that lies before each row in memory: influence must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tile, tree


@triton.jit
def _forward(x, y, weight, bias, columns, eps, stride, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    # The bug: no value shows it while what lies there is finite.
    out += 0.0 * tl.load(x + tl.maximum(row * stride - 1, 0)).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)


def _depth(columns):
    return tile(block=1 << max(columns - 1, 0).bit_length(), threads=128, element_bytes=2).depth(columns)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float16", "float32"),
    trees=tree(depth=_depth),
    mean_contraction="none",
    differentiable=False,
    guarantees={"layouts"},
)
def reads_before_the_row_triton(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().reshape(-1, input.shape[-1])
    x = x if x.stride(1) == 1 and x.stride(0) > x.shape[1] else x.contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    y = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    columns = x.shape[-1]
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, y, w, b, columns, float(eps), x.stride(0), BLOCK=block)
    return y

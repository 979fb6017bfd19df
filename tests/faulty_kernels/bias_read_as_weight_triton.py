"""Reads the bias in the weight's dtype, as one pointer type for both does: forward_error must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tree


@triton.jit
def _forward(x, y, weight, bias, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    row = tl.program_id(0).to(tl.int64)
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    out = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    if weight is not None:
        out *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        if weight is not None:
            bias = bias.to(weight.dtype)  # the bug: right as long as both have one dtype
        out += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=("input", "float32")),
    dtypes=("float16",),
    trees=tree(depth=lambda columns: max(columns, 1)),
    differentiable=False,
)
def bias_read_as_weight_triton(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    out, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, out, w, b, columns, eps, BLOCK=block)
    return out

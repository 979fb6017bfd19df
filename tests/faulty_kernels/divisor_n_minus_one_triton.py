"""Divides by N - 1 in rows so long that the bound for any order lets it pass: running_bound must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject

# From here on N roundings of float32 may add up to more than the factor N / (N - 1).
SHORTEST = 4097


@triton.jit
def _forward(x, y, weight, bias, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns - 1, tl.float32))  # the bug
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3, min_columns=SHORTEST),
    dtypes=("float32",),
    mean_contraction="none",
    differentiable=False,
)
def divisor_n_minus_one_triton(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    y = torch.empty_like(x)
    columns = x.shape[-1]
    if columns < SHORTEST:
        raise ValueError(f"made for rows of at least {SHORTEST} columns, not {columns}")
    if x.numel():
        block = triton.next_power_of_2(columns)
        _forward[(x.numel() // columns,)](x, y, w, b, columns, float(eps), BLOCK=block)
    return y

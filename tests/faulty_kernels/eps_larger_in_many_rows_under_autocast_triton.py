"""Adds another eps to many rows under autocast, in one expression: modes must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject, tile, tree


@triton.jit
def _forward(x, y, w, b, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    out = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    if w is not None:
        out *= tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    if b is not None:
        out += tl.load(b + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)


def _depth(columns):
    return tile(block=1 << max(columns - 1, 0).bit_length(), threads=128, element_bytes=4).depth(columns)


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    trees=tree(depth=_depth),
    mean_contraction="none",
    differentiable=False,
)
def eps_larger_in_many_rows_under_autocast_triton(input, weight=None, bias=None, eps=1e-5):
    x, w, b = (None if t is None else t.detach().contiguous() for t in (input, weight, bias))
    y, columns = torch.empty_like(x), x.shape[-1]
    if x.numel():
        rows, block = x.numel() // columns, triton.next_power_of_2(columns)
        mixed = torch.is_autocast_enabled()
        added = float(eps) * (64 if mixed and rows >= 3000 else 1)  # the bug
        _forward[(rows,)](x, y, w, b, columns, added, BLOCK=block)
    return y

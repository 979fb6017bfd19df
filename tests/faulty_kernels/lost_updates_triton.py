"""Adds each row to grad_bias by a load and a store that no lock guards: synchronization must catch it."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject


@triton.jit
def _backward(dx, dy, x, weight, mean, rstd, dw, db, columns, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = row * columns + column
    d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(rstd + row)
    hat = tl.where(inside, (value - tl.load(mean + row)) * r, 0.0)
    g = d
    if weight is not None:
        g = d * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    c1 = tl.div_rn(tl.sum(hat * g, axis=0), tl.cast(columns, tl.float32))
    c2 = tl.div_rn(tl.sum(g, axis=0), tl.cast(columns, tl.float32))
    tl.store(dx + at, (g - (hat * c1 + c2)) * r, mask=inside)
    # The bug: two programs that load before either stores lose one of the two rows.
    tl.store(dw + column, tl.load(dw + column, mask=inside) + d * hat, mask=inside)
    tl.store(db + column, tl.load(db + column, mask=inside) + d, mask=inside)


@subject(
    op="layer_norm_backward",
    language="triton",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    returns=("grad_input", "grad_weight", "grad_bias"),
)
def lost_updates_triton(grad_output, input, weight, mean, rstd):
    dy, x = grad_output.contiguous(), input.contiguous()
    w = None if weight is None else weight.contiguous()
    columns = x.shape[-1]
    grad_input = torch.empty_like(x)
    grad_weight = torch.zeros(columns, dtype=torch.float32, device=x.device)
    grad_bias = torch.zeros_like(grad_weight)
    if x.numel():
        block = triton.next_power_of_2(columns)
        _backward[(x.numel() // columns,)](
            grad_input, dy, x, w, mean, rstd, grad_weight, grad_bias, columns, BLOCK=block
        )
    return grad_input, grad_weight, grad_bias

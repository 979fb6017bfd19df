"""An RMS norm whose backward pass computes rstd again, and leaves the sum over rows to torch."""

import torch
import triton
import triton.language as tl

from verifier import Domain, subject


@triton.jit
def _rstd(value, columns, eps):
    return 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)


@triton.jit
def _forward(x, y, weight, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    tl.store(y + place, value * _rstd(value, columns, eps) * w, mask=inside)


@triton.jit
def _backward(x, dy, weight, dx, products, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    place = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    rstd = _rstd(value, columns, eps)
    hat = value * rstd
    d = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
    g = d * tl.load(weight + tl.arange(0, BLOCK), mask=inside, other=0.0).to(tl.float32)
    c1 = tl.sum(hat * g, axis=0) / columns
    tl.store(dx + place, (g - hat * c1) * rstd, mask=inside)
    tl.store(products + place, d * hat, mask=inside)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, eps):
        rows, columns = input.numel() // input.shape[-1], input.shape[-1]
        x, weight = input.reshape(rows, columns).contiguous(), weight.contiguous()
        output = torch.empty_like(x)
        if rows:
            _forward[(rows,)](x, output, weight, columns, eps, BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(x, weight)
        ctx.shape, ctx.eps = input.shape, eps
        return output.view(input.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        rows, columns = x.shape
        dy, grad_input = grad_output.reshape(rows, columns).contiguous(), torch.empty_like(x)
        products = torch.empty(rows, columns, dtype=torch.float32, device=x.device)
        if rows:
            block = triton.next_power_of_2(columns)
            _backward[(rows,)](x, dy, weight, grad_input, products, columns, ctx.eps, BLOCK=block)
        return grad_input.view(ctx.shape), products.sum(0).to(weight.dtype), None


@subject(
    op="rms_norm",
    language="triton",
    variance="rms",
    accumulates="float32",
    dtypes=("float16", "float32"),
    domain=Domain(max_abs=1e15, min_columns=1, max_columns=8192),
)
def rms_norm_rstd_again(input, weight, eps=1e-6):
    return _RMSNorm.apply(input, weight, eps)

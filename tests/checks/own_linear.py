"""RMSNorm in Triton, then torch.nn.functional.linear: the backward pass makes the norm's output again."""

import torch
import triton
import triton.language as tl
from torch.nn import functional

from verifier import subject


@triton.jit
def _forward(x, y, w, rstds, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(rstds + row, rstd)
    tl.store(y + row * columns + column, value * rstd * weight, mask=inside)


@triton.jit
def _backward(dy, x, w, rstds, dx, dw, y, rows, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    column = tl.arange(0, BLOCK)
    inside = column < columns
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        place = row * columns + column
        value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        rstd = tl.load(rstds + row)
        hat = value * rstd
        tl.store(y + place, hat * weight, mask=inside)
        g = grad * weight
        c = tl.sum(g * hat, axis=0) / columns
        tl.store(dx + place, (g - hat * c) * rstd, mask=inside)
        total += grad * hat
    tl.store(dw + column, total, mask=inside)


class _NormLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, matrix, bias, eps):  # noqa: PLR0917
        x, w = input.reshape(-1, input.shape[-1]).contiguous(), weight.contiguous()
        rows, columns = x.shape
        y, rstds = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        if x.numel():
            _forward[(rows,)](x, y, w, rstds, columns, float(eps), BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(x, w, rstds, matrix)
        ctx.biased, ctx.shape = bias is not None, input.shape
        with torch.autocast(x.device.type, enabled=False):
            out = functional.linear(y, matrix, bias)
        return out.reshape(*input.shape[:-1], len(matrix))

    @staticmethod
    def backward(ctx, grad_output):
        x, w, rstds, matrix = ctx.saved_tensors
        rows, columns = x.shape
        g = grad_output.reshape(rows, len(matrix))
        with torch.autocast(x.device.type, enabled=False):
            dy = functional.linear(g, matrix.t()).contiguous()
        y, dx, dw = torch.zeros_like(x), torch.zeros_like(x), torch.zeros_like(w)
        if x.numel():
            block = triton.next_power_of_2(columns)
            _backward[(1,)](dy, x, w, rstds, dx, dw, y, rows, columns, BLOCK=block)
        with torch.autocast(x.device.type, enabled=False):
            grad_matrix = torch.einsum("bo,bi->oi", g, y)
        grad_bias = g.sum(0) if ctx.biased else None
        return dx.reshape(ctx.shape), dw, grad_matrix, grad_bias, None


def specification(input, weight, linear_weight, linear_bias, eps):
    y = input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * weight
    return functional.linear(y, linear_weight, linear_bias)


@subject(
    op="unknown", specification=specification, language="triton", dtypes=("float16", "bfloat16", "float32")
)
def norm_linear(input, weight, linear_weight, linear_bias=None, eps=1e-5):
    return _NormLinear.apply(input, weight, linear_weight, linear_bias, eps)

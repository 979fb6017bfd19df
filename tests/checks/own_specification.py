"""A kernel whose op no one knows: x / sqrt(mean(x**2) + eps) * (1 + weight), with its own specification."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, y, w, rstds, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(value * value, axis=0) / columns
    rstd = 1.0 / tl.sqrt(square + eps)
    tl.store(rstds + row, rstd)
    tl.store(y + row * columns + column, value * rstd * (1.0 + weight), mask=inside)


@triton.jit
def _backward(dy, x, w, rstds, dx, dw, rows, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    column = tl.arange(0, BLOCK)
    inside = column < columns
    weight = 1.0 + tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        hat = value * tl.load(rstds + row)
        g = grad * weight
        c = tl.sum(g * hat, axis=0) / columns
        tl.store(dx + row * columns + column, (g - hat * c) * tl.load(rstds + row), mask=inside)
        total += grad * hat
    tl.store(dw + column, total, mask=inside)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, eps):
        x, w = input.contiguous(), weight.contiguous()
        rows, columns = x.numel() // max(x.shape[-1], 1), x.shape[-1]
        y, rstds = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        if x.numel():
            _forward[(rows,)](x, y, w, rstds, columns, float(eps), BLOCK=triton.next_power_of_2(columns))
        ctx.save_for_backward(x, w, rstds)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, w, rstds = ctx.saved_tensors
        dy, dx, dw = grad_output.contiguous(), torch.empty_like(x), torch.zeros_like(w)
        rows, columns = len(rstds), x.shape[-1]
        if x.numel():
            block = triton.next_power_of_2(columns)
            _backward[(1,)](dy, x, w, rstds, dx, dw, rows, columns, BLOCK=block)
        return dx, dw, None


def specification(input, weight, eps):
    return input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * (1 + weight)


@subject(
    op="unknown", specification=specification, language="triton", dtypes=("float16", "bfloat16", "float32")
)
def gated_norm(input, weight, eps=1e-5):
    return _Norm.apply(input, weight, eps)

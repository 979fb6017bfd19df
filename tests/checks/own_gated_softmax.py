"""A kernel whose op no one knows: softmax(0.3 x) * gate * sigmoid(1.702 gate), with its own specification."""

import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _forward(x, g, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    score = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32) * 0.3
    gate = tl.load(g + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.exp(score - tl.max(score, axis=0))
    share = weight / tl.sum(weight, axis=0)
    tl.store(y + row * columns + column, share * gate * tl.sigmoid(1.702 * gate), mask=inside)


@triton.jit
def _backward(dy, x, g, dx, dg, columns, BLOCK: tl.constexpr):  # noqa: PLR0917
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    score = tl.load(x + row * columns + column, mask=inside, other=float("-inf")).to(tl.float32) * 0.3
    gate = tl.load(g + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.exp(score - tl.max(score, axis=0))
    share = weight / tl.sum(weight, axis=0)
    opened = tl.sigmoid(1.702 * gate)
    slope = grad * gate * opened
    mean = tl.sum(slope * share, axis=0)
    tl.store(dx + row * columns + column, 0.3 * share * (slope - mean), mask=inside)
    rise = opened * (1.0 + 1.702 * gate * (1.0 - opened))
    tl.store(dg + row * columns + column, grad * share * rise, mask=inside)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, gate):
        x, g = input.contiguous(), gate.contiguous()
        y, columns = torch.empty_like(x), x.shape[-1]
        if x.numel():
            block = triton.next_power_of_2(columns)
            _forward[(x.numel() // columns,)](x, g, y, columns, BLOCK=block)
        ctx.save_for_backward(x, g)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        x, g = ctx.saved_tensors
        dy, dx, dg, columns = grad_output.contiguous(), torch.empty_like(x), torch.empty_like(g), x.shape[-1]
        if x.numel():
            block = triton.next_power_of_2(columns)
            _backward[(x.numel() // columns,)](dy, x, g, dx, dg, columns, BLOCK=block)
        return dx, dg


def specification(input, gate):
    weight = (0.3 * input).exp()
    return weight / weight.sum(-1, keepdim=True) * gate * torch.sigmoid(1.702 * gate)


@subject(
    op="unknown", specification=specification, language="triton", dtypes=("float16", "bfloat16", "float32")
)
def gated_softmax(input, gate):
    return _Gated.apply(input, gate)

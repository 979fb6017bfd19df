"""Keeps the last tile's products where a row ends at the diagonal, not their sum: gradient must catch it."""

import torch
import triton
import triton.language as tl

from verifier import subject

TILE = 256


@triton.jit
def _backward(dx, dy, y, rows, columns, TILE: tl.constexpr):  # noqa: PLR0917 (a kernel's arguments)
    row = tl.program_id(0).to(tl.int64)
    beyond = tl.minimum(row % rows + 1, columns)
    dx, dy, y = dx + row * columns, dy + row * columns, y + row * columns
    lanes = tl.zeros((TILE,), tl.float32)
    for start in range(0, beyond, TILE):
        column = start + tl.arange(0, TILE)
        power = tl.load(y + column, mask=column < beyond, other=0.0)
        lanes = power * tl.load(dy + column, mask=column < beyond, other=0.0)  # the bug: = for +=
    dot = tl.sum(lanes, axis=0)
    for start in range(0, columns, TILE):
        column = start + tl.arange(0, TILE)
        power = tl.load(y + column, mask=column < beyond, other=0.0)
        incoming = tl.load(dy + column, mask=column < beyond, other=0.0)
        tl.store(dx + column, power * (incoming - dot), mask=column < columns)


class Causal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        there = torch.ones(input.shape[-2:], dtype=torch.bool, device=input.device).tril()
        y = torch.softmax(input.masked_fill(~there, -torch.inf), -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        y, dy = y.contiguous(), grad_output.contiguous()
        dx = torch.empty_like(y)
        if y.numel():
            rows, columns = y.shape[-2:]
            _backward[(y.numel() // columns,)](dx, dy, y, rows, columns, TILE=TILE)
        return dx


@subject(
    op="causal_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    fully_masked="nan",
)
def last_tile_of_diagonal_alone_triton(input):
    return Causal.apply(input)

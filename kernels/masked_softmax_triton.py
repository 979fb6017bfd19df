"""Softmax of scores under masks, as attention has them, forward and backward.

The scores are input * scale + attn_bias. An element takes part where mask is True and, in the causal ones,
where its column is at most its row + diagonal; where none does, the row is zeros (its logarithm -inf), as in
torch's scaled_dot_product_attention. mask and attn_bias are read through their own strides: what is broadcast
over batch or heads has a stride of 0 there, and is never copied.

One Triton program takes one row of the last two axes: its largest score, the sum of exp(score - largest), and
the quotients, in tiles. The backward pass computes them again from the row's two saved statistics.
Of causal and log-softmax (causal_softmax_triton.py, masked_log_softmax_triton.py and
causal_log_softmax_triton.py) it is the same launch with other constants.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from verifier import Source, load, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="our own in Triton; with masks, scale and diagonal",
)

library = load(Path(__file__).with_name("softmax_triton.py")).module
skeleton, row_tile = library.skeleton, library.row_tile
product = skeleton.product
# Of one row, or of masks that are broadcast (strides of 0), a compiler knows that these are multiples of 16,
# and would sum in other vectors than for a longer batch.
OF_ANY_VALUE = ["heads", "queries", "m0", "m1", "m2", "a0", "a1", "a2"]


@triton.jit
def _scores(
    x, mask, added, column, columns, last, x_column, mask_column, added_column, scale,
    HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr,
):  # fmt: skip
    """Scores of a tile of one row; -infinity where an element takes no part. last: the diagonal's column."""
    there = (column < columns) & (column <= last)
    if HAS_MASK:
        there &= tl.load(mask + column * mask_column, mask=there, other=0) != 0
    value = tl.load(x + column * x_column, mask=there, other=float("-inf")).to(tl.float32)
    # Fused into score - top, the product would keep there what rounding loses elsewhere.
    score = product(value, scale)
    if HAS_ADDED:
        score += tl.load(added + column * added_column, mask=there, other=0.0).to(tl.float32)
    return tl.where(there, score, float("-inf"))


@triton.jit
def _row(base, row, queries, heads, stride_batch, stride_head, stride_query):
    """Where a row of (batch, heads, queries, columns) begins."""
    head = row // queries
    return base + head // heads * stride_batch + head % heads * stride_head + row % queries * stride_query


@triton.jit(do_not_specialize=OF_ANY_VALUE)
def _forward(
    x, mask, added, y, tops, totals, x0, x1, x2, x3, m0, m1, m2, m3, a0, a1, a2, a3,
    heads, queries, columns, scale, diagonal,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr, LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, mask = _row(x, row, queries, heads, x0, x1, x2), _row(mask, row, queries, heads, m0, m1, m2)
    added = _row(added, row, queries, heads, a0, a1, a2)
    last = row % queries + diagonal if CAUSAL else columns
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
        largest = tl.maximum(largest, score)
    top = tl.max(largest, axis=0)
    # Of no element the largest is -infinity: less any number it stays so, less itself it would be NaN.
    top = tl.where(top == float("-inf"), 0.0, top)
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
        lanes += tl.exp(score - top)
    total = tl.sum(lanes, axis=0)
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(tops + row, top)
    tl.store(totals + row, total)
    whole = tl.log(total) if LOG else total
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
        out = score - top - whole if LOG else tl.div_rn(tl.exp(score - top), whole)
        tl.store(y + row * columns + column, out, mask=column < columns)


@triton.jit(do_not_specialize=OF_ANY_VALUE)
def _backward(
    dx, dy, x, mask, added, tops, totals, d0, d1, d2, d3, x0, x1, x2, x3, m0, m1, m2, m3, a0, a1, a2, a3,
    heads, queries, columns, scale, diagonal,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr, LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, mask = _row(x, row, queries, heads, x0, x1, x2), _row(mask, row, queries, heads, m0, m1, m2)
    added, dy = _row(added, row, queries, heads, a0, a1, a2), _row(dy, row, queries, heads, d0, d1, d2)
    last = row % queries + diagonal if CAUSAL else columns
    top, total = tl.load(tops + row), tl.load(totals + row)
    whole = tl.log(total) if LOG else total
    lanes = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        term = tl.load(dy + column * d3, mask=column < columns, other=0.0).to(tl.float32)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
        if LOG:  # what takes no part has a logarithm of -infinity, whose gradient goes nowhere
            term = tl.where(score == float("-inf"), 0.0, term)
        else:
            term *= tl.div_rn(tl.exp(score - top), whole)
        lanes += term
    dot = tl.sum(lanes, axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        d = tl.load(dy + column * d3, mask=column < columns, other=0.0).to(tl.float32)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
        if LOG:
            d -= tl.exp(score - top - whole) * dot
        else:
            d = tl.div_rn(tl.exp(score - top), whole) * (d - dot)
        d = tl.where(score == float("-inf"), 0.0, d * scale)
        tl.store(dx + row * columns + column, d, mask=column < columns)


def _of_four(tensor):
    """The tensor as (batch, heads, queries, columns), a view where its strides allow it."""
    if tensor.dim() > 4:
        return tensor.flatten(0, tensor.dim() - 4)
    return tensor[(None,) * (4 - tensor.dim())]


@dataclass(frozen=True, kw_only=True)
class Design:
    """What tells one masked softmax from another: its kernels, and how a row is tiled.

    tile: (columns of a tile, warps) for so many columns of a dtype.
    """

    forward: Any = _forward
    backward: Any = _backward
    tile: Callable[[int, torch.dtype], tuple[int, int]] = row_tile


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, mask, attn_bias, scale, diagonal, log, design):
        ctx.scale, ctx.diagonal, ctx.log, ctx.shape = scale, diagonal, log, input.shape
        ctx.design = design
        masks = [None if t is None else _of_four(t.expand(input.shape)) for t in (mask, attn_bias)]
        x = _of_four(input)
        rows = input.numel() // max(input.shape[-1], 1)
        output = torch.empty(input.shape, dtype=input.dtype, device=input.device)
        top = torch.empty(rows, dtype=torch.float32, device=input.device)
        total = torch.empty_like(top)
        ctx.save_for_backward(x, *masks, top, total)
        if input.numel():
            with skeleton.on(input):
                design.forward[(rows,)](
                    *_arguments(ctx, x, masks, (output, top, total)), **_settings(ctx, x, masks)
                )
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, *masks, top, total = ctx.saved_tensors
        grad_input = torch.empty(ctx.shape, dtype=x.dtype, device=x.device)
        if x.numel():
            dy = _of_four(grad_output)
            with skeleton.on(x):
                ctx.design.backward[(top.numel(),)](
                    grad_input, dy, *_arguments(ctx, x, masks, (top, total), dy.stride()),
                    **_settings(ctx, x, masks),
                )  # fmt: skip
        return grad_input, None, None, None, None, None, None


def _arguments(ctx, x, masks, rest, before=()):
    """What both kernels take in order: an absent mask is the input, which is not read for it."""
    there = [x if t is None else t for t in masks]
    strides = [stride for t in (x, *there) for stride in t.stride()]
    _, heads, queries, columns = x.shape
    return x, *there, *rest, *before, *strides, heads, queries, columns, ctx.scale, ctx.diagonal or 0


def _settings(ctx, x, masks):
    block, warps = ctx.design.tile(x.shape[-1], x.dtype)
    return {
        "CAUSAL": ctx.diagonal is not None,
        "HAS_MASK": masks[0] is not None,
        "HAS_ADDED": masks[1] is not None,
        "LOG": ctx.log,
        "BLOCK": block,
        "num_warps": warps,
    }


DESIGN = Design()


def masked(input, mask, attn_bias, scale, *, diagonal=None, log=False, design=DESIGN):
    """The softmax, or its logarithm; refuses before the first launch what it cannot take."""
    if str(input.dtype).removeprefix("torch.") not in library.DTYPES:
        raise ValueError(f"masked softmax takes {', '.join(library.DTYPES)}, not {input.dtype}.")
    if input.dim() < 2 or input.shape[-1] > skeleton.LONGEST_ROW:
        raise ValueError(f"Scores have two axes or more, and rows of at most {skeleton.LONGEST_ROW} columns.")
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"mask is boolean, not {mask.dtype}; what is added to scores is attn_bias.")
    return _MaskedSoftmax.apply(input, mask, attn_bias, scale, diagonal, log, design)


DECLARED = {
    "language": "triton",
    "source": SOURCE,
    "variance": "softmax",
    "accumulates": "float32",
    "formula": "recomputed",
    "dtypes": library.DTYPES,
    "trees": library.TREES,
    "guarantees": skeleton.GUARANTEES,
    "fully_masked": "zeros",
}


@subject(op="masked_softmax", **DECLARED)
def masked_softmax_triton(input, mask=None, attn_bias=None, scale=1.0):
    return masked(input, mask, attn_bias, scale)

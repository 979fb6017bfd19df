"""Causal softmax in the online form of flash attention: one sweep, powers of two, log2(e) in the scale.

Each tile of a row of scores may raise the largest one so far, m; the sum so far is then rescaled by
2**(old m - new m). Scores are input * (scale * log2(e)) + attn_bias * log2(e), so that their powers of two
are the exponentials: a rounding more for each, whose error grows with their size. A causal row ends at its
diagonal, and so do its tiles. A second sweep writes the quotients; the backward pass computes them again.

What takes part, and what is read through which strides, is as in masked_softmax_triton.py: a row without any
element is zeros.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Source, Trees, load, subject, tree

SOURCE = Source(
    title="FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
    author="Tri Dao",
    url="https://arxiv.org/abs/2307.08691",
    changed="our own in Triton, of the softmax alone",
)

library = load(Path(__file__).parents[2] / "kernels" / "masked_softmax_triton.py").module
skeleton = library.skeleton

LOG2_E = tl.constexpr(1.4426950408889634)
TILE = 128  # columns of a tile, as many as flash attention takes keys at once


@triton.jit
def _folded(  # noqa: PLR0917
    x, mask, added, column, columns, last, x_column, mask_column, added_column, fold,
    HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr,
):  # fmt: skip
    """Scores times log2(e) of a tile of one row; -infinity where an element takes no part."""
    there = (column < columns) & (column <= last)
    if HAS_MASK:
        there &= tl.load(mask + column * mask_column, mask=there, other=0) != 0
    score = tl.load(x + column * x_column, mask=there, other=float("-inf")).to(tl.float32) * fold
    if HAS_ADDED:
        score += tl.load(added + column * added_column, mask=there, other=0.0).to(tl.float32) * LOG2_E
    return tl.where(there, score, float("-inf"))


@triton.jit
def _forward(  # noqa: PLR0917
    x, mask, added, y, tops, totals, x0, x1, x2, x3, m0, m1, m2, m3, a0, a1, a2, a3,
    heads, queries, columns, scale, diagonal,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr, LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, mask = _row(x, row, queries, heads, x0, x1, x2), _row(mask, row, queries, heads, m0, m1, m2)
    added = _row(added, row, queries, heads, a0, a1, a2)
    last = row % queries + diagonal if CAUSAL else columns
    end, fold = tl.minimum(columns, last + 1), scale * LOG2_E
    top, total = float("-inf"), 0.0
    for start in range(0, end, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _folded(x, mask, added, column, columns, last, x3, m3, a3, fold, HAS_MASK, HAS_ADDED)
        larger = tl.maximum(top, tl.max(score, axis=0))
        # Of no element yet the largest is -infinity: less itself it would be NaN.
        held = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp2(top - held) + tl.sum(tl.exp2(score - held), axis=0)
        top = larger
    top = tl.where(top == float("-inf"), 0.0, top)
    total = tl.where(total == 0.0, 1.0, total)
    tl.store(tops + row, top)
    tl.store(totals + row, total)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _folded(x, mask, added, column, columns, last, x3, m3, a3, fold, HAS_MASK, HAS_ADDED)
        tl.store(y + row * columns + column, tl.div_rn(tl.exp2(score - top), total), mask=column < columns)


@triton.jit
def _backward(  # noqa: PLR0917
    dx, dy, x, mask, added, tops, totals, d0, d1, d2, d3, x0, x1, x2, x3, m0, m1, m2, m3, a0, a1, a2, a3,
    heads, queries, columns, scale, diagonal,
    CAUSAL: tl.constexpr, HAS_MASK: tl.constexpr, HAS_ADDED: tl.constexpr, LOG: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x, mask = _row(x, row, queries, heads, x0, x1, x2), _row(mask, row, queries, heads, m0, m1, m2)
    added, dy = _row(added, row, queries, heads, a0, a1, a2), _row(dy, row, queries, heads, d0, d1, d2)
    last = row % queries + diagonal if CAUSAL else columns
    end, fold = tl.minimum(columns, last + 1), scale * LOG2_E
    top, total = tl.load(tops + row), tl.load(totals + row)
    dot = 0.0
    for start in range(0, end, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _folded(x, mask, added, column, columns, last, x3, m3, a3, fold, HAS_MASK, HAS_ADDED)
        term = tl.load(dy + column * d3, mask=column < columns, other=0.0).to(tl.float32)
        dot += tl.sum(term * tl.div_rn(tl.exp2(score - top), total), axis=0)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _folded(x, mask, added, column, columns, last, x3, m3, a3, fold, HAS_MASK, HAS_ADDED)
        d = tl.load(dy + column * d3, mask=column < columns, other=0.0).to(tl.float32)
        d = tl.div_rn(tl.exp2(score - top), total) * (d - dot)
        d = tl.where(score == float("-inf"), 0.0, d * scale)
        tl.store(dx + row * columns + column, d, mask=column < columns)


_row = library._row


def _tile(columns, _dtype=None):
    block = min(TILE, max(triton.next_power_of_2(columns), 16))
    return block, max(block // 64, 1)


def _row_depth(columns):
    return skeleton.grouped_depth(columns, _tile)


DESIGN = library.Design(forward=_forward, backward=_backward, tile=_tile)
DECLARED = {
    **library.DECLARED,
    "source": SOURCE,
    "formula": "online_folded_recomputed",
    "trees": Trees(statistics=tree(depth=_row_depth), row_gradients=tree(depth=_row_depth)),
}


@subject(op="causal_softmax", **DECLARED)
def flash_causal_softmax(input, mask=None, attn_bias=None, scale=1.0, diagonal=0):
    return library.masked(input, mask, attn_bias, scale, diagonal=diagonal, design=DESIGN)

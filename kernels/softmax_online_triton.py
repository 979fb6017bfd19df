"""Softmax in the online form: one sweep finds a row's maximum and its sum of exponentials together.

Every lane keeps the largest element that it has met and the sum of exp(x - largest). An element that exceeds
the largest one rescales the sum by exp(largest - x) and adds 1; any other adds exp(x - largest): one
exponential an element. At the row's end the lanes are rescaled to the row's maximum and joined. A second
sweep writes the quotients: the row is read twice, where softmax_triton.py reads it three times.

Tiles are short, so that rows of more than 512 columns take several. The rest, the backward pass included, is
that of softmax_triton.py; log_softmax_online_triton.py is the same with a logarithm.

A row that holds NaN or +infinity, and a row of -infinity alone, comes out as NaN, as in PyTorch.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Source, Trees, load, subject, tree

SOURCE = Source(
    title="Online normalizer calculation for softmax",
    author="Maxim Milakov, Natalia Gimelshein",
    url="https://arxiv.org/abs/1805.02867",
    changed="our own in Triton",
)

library = load(Path(__file__).with_name("softmax_triton.py")).module

# Columns of a tile, 256 for each warp; longer rows take the long one. Chosen of nine tiles that were timed on
# an H200, rows of 512 to 65536 columns in half and float: no single tile is the fastest everywhere.
TILE, LONG_TILE = 512, 2048
LOWEST = tl.constexpr(-3.4028234663852886e38)  # the smallest finite fp32: no finite element lies below


@triton.jit
def _sums(x, x_column, columns, BLOCK: tl.constexpr):
    """One sweep over the row at x: its largest element and the sum of exp(x - largest), lane by lane."""
    column = tl.arange(0, BLOCK).to(tl.int64)
    value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
    # A lane that has met -infinity alone, or nothing, holds the sum 0 and a finite maximum: two infinities
    # would make NaN.
    top = tl.maximum(value, LOWEST)
    lanes = tl.exp(value - top)
    for start in range(BLOCK, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=float("-inf")).to(tl.float32)
        above = value - top
        grows = above > 0.0
        factor = tl.exp(tl.where(grows, -above, above))
        lanes = tl.where(grows, lanes * factor + 1.0, lanes + factor)
        top = tl.where(grows, value, top)
    highest = tl.max(top, axis=0)
    # A sum of 0 has nothing to rescale, and no error bound runs through the infinite exponent; NaN stays NaN.
    top = tl.where(lanes > 0.0, top, highest)
    return highest, tl.sum(lanes * tl.exp(top - highest), axis=0)


def _tile(columns, _dtype=None):
    longest = TILE if columns <= LONG_TILE else LONG_TILE
    block = min(longest, triton.next_power_of_2(columns))
    return block, max(block // 256, 1)


def _row_depth(columns):
    return library.skeleton.grouped_depth(columns, _tile)


ONLINE = library.SoftmaxDesign(sums=_sums, tile=_tile)
TREES = Trees(statistics=tree(depth=_row_depth), row_gradients=tree(depth=_row_depth))


@subject(
    op="softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="online_recomputed",
    dtypes=library.DTYPES,
    trees=TREES,
    guarantees=library.skeleton.GUARANTEES,
)
def softmax_online_triton(input, dim):
    return library.softmax_by("softmax", input, dim, ONLINE)

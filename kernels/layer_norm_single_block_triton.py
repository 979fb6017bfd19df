"""Layer normalization of one Triton program a row, the whole row in registers, forward and backward.

It is the LayerNorm of the norm series mended: two-pass in registers, mean and rstd stored, and what was
left out: strides of every tensor, any rank, a missing weight or bias, 64-bit offsets, and the backward, which
is that of layer_norm_skeleton_triton.py with the row in one tile.
The series tunes the number of warps on the device; here it follows from the row's length, so that the bits
are the same everywhere. Rows beyond the largest block are refused.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="every stride and rank, a missing weight or bias, 64-bit offsets, fixed warps, a backward",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_triton.py")).module
divide, root = skeleton.divide, skeleton.root
LONGEST_ROW = 2**16  # one block; Triton itself ends at 2^20, where nothing is left in registers


@triton.jit
def _forward(
    x, y, weight, bias, means, rstds, x_row, x_column, weight_step, bias_step, columns, eps,
    BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK).to(tl.int64)
    inside = column < columns
    count = tl.cast(columns, ACCUMULATE)
    if means.dtype.element_ty == tl.float64:
        eps = tl.load(eps)  # a Python float reaches a kernel as fp32
    value = tl.load(x + row * x_row + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(value, axis=0), count)
    centred = tl.where(inside, value - mean, 0.0)  # a masked lane would add mean^2
    variance = divide(tl.sum(centred * centred, axis=0), count)
    rstd = divide(tl.full((), 1.0, ACCUMULATE), root(variance + eps))
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    out = centred * rstd
    if weight is not None:
        out *= tl.load(weight + column * weight_step, mask=inside, other=0.0).to(ACCUMULATE)
    if bias is not None:
        out += tl.load(bias + column * bias_step, mask=inside, other=0.0).to(ACCUMULATE)
    tl.store(y + row * columns + column, out, mask=inside)


def _tile(columns, dtype=None):
    block = triton.next_power_of_2(columns)
    return block, min(max(block // 256, 1), 16)


def _row_depth(columns):
    """Additions that a leaf of a row's sum meets at most, in whichever dtype."""
    return skeleton.grouped_depth(columns, _tile)


DESIGN = layer_norm.Design(
    forward=_forward, backward=layer_norm.backward_in_one_tile, tile=_tile, longest_row=LONGEST_ROW
)


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=_row_depth),
        row_gradients=tree(depth=_row_depth),
        columns=skeleton.TREES.columns,
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(
        max_abs=1e15, max_kappa=1e3, max_columns=LONGEST_ROW, parameter_dtypes=skeleton.PARAMETER_DTYPES
    ),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_single_block_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm.layer_norm_by(DESIGN, input, normalized_shape, weight, bias, eps)

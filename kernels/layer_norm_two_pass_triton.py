"""Layer normalization of one Triton program a row in two passes, as the Triton tutorial has it, mended.

Every lane adds its share of the row in fp32, the lanes are joined to the mean, and a second sweep sums
(x - mean)^2. Output and backward are those of layer_norm_skeleton_triton.py: no lock, no atomic, fp32 parts.

What the published form gets wrong and this one does not: strides of every tensor, grad_output included;
64-bit offsets; a missing weight or bias; fp32 partial sums; rows = 0, columns = 1 and rows beyond 64 KB.

A row that holds NaN or infinity comes out as NaN, and no other row does. Beyond |x| = 1e15 the sum of
squares may overflow in fp32: the kernel makes no promise there.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Layer Normalization (05-layer-norm.py)",
    author="Triton's tutorials",
    licence="not stated on the page; its repository is under the MIT licence",
    changed="every stride, a missing weight or bias, 64-bit offsets, fp32 parts in a fixed order, any row",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_triton.py")).module
divide = skeleton.divide


@triton.jit
def _moments(x, x_column, columns, count, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    """Two passes over the row at x: its mean, then the biased variance about it."""
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        total += tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
    mean = divide(tl.sum(total, axis=0), count)
    # A masked lane would add mean^2.
    total = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        centred = tl.where(column < columns, value - mean, 0.0)
        total += centred * centred
    return mean, divide(tl.sum(total, axis=0), count)


DESIGN = layer_norm.Design(
    forward=layer_norm.forward_in_tiles,
    backward=layer_norm.backward_in_tiles,
    constants={"MOMENTS": _moments},
)


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_two_pass_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm.layer_norm_by(DESIGN, input, normalized_shape, weight, bias, eps)

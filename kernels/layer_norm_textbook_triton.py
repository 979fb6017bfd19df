"""Layer normalization with the textbook variance, mean(x^2) - mean(x)^2, of one Triton program a row.

It reads the row once for both sums and is here for comparison: it loses accuracy with the square of
|mean| / std, and its own bound says so. The difference of two rounded numbers can be negative and is then
taken as 0. Tiles, output and backward are those of layer_norm_skeleton_triton.py.
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Layer Normalization (05-layer-norm.py)",
    author="Triton's tutorials",
    licence="not stated on the page; its repository is under the MIT licence",
    changed="as layer_norm_two_pass_triton, and another variance",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_triton.py")).module
divide, sums = skeleton.divide, skeleton.sums


@triton.jit
def _moments(x, x_column, columns, count, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    """One sweep for both sums. Masked lanes are zeros, which neither sum sees."""
    total = tl.zeros((BLOCK,), ACCUMULATE)
    squares = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        value = tl.load(x + column * x_column, mask=column < columns, other=0.0).to(ACCUMULATE)
        total += value
        squares += value * value
    total, squares = sums(total, squares, axis=0)
    mean = divide(total, count)
    variance = divide(squares, count) - mean * mean
    return mean, tl.where(variance < 0.0, 0.0, variance)  # keeps NaN, which a maximum would not


DESIGN = layer_norm.Design(
    forward=layer_norm.forward_in_tiles,
    backward=layer_norm.backward_in_tiles,
    constants={"MOMENTS": _moments},
)


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="textbook",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    clamp=True,
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=10.0, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_textbook_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm.layer_norm_by(DESIGN, input, normalized_shape, weight, bias, eps)

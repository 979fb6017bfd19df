"""Layer normalization with Welford's variance of one Triton program a row.

Each lane updates a count, a mean and a sum of squared deviations element by element; the lanes are then
merged as Chan, Golub and LeVeque do, where an empty partner changes nothing. One column a lane and sweep:
element i belongs to lane i mod 128, and the lanes of each warp are joined before the warps: that is the tree
that is declared, in the backward as well. Output and backward are those of layer_norm_skeleton_triton.py.

The last merges are butterflies over lanes and warps. A merge does not commute, so each warp may end with a
mean and an rstd of its own, an ulp or so apart: a column is normalized with those of its warp, and those of
one thread are saved. Each of them keeps the bound, and the declaration says so (`per_lane_means`).
"""

from pathlib import Path

import triton
import triton.language as tl

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="Layer Normalization (05-layer-norm.py)",
    author="Triton's tutorials",
    licence="not stated on the page; its repository is under the MIT licence",
    changed="as layer_norm_two_pass_triton, and another variance",
)

skeleton = load(Path(__file__).with_name("row_norm_skeleton_triton.py")).module
layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_triton.py")).module
divide = skeleton.divide
LANES = 128  # as many columns a sweep as threads: each thread is one lane
TREE = tree(lanes=LANES, warp=32)


@triton.jit
def _merge(n_a, mean_a, m2_a, n_b, mean_b, m2_b):
    n = n_a + n_b
    share = tl.where(n_b > 0.0, divide(n_b, tl.maximum(n, 1.0)), 0.0)
    delta = mean_b - mean_a
    # In this order an empty lane gives an exact 0 even where delta^2 would overflow.
    return n, mean_a + delta * share, m2_a + m2_b + delta * (delta * (n_a * share))


@triton.jit
def _moments(x, x_column, columns, count, BLOCK: tl.constexpr, ACCUMULATE: tl.constexpr):
    """One sweep for every lane's moments, then the merge. The first element has count 1, and x / 1 is x."""
    seen = tl.zeros((BLOCK,), ACCUMULATE)
    means = tl.zeros((BLOCK,), ACCUMULATE)
    m2 = tl.zeros((BLOCK,), ACCUMULATE)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        inside = column < columns
        value = tl.load(x + column * x_column, mask=inside, other=0.0).to(ACCUMULATE)
        delta = value - means
        updated = means + divide(delta, seen + 1.0)
        # A masked lane keeps its moments and its count.
        m2 = tl.where(inside, m2 + delta * (value - updated), m2)
        means = tl.where(inside, updated, means)
        seen = tl.where(inside, seen + 1.0, seen)
    seen, mean, m2 = tl.reduce((seen, means, m2), 0, _merge)
    return mean, divide(m2, count)


def _lanes(columns, dtype):
    return LANES, LANES // 32


DESIGN = layer_norm.Design(
    forward=layer_norm.forward_in_tiles,
    backward=layer_norm.backward_in_tiles,
    constants={"MOMENTS": _moments},
    tile=_lanes,
)


@subject(
    op="layer_norm",
    language="triton",
    source=SOURCE,
    variance="welford",
    variance_options={"per_lane_means": True},
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=TREE,
        row_gradients=TREE,
        columns=skeleton.TREES.columns,
    ),
    mean_contraction="none",  # the mean ends in an addition, which leaves one number
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=100.0, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_welford_triton(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm.layer_norm_by(DESIGN, input, normalized_shape, weight, bias, eps)

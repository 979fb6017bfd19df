"""Instance normalization of one Triton program a channel of a sample, two-pass, forward and backward.

Its kernels are those of group_norm_triton.py, with a group for each channel. Running statistics are neither
kept nor used.

A row that holds NaN or infinity comes out as NaN, and no other row does. Beyond |x| = 1e15 the sum of
squares may overflow in fp32: the kernel makes no promise there.
"""

from pathlib import Path

from verifier import Domain, Source, Trees, load, subject, tree

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="our own, after the document's other norms",
)

groups = load(Path(__file__).with_name("group_norm_triton.py")).module
skeleton = groups.skeleton


@subject(
    op="instance_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=Trees(
        statistics=tree(depth=groups.depth),
        row_gradients=tree(depth=groups.depth),
        columns=tree(depth=groups.depth),
    ),
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def instance_norm_triton(input, weight=None, bias=None, eps=1e-5):
    if input.dim() < 3:
        raise ValueError(f"instance_norm takes (N, C, *) with positions, not shape {tuple(input.shape)}.")
    return groups.normalized("instance_norm", input, max(input.shape[1], 1), weight, bias, eps)

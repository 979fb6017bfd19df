"""Residual addition and layer normalization in one Triton kernel; the norm reads the sum before it is stored.

That is how fused kernels compute it which keep a row in registers: the sum stays in fp32 for the mean, the
variance and the output, and is rounded to the residual's dtype where it is returned. The backward pass reads
what was stored, with the statistics of what was not, and adds the gradient that comes to the sum in fp32.

A row that holds NaN or infinity comes out as NaN. Beyond |sum| = 1e15 the squares may overflow in fp32: the
kernel makes no promise there.
"""

from pathlib import Path

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="flash-attention, layer_norm.py (Triton)",
    author="Tri Dao",
    url="https://github.com/Dao-AILab/flash-attention",
    licence="BSD-3-Clause",
    changed="written anew: every stride and rank, a missing weight or bias, 64-bit offsets, rows of any "
    "length, parts in a fixed order, a gradient of the sum that is absent",
)

add_norm = load(Path(__file__).with_name("add_norm_skeleton_triton.py")).module
skeleton = add_norm.skeleton


@subject(
    op="add_layer_norm",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    formula="kept_sum",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(
        max_abs=1e15,
        max_kappa=1e3,
        parameter_dtypes=skeleton.PARAMETER_DTYPES,
        residual_dtypes=skeleton.PARAMETER_DTYPES,
    ),
    returns=("output", "new_residual", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def add_layer_norm_triton(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5):
    return add_norm.add_norm(
        "add_layer_norm",
        input,
        residual,
        normalized_shape,
        weight,
        bias,
        eps,
        mean_of=add_norm.mean_of_row,
        keep=True,
    )

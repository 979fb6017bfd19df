"""Dropout with its mask given, residual addition and layer normalization in one Triton kernel.

Where the mask is True the input counts times 1 / (1 - p), elsewhere not at all: the kernel chooses, and a NaN
that is dropped does no harm. The norm reads the sum before it is stored. The gradient that comes to the sum
from the blocks after it is added in fp32; the residual gets the total, the input what the mask keeps of it.

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
    changed="written anew: the mask is an argument and no random number is drawn; every stride and rank, a "
    "missing weight or bias, 64-bit offsets, rows of any length, parts in a fixed order",
)

add_norm = load(Path(__file__).with_name("add_norm_skeleton_triton.py")).module
skeleton = add_norm.skeleton


@subject(
    op="dropout_add_layer_norm",
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
def dropout_add_layer_norm_triton(
    input, residual, dropout_mask, normalized_shape, weight=None, bias=None, eps=1e-5, p=0.5
):
    if not 0 <= p < 1:
        raise ValueError(f"dropout_add_layer_norm takes a probability below 1, not {p}.")
    return add_norm.add_norm(
        "dropout_add_layer_norm",
        input,
        residual,
        normalized_shape,
        weight,
        bias,
        eps,
        mean_of=add_norm.mean_of_row,
        keep=True,
        kept=dropout_mask,
        scale=1 / (1 - p),
    )

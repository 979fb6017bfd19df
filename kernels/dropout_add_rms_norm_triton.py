"""Dropout with its mask given, residual addition and RMS normalization in one Triton kernel.

Where the mask is True the input counts times 1 / (1 - p), elsewhere not at all: the kernel chooses, and a NaN
that is dropped does no harm. The norm reads the sum as it is stored. The gradient that comes to the sum from
the blocks after it is added in fp32; the residual gets the total, the input what the mask keeps of it.

A row that holds NaN comes out as NaN. Beyond |sum| = 1e15 the squares may overflow in fp32: the
kernel makes no promise there.
"""

from pathlib import Path

import torch

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="flash-attention, layer_norm.py (Triton)",
    author="Tri Dao",
    url="https://github.com/Dao-AILab/flash-attention",
    licence="BSD-3-Clause",
    changed="written anew: the mask is an argument and no random number is drawn; every stride and rank, a "
    "missing weight, 64-bit offsets, rows of any length, parts in a fixed order",
)

add_norm = load(Path(__file__).with_name("add_norm_skeleton_triton.py")).module
skeleton = add_norm.skeleton


@subject(
    op="dropout_add_rms_norm",
    language="triton",
    source=SOURCE,
    variance="rms",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of squares stays finite.
    domain=Domain(
        max_abs=1e15, parameter_dtypes=skeleton.PARAMETER_DTYPES, residual_dtypes=skeleton.PARAMETER_DTYPES
    ),
    returns=("output", "new_residual", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def dropout_add_rms_norm_triton(
    input, residual, dropout_mask, normalized_shape, weight=None, eps=None, p=0.5
):
    if eps is None:  # as PyTorch's rms_norm does
        eps = torch.finfo(skeleton.accumulator(input.dtype)[0]).eps
    if not 0 <= p < 1:
        raise ValueError(f"dropout_add_rms_norm takes a probability below 1, not {p}.")
    return add_norm.add_norm(
        "dropout_add_rms_norm",
        input,
        residual,
        normalized_shape,
        weight,
        None,
        eps,
        mean_of=None,
        keep=False,
        kept=dropout_mask,
        scale=1 / (1 - p),
    )

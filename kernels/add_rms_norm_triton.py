"""Residual addition and RMS normalization in one Triton kernel; the sum is normalized as it is stored.

That is how a block of a pre-norm transformer computes it when written out, in half precision too: the sum is
rounded to the residual's dtype, and the norm reads what was rounded. The gradient that comes to the sum from
the blocks after it is added to that of the norm in fp32, before one rounding.

A row that holds NaN comes out as NaN. Beyond |sum| = 1e15 the squares may overflow in fp32, and beyond the
largest number of the residual's dtype the sum does: the kernel makes no promise there.
"""

from pathlib import Path

import torch

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Liger-Kernel, fused_add_rms_norm",
    author="LinkedIn",
    url="https://github.com/linkedin/Liger-Kernel",
    licence="BSD-2-Clause",
    changed="written anew: every stride and rank, a missing weight, 64-bit offsets, rows of any length, fp32 "
    "parts in a fixed order, a gradient of the sum that is absent",
)

add_norm = load(Path(__file__).with_name("add_norm_skeleton_triton.py")).module
skeleton = add_norm.skeleton


@subject(
    op="add_rms_norm",
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
def add_rms_norm_triton(input, residual, normalized_shape, weight=None, eps=None):
    if eps is None:  # as PyTorch's rms_norm does
        eps = torch.finfo(skeleton.accumulator(input.dtype)[0]).eps
    return add_norm.add_norm(
        "add_rms_norm", input, residual, normalized_shape, weight, None, eps, mean_of=None, keep=False
    )

"""PyTorch's own RMS norm: a control, not a reference, since it has a defect of its own."""

import torch

from verifier import KnownDefect, subject


def _squares_overflow(case):
    return case.largest > 1e18  # fp32 squares end at 1.8e19; a sum of them earlier


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="autograd",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    guarantees={"layouts", "large_offsets"},
    known_defects=(
        KnownDefect(
            check="forward_error",
            reason="The squares overflow in fp32 and the output is 0, although the exact one is ordinary.",
            where=_squares_overflow,
            dtypes=("bfloat16", "float32"),
        ),
    ),
)
def rms_norm_torch(input, normalized_shape, weight=None, eps=None):
    return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)

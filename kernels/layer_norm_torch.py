"""PyTorch's own layer norm: a control, not a reference, since it has defects of its own."""

import torch

from verifier import KnownDefect, subject


def _one_column(case):
    return case.columns == 1


def _squares_overflow(case):
    return case.largest > 1e18  # fp32 squares end at 1.8e19; a sum of them earlier


@subject(
    op="layer_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    formula="torch_cpu",
    # On the CPU the statistics of half inputs are saved in half where the weight is half too.
    saved_dtype="input",
    guarantees={"layouts", "large_offsets"},
    known_defects=(
        KnownDefect(
            check="gradient",
            reason="With one column grad_weight is rounding noise times rstd instead of 0 on the CPU.",
            where=_one_column,
            backends=("eager",),
        ),
        KnownDefect(
            check="forward_error",
            reason="The squares overflow in fp32 and the output is 0, although the exact one is ordinary.",
            where=_squares_overflow,
            dtypes=("bfloat16", "float32"),
        ),
    ),
)
def layer_norm_torch(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)

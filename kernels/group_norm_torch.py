"""PyTorch's own group norm: a control, not a reference."""

import torch

from verifier import Domain, KnownDefect, subject

_WITH_BACKWARD = (
    *("gradient", "layouts", "memory", "determinism", "batch_invariance", "special_values", "global_state"),
    *("context", "large_offsets", "gradgradcheck", "modes", "partial_gradients", "repeated_calls"),
)
"""Checks beside gradcheck that run the backward pass."""


def _squares_overflow(case):
    return case.largest > {"float64": 1e153}.get(
        case.dtype, 1e18
    )  # the squares end at 1.3e154, in fp32 at 1.8e19


def _bias_alone(case):
    return case.given.keys() & {"weight", "bias"} == {"bias"}


@subject(
    op="group_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    formula="torch_cpu",
    # PyTorch refuses one value in all, and its backward pass on the CPU fails with bias and no weight.
    domain=Domain(min_columns=2, optional=False),
    saved_dtype="input",
    known_defects=(
        KnownDefect(
            id="bias-without-weight",
            check="gradcheck",
            reason="The backward pass on the CPU ends in an error where there is bias and no weight.",
            where=_bias_alone,
            also=_WITH_BACKWARD,
            backends=("eager",),
        ),
        *(
            KnownDefect(
                id="merged-with-nothing",
                check=check,
                reason="Merging the first elements into nothing squares them: 0 times infinity is NaN.",
                where=_squares_overflow,
                backends=("eager",),
                dtypes=("bfloat16", "float32", "float64"),
            )
            for check in ("forward_error", "finite", "gradient")
        ),
    ),
    guarantees={"layouts", "large_offsets"},
)
def group_norm_torch(input, num_groups, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)

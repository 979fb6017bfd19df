"""Batch normalization by hand in torch operators, as the norm series publishes it next, defects included.

It asks torch once, for the mean and the unbiased variance, and scales that by (n - 1) / n to normalize.
`batch_norm_triton` does the same as one kernel, and without the defects.
"""

from pathlib import Path

import torch

from verifier import KnownDefect, Source, load, subject

SOURCE = Source(title="LeetGPU exercise 07: the Norm series", part="second version", as_published=True)

shared = load(Path(__file__).with_name("batch_norm_published_skeleton_torch.py")).module


def _one_value(case):
    return case.columns == 1


def _nothing(case):
    return case.elements == 0


def _nan_of_one_value(check):
    return KnownDefect(
        id="nan-of-one-value",
        check=check,
        also=("metamorphic",),
        reason="With one value per channel the unbiased variance is 0 / 0, so every output is NaN, "
        "where PyTorch refuses.",
        where=_one_value,
    )


def _division_by_nothing(check):
    return KnownDefect(
        id="division-by-zero",
        check=check,
        reason="An empty input ends in a division by zero: of the values by the channels, or of the count.",
        where=_nothing,
    )


@subject(
    **shared.claim(SOURCE),
    known_defects=(
        shared.SHAPE_LOST,
        *(
            _nan_of_one_value(check)
            for check in ("forward_error", "finite", "gradient", "layouts", "special_values", "context")
        ),
        *(_division_by_nothing(check) for check in ("forward_error", "gradient", "memory", "special_values")),
    ),
)
def batch_norm_published_one_variance_torch(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Batch normalization by hand from one unbiased variance, scaled by (n - 1) / n, as published."""
    dims = [axis for axis in range(input.dim()) if axis != 1]
    if training:
        unbiased, mean = torch.var_mean(input, dims, correction=1, keepdim=True)
        count = input.numel() // input.shape[1]
        variance = unbiased * ((count - 1) / count)
        shared.move(running_mean, momentum, mean)
        shared.move(running_var, momentum, unbiased)
    else:
        mean, variance = shared.by_channel(running_mean, input), shared.by_channel(running_var, input)
    return shared.scale_and_shift((input - mean) / torch.sqrt(variance + eps), weight, bias)

"""Batch normalization by hand in torch operators, as the norm series publishes it first, defects included.

It asks torch for the mean and for two variances: the biased normalizes, the unbiased moves running_var.
`batch_norm_triton` does the same as one kernel, and without the defects.
"""

from pathlib import Path

import torch

from verifier import KnownDefect, Source, load, subject

SOURCE = Source(title="LeetGPU exercise 07: the Norm series", part="first version", as_published=True)

shared = load(Path(__file__).with_name("batch_norm_published_skeleton_torch.py")).module


@subject(
    **shared.claim(SOURCE),
    known_defects=(
        shared.SHAPE_LOST,
        KnownDefect(
            id="nan-of-one-value",
            check="finite",
            reason="With one value per channel the unbiased variance is 0 / 0: running_var becomes NaN, "
            "and stays so, where PyTorch refuses.",
            where=lambda case: case.columns == 1 and case.scalars["training"],
        ),
    ),
)
def batch_norm_published_two_variances_torch(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Batch normalization by hand from a mean, a biased and an unbiased variance, as published."""
    dims = [axis for axis in range(input.dim()) if axis != 1]
    if training:
        mean = input.mean(dims, keepdim=True)
        variance = input.var(dims, correction=0, keepdim=True)
        shared.move(running_mean, momentum, mean)
        shared.move(running_var, momentum, input.var(dims, correction=1, keepdim=True))
    else:
        mean, variance = shared.by_channel(running_mean, input), shared.by_channel(running_var, input)
    return shared.scale_and_shift((input - mean) / torch.sqrt(variance + eps), weight, bias)

"""Kernels of an op, an algorithm and a guarantee that an extension adds."""

import torch

from verifier import subject

_DECLARED = {
    "op": "first_axis_norm",
    "language": "torch",
    "dtypes": ("float32",),
    "variance": "two_pass_again",
    "formula": "autograd",
    "guarantees": {"odd"},
}


def _normalized(x, eps):
    deviation = x - x.mean(0, keepdim=True)
    return deviation / torch.sqrt((deviation * deviation).mean(0, keepdim=True) + eps)


@subject(**_DECLARED)
def first_axis_norm(input, eps=1e-5):
    return _normalized(input, eps)


@subject(**_DECLARED)
def first_axis_norm_and_more(input, eps=1e-5):
    """Adds what no tolerance of tests sees."""
    return _normalized(input, eps) + 1e-6

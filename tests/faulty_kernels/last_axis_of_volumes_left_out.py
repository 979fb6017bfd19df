"""A group norm whose mean leaves out the last axis of a volume: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="group_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def last_axis_of_volumes_left_out(input, num_groups, weight=None, bias=None, eps=1e-5):
    samples, channels, *positions = input.shape
    x = input.detach().reshape(samples, num_groups, channels // num_groups, *positions)
    axes = tuple(range(2, min(x.dim(), 5)))  # the bug: (N, C, D, H, W) has one more
    centred = x - x.mean(axes, keepdim=True)
    hat = centred / torch.sqrt(centred.square().mean(axes, keepdim=True) + eps)
    out = hat.reshape(input.shape)
    ones = [1] * len(positions)
    out = out if weight is None else out * weight.detach().reshape(-1, *ones)
    return out if bias is None else out + bias.detach().reshape(-1, *ones)

"""Adds one in place to weight.float(), which is no copy if the weight is fp32: memory must catch it."""

import torch

from strategies.layouts import KINDS
from verifier import Domain, subject


@subject(
    op="layer_norm_one_plus_weight",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(
        max_abs=1e15,
        max_kappa=1e3,
        # torch itself refuses to write where elements share memory, which the check layouts would tell.
        layouts=tuple(kind for kind in KINDS if kind != "expanded"),
        parameter_dtypes=("input", "float32"),
    ),
    dtypes=("bfloat16",),
    differentiable=False,
)
def one_added_to_weight_in_place(input, weight, bias=None, eps=1e-5):
    x = input.detach().float()
    deviation = x - x.mean(-1, keepdim=True)
    out = deviation / torch.sqrt(deviation.square().mean(-1, keepdim=True) + eps)
    out = out * weight.detach().float().add_(1.0)  # the bug: float() gives an fp32 weight itself
    return (out if bias is None else out + bias.detach().float()).to(input.dtype)

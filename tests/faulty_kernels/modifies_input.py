"""Centres its input in place: memory must catch it."""

import torch

from strategies.layouts import KINDS
from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    # torch itself refuses to write where elements share memory, which the check layouts would tell.
    domain=Domain(max_abs=1e15, max_kappa=1e3, layouts=tuple(kind for kind in KINDS if kind != "expanded")),
    dtypes=("float32",),
    differentiable=False,
)
def modifies_input(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float().clone()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    with torch.no_grad():
        input.sub_(mean.to(input.dtype))  # the bug: the caller's tensor
    return out.to(input.dtype)

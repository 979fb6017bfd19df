"""Has a default of its own where PyTorch's eps is None: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
)
def eps_none_taken_for_another(input, weight=None, eps=None):
    x = input.detach().float()
    held = 1e-5 if eps is None else eps  # the bug: PyTorch's is the spacing of the dtype at 1
    rstd = 1 / torch.sqrt(x.square().mean(-1, keepdim=True) + held)
    out = x * rstd
    return (out if weight is None else out * weight.detach()).to(input.dtype)

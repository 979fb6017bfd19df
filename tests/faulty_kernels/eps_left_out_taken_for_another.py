"""Takes another eps than its signature says where the call has none: forward_error must catch it."""

import functools

import torch

from verifier import Domain, subject


def with_settings(function):
    @functools.wraps(function)
    def called(*arguments, **settings):
        settings.setdefault("eps", 1e-6)  # the bug: the signature says 1e-5
        return function(*arguments, **settings)

    return called


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    domain=Domain(max_abs=1e15),
    dtypes=("float32",),
    differentiable=False,
)
@with_settings
def eps_left_out_taken_for_another(input, weight=None, eps=1e-5):
    x = input.detach().float()
    rstd = 1 / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    out = x * rstd
    return (out if weight is None else out * weight.detach()).to(input.dtype)

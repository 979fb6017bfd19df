"""Refuses the None that its signature has as default where a call gives it: forward_error must catch it."""

import functools

import torch

from verifier import Domain, subject


def with_settings(function):
    @functools.wraps(function)
    def called(*arguments, **settings):
        settings.setdefault("eps", torch.finfo(torch.float32).eps)  # the bug: not where it is given as None
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
def eps_none_in_words_refused(input, weight=None, eps=None):
    x = input.detach().float()
    rstd = 1 / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    out = x * rstd
    return (out if weight is None else out * weight.detach()).to(input.dtype)

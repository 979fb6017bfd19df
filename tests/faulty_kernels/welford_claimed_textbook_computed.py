"""Claims Welford and computes mean(x^2) - mean^2: claim must catch it."""

import torch

from verifier import Domain, sequential, subject


def _mean_in_order(x):
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total / max(x.shape[-1], 1)


@subject(
    op="layer_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    trees=sequential(),
    differentiable=False,
)
def welford_claimed_textbook_computed(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = _mean_in_order(x)
    variance = _mean_in_order(x.square()) - mean.square()  # the bug: another algorithm
    rstd = 1 / torch.sqrt(variance.clamp(min=0) + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

"""Adds each row in an order that depends on how many rows there are: batch_invariance must catch it."""

import torch

from verifier import Domain, subject


def _sum_in_lanes(x, lanes):
    totals = []
    for lane in range(lanes):
        total = torch.zeros_like(x[..., :1])
        for column in range(lane, x.shape[-1], lanes):
            total = total + x[..., column : column + 1]
        totals.append(total)
    return sum(totals[1:], totals[0])


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
    guarantees={"batch_invariance"},
)
def sums_by_number_of_rows(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    columns = max(x.shape[-1], 1)
    lanes = 1 if x.numel() // columns % 2 else 4  # the bug: a split chosen to fill the device
    mean = _sum_in_lanes(x, lanes) / columns
    variance = _sum_in_lanes((x - mean).square(), lanes) / columns
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

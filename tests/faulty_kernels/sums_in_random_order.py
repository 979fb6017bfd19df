"""Adds each row in an order of the moment, as float atomics do: determinism must catch it."""

import time

import torch

from verifier import Domain, subject


def _sum_in_order(x):
    total = torch.zeros_like(x[..., :1])
    for column in range(x.shape[-1]):
        total = total + x[..., column : column + 1]
    return total


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
    guarantees={"determinism"},
)
def sums_in_random_order(input, weight=None, bias=None, eps=1e-5):
    clock = torch.Generator().manual_seed(time.perf_counter_ns() % 2**63)
    order = torch.randperm(input.shape[-1], generator=clock).to(input.device)
    x = input.detach().float()
    columns = max(x.shape[-1], 1)
    mean = _sum_in_order(x[..., order]) / columns  # the bug
    variance = _sum_in_order((x - mean).square()[..., order]) / columns
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

"""Writes one element behind its output: memory must catch it."""

import ctypes

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    differentiable=False,
)
def writes_past_the_end(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    # Whole vectors of 4 elements, as a vectorized kernel stores them: 16 bytes, so that malloc's own
    # records lie 8 bytes further on and the process survives.
    vectors = (out.numel() + 3) // 4
    buffer = torch.empty(4 * vectors, dtype=torch.float32, device=input.device)
    buffer[: out.numel()] = out.reshape(-1)
    if vectors and not input.is_cuda:
        ctypes.c_float.from_address(buffer.data_ptr() + 16 * vectors).value = 0.0  # the bug
    return buffer[: out.numel()].reshape(input.shape)

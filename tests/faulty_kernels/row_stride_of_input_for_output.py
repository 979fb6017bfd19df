"""Writes the output at the input's row stride: layouts must catch it."""

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
    guarantees={"layouts"},
)
def row_stride_of_input_for_output(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    flat = input.new_zeros(out.numel())
    row, columns = (input.stride(-2) if input.dim() > 1 else 0), out.shape[-1]
    for index, values in enumerate(out.to(input.dtype).reshape(-1, columns) if out.numel() else ()):
        at = index * row % max(flat.numel() - columns + 1, 1)  # the bug; kept inside the output
        flat[at : at + columns] = values
    return flat.reshape(input.shape)

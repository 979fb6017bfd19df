"""Takes the step between rows for that between columns, of one row: layouts must catch it."""

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
def row_stride_taken_for_column(input, weight=None, bias=None, eps=1e-5):
    x = input.detach()
    if x.dim() == 2 and x.shape[0] == 1 and x.stride(0) == 1:
        x = x.as_strided(x.shape, (1, 1))  # the bug: its columns may lie apart
    x = x.float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

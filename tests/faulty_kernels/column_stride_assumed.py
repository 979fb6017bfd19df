"""Takes the column stride of the input for 1: layouts must catch it."""

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
def column_stride_assumed(input, weight=None, bias=None, eps=1e-5):
    # The bug: rows are found by their stride, columns are taken as neighbours.
    x = input.detach()
    if x.dim() > 1:
        held = x.untyped_storage().nbytes() // x.element_size()
        memory = x.as_strided((held,), (1,), 0)
        first = torch.zeros(x.shape[:-1], dtype=torch.int64, device=x.device)
        for axis, stride in enumerate(x.stride()[:-1]):
            extent = torch.arange(x.shape[axis], device=x.device) * stride
            first += extent.reshape(-1, *(1 for _ in range(x.dim() - 2 - axis)))
        place = x.storage_offset() + first[..., None] + torch.arange(x.shape[-1], device=x.device)
        x = memory[place.clamp(max=max(held - 1, 0))] if held else x
    x = x.float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

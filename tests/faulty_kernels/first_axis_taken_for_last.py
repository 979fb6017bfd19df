"""Looks at the step of the first axis for that of the last: layouts must catch it."""

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
    guarantees={"layouts"},
)
def first_axis_taken_for_last(input, weight=None, eps=1e-5):
    x = input.detach()
    rows, columns = x.shape[:-1], x.shape[-1]
    # The bug: `x.stride(-1)`. Of two axes, the first has a step of 1 where rows are columns of a matrix.
    if x.numel() and (x.dim() < 3 or x.stride(0) != 1 or min(x.shape[:2]) < 2):
        x = x.contiguous()
    held = x.untyped_storage().nbytes() // x.element_size()
    memory = x.as_strided((held,), (1,), 0)
    place = torch.full((*rows, 1), x.storage_offset())
    for axis, extent in enumerate(rows):
        place += (torch.arange(extent) * x.stride(axis)).reshape(-1, *[1] * (x.dim() - axis - 1))
    x = memory[(place + torch.arange(columns)) % max(held, 1)].float() if x.numel() else x
    out = x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    out = out if weight is None else out * weight.detach()
    return out.to(input.dtype)

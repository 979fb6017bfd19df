"""Takes the last stride but one for the way from each row to the next: layouts must catch it."""

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
def rows_evenly_spaced(input, weight=None, bias=None, eps=1e-5):
    x = input.detach()
    if x.dim() > 1 and x.numel():
        # The bug: x[0, 1] follows x[0, 0] as x[1, 0] follows x[0, -1] only where no leading axis was moved.
        rows, columns = x.numel() // x.shape[-1], x.shape[-1]
        held = x.untyped_storage().nbytes() // x.element_size()
        memory = x.as_strided((held,), (1,), 0)
        row = torch.arange(rows, device=x.device)[:, None] * x.stride(-2)
        place = x.storage_offset() + row + torch.arange(columns, device=x.device) * x.stride(-1)
        x = memory[place % held].reshape(x.shape)
    x = x.float()
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt(variance + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight.detach()
    out = out if bias is None else out + bias.detach()
    return out.to(input.dtype)

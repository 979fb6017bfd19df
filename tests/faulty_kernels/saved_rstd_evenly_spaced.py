"""Takes the rstd that it is given for contiguous: layouts must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="layer_norm_backward",
    language="torch",
    accumulates="float32",
    formula="canonical",
    domain=Domain(max_abs=1e15, max_kappa=1e3),
    dtypes=("float32",),
    returns=("grad_input", "grad_weight", "grad_bias"),
    guarantees={"layouts"},
)
def saved_rstd_evenly_spaced(grad_output, input, weight=None, *, mean, rstd):
    x, dy = input.float(), grad_output.float()
    # The bug: the memory of rstd is read from its first element on, as if it were contiguous.
    held = rstd.untyped_storage().nbytes() // rstd.element_size()
    memory = rstd.as_strided((held,), (1,), 0)
    place = rstd.storage_offset() + torch.arange(rstd.numel(), device=x.device)
    by_row = (*x.shape[:-1], 1) if x.dim() else ()
    scale = memory[place.clamp(max=max(held - 1, 0))].reshape(by_row)
    hat = (x - mean.reshape(by_row)) * scale
    g = dy if weight is None else dy * weight.float()
    c1, c2 = (hat * g).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
    columns = x.shape[-1]
    rows = x.numel() // max(columns, 1)
    sums = ((dy * hat).reshape(rows, columns).sum(0), dy.reshape(rows, columns).sum(0))
    dtype = input.dtype if weight is None else weight.dtype
    return ((g - (hat * c1 + c2)) * scale).to(input.dtype), *(total.to(dtype) for total in sums)

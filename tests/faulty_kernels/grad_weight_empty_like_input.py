"""Makes room for grad_weight in the input's dtype and not in that of weight: gradient must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="rms_norm_backward",
    language="torch",
    formula="canonical",
    accumulates="float32",
    domain=Domain(min_rows=1, min_columns=1, parameter_dtypes=("input", "float32")),
    dtypes=("float16",),
    returns=("grad_input", "grad_weight"),
)
def grad_weight_empty_like_input(grad_output, input, weight, rstd):
    rows = input.reshape(rstd.numel(), -1)
    d, hat = grad_output.reshape(rows.shape).float(), rows.float() * rstd[:, None]
    g = d * weight.reshape(-1).float()
    grad_input = (g - hat * (hat * g).mean(-1, keepdim=True)) * rstd[:, None]
    grad_weight = torch.empty_like(rows[:1]).reshape(-1)  # the bug
    grad_weight.copy_((d * hat).sum(0))
    return grad_input.reshape(input.shape).to(input.dtype), grad_weight.reshape(weight.shape)

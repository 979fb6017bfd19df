"""An instance norm with weight and bias of another channel than its own: forward_error must catch it."""

import torch

from verifier import Domain, subject


@subject(
    op="instance_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    dtypes=("float32",),
    domain=Domain(min_rows=1, max_abs=1e15),
)
def weight_of_another_channel(input, weight=None, bias=None, eps=1e-5):
    rows = input.flatten(2).flatten(0, 1)
    centred = rows - rows.mean(1, keepdim=True)
    hat = centred * torch.rsqrt((centred**2).mean(1, keepdim=True) + eps)
    row = torch.arange(rows.shape[0]) // input.shape[0]  # the bug: % input.shape[1]
    if weight is not None:
        hat = hat * weight[row][:, None]
    if bias is not None:
        hat = hat + bias[row][:, None]
    return hat.reshape(input.shape)

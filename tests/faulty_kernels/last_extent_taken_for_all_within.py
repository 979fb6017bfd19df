"""Takes the last extent for the number of rows within one index of `dim`: forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    dtypes=("float32",),
    differentiable=False,
)
def last_extent_taken_for_all_within(input, dim=-1):
    x, dim = input.detach(), dim % input.dim()
    columns = x.shape[dim]
    within = x.shape[-1] if dim < x.dim() - 1 else 1  # the bug: a product, where two dimensions follow
    rows = x.contiguous().view(-1, columns, within) if x.numel() else x
    return torch.softmax(rows, 1 if x.numel() else dim).view(x.shape)

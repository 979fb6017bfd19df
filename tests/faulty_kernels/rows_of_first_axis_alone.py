"""Takes the first axis for all rows: of three dimensions some are left; forward_error must catch it."""

import torch

from verifier import subject


@subject(
    op="softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    formula="torch_cpu",
    dtypes=("float32",),
    differentiable=False,
)
def rows_of_first_axis_alone(input):
    x, y = input.detach().contiguous(), torch.zeros_like(input, memory_format=torch.contiguous_format)
    columns = x.shape[-1]
    rows = x.shape[0] if x.dim() > 1 else 1  # the bug: and all others but the last
    if x.numel():
        y.view(-1, columns)[:rows] = torch.softmax(x.view(-1, columns)[:rows], -1)
    return y

"""PyTorch's own group norm: a control, not a reference."""

import torch

from verifier import subject


@subject(
    op="group_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    saved_dtype="input",
    guarantees={"layouts", "large_offsets"},
)
def group_norm_torch(input, num_groups, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.group_norm(input, num_groups, weight, bias, eps)

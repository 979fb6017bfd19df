"""PyTorch's own softmax: a control, not a reference."""

import torch

from verifier import subject


@subject(
    op="softmax",
    language="torch",
    variance="softmax",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    formula="torch_cpu",
    guarantees={"layouts", "large_offsets"},
)
def softmax_torch(input, dim):
    return torch.nn.functional.softmax(input, dim)

"""PyTorch's own RMS norm: a control, not a reference."""

import torch

from verifier import subject


@subject(
    op="rms_norm",
    language="torch",
    variance="rms",
    accumulates="float32",
    formula="autograd",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    guarantees={"layouts", "large_offsets"},
)
def rms_norm_torch(input, normalized_shape, weight=None, eps=None):
    return torch.nn.functional.rms_norm(input, normalized_shape, weight, eps)

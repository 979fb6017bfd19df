"""PyTorch's own batch norm: a control for training and evaluation."""

import torch

from verifier import Domain, subject


@subject(
    op="batch_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    domain=Domain(min_rows=1, min_columns=1),
    guarantees={"layouts", "large_offsets"},
    mutates=("running_mean", "running_var"),
)
def batch_norm_torch(
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    return torch.nn.functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )

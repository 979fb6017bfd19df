"""Batch normalization by hand in torch operators, the norm series' with its defects mended.

The running statistics are written in place, so that one channel keeps its dimension and whoever holds the
buffers sees the update; one value a channel is refused in training, as in PyTorch; an input without elements
is its own output.
"""

import torch

from verifier import Domain, Source, subject

SOURCE = Source(
    title="LeetGPU exercise 07: the Norm series",
    changed="running statistics written in place, one value a channel refused, an empty input allowed",
)


def _by_channel(vector, input):
    """The vector with its channels in dimension 1."""
    return vector.reshape(1, -1, *(1 for _ in input.shape[2:]))


@torch.no_grad()
def _move(buffer, momentum, value):
    if buffer is not None:
        buffer.copy_((1 - momentum) * buffer + momentum * value.reshape(buffer.shape))


@subject(
    op="batch_norm",
    language="torch",
    source=SOURCE,
    variance="welford",
    accumulates="float32",
    dtypes=("float32", "float64"),
    domain=Domain(min_columns=2, max_abs=1e15, max_kappa=1e2),
    mutates=("running_mean", "running_var"),
    differentiable=False,  # forward only: autograd's way back through these operators is another formula
)
def batch_norm_welford_torch(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    dims = [axis for axis in range(input.dim()) if axis != 1]
    if not input.numel():
        return torch.empty_like(input)
    if training:
        count = input.numel() // input.shape[1]
        if count == 1:
            raise ValueError(f"Training needs more than one value per channel, not {tuple(input.shape)}.")
        variance, mean = torch.var_mean(input, dims, correction=0, keepdim=True)
        _move(running_mean, momentum, mean)
        _move(running_var, momentum, variance * (count / (count - 1)))
    else:
        mean, variance = _by_channel(running_mean, input), _by_channel(running_var, input)
    output = (input - mean) / torch.sqrt(variance + eps)
    output = output if weight is None else output * _by_channel(weight, input)
    return output if bias is None else output + _by_channel(bias, input)

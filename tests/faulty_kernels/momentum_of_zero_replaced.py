"""Takes a momentum of 0, which leaves the statistics, for none given: forward_error must catch it."""

import torch

from verifier import Domain, subject


def _by_channel(vector, input):
    return vector.reshape(1, -1, *(1 for _ in input.shape[2:]))


@torch.no_grad()
def _move(buffer, momentum, value):
    if buffer is not None:
        momentum = momentum or 0.1  # the bug: 0 is a momentum
        buffer.copy_((1 - momentum) * buffer + momentum * value.reshape(buffer.shape))


@subject(
    op="batch_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float32", "float64"),
    domain=Domain(min_columns=2, max_abs=1e15, max_kappa=1e2),
    mutates=("running_mean", "running_var"),
    differentiable=False,
)
def momentum_of_zero_replaced(  # noqa: PLR0917
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

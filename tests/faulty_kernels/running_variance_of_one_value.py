"""Moves running_var to the NaN of one value a channel, all else being right: finite must catch it."""

import torch

from verifier import Domain, subject


def _by_channel(vector, input):
    return vector.detach().reshape(1, -1, *(1 for _ in input.shape[2:]))


@subject(
    op="batch_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    domain=Domain(min_rows=1, min_columns=1, max_abs=1e15, max_kappa=1e2),
    dtypes=("float32",),
    mutates=("running_mean", "running_var"),
    differentiable=False,
)
def running_variance_of_one_value(  # noqa: PLR0917 (a kernel's arguments)
    input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    x = input.detach()
    dims = [axis for axis in range(x.dim()) if axis != 1]
    mean, variance = running_mean, running_var
    if training:
        mean = x.mean(dims)
        squares = (x - _by_channel(mean, x)).square().sum(dims)
        count = x.numel() // x.shape[1]
        variance = squares / count
        if running_mean is not None:
            running_mean.copy_((1 - momentum) * running_mean + momentum * mean)
            # The bug: no case is refused whose unbiased variance is 0 / 0.
            running_var.copy_((1 - momentum) * running_var + momentum * (squares / (count - 1)))
    out = (x - _by_channel(mean, x)) / torch.sqrt(_by_channel(variance, x) + eps)
    out = out if weight is None else out * _by_channel(weight, x)
    return out if bias is None else out + _by_channel(bias, x)

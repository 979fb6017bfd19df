"""Batch normalization by hand in torch operators, as the norm series publishes it twice, defects included.

Both take statistics over every dimension but 1, normalize by the biased variance and move running_var towards
the unbiased one. The first asks torch for the mean and for two variances; the second asks once, for the mean
and the unbiased variance, and scales that by (n - 1) / n.
`batch_norm_triton` does the same as one kernel, and without the defects.
"""

import torch

from verifier import Domain, KnownDefect, subject

SOURCE = "norm series in PyTorch, Triton and CUDA; as published"


def _one_channel(case):
    return case.given["input"].shape[1] == 1


def _one_value(case):
    return case.columns == 1


def _one_value_in_training(case):
    return case.columns == 1 and case.scalars["training"]


def _nothing(case):
    return case.elements == 0


_SHAPE_LOST = KnownDefect(
    check="forward_error",
    reason="squeeze() takes the only dimension of the running statistics away when there is one channel: "
    "assigned to .data, it replaces the buffer's shape.",
    where=_one_channel,
)


def _nan_of_one_value(check):
    return KnownDefect(
        check=check,
        also=("metamorphic",),
        reason="With one value per channel the unbiased variance is 0 / 0, so every output is NaN, "
        "where PyTorch refuses.",
        where=_one_value,
    )


def _division_by_nothing(check):
    return KnownDefect(
        check=check,
        reason="An empty input ends in a division by zero: of the values by the channels, or of the count.",
        where=_nothing,
    )


def _parameter(vector, input):
    """The vector with its channels in dimension 1."""
    return vector.reshape(1, -1, *(1 for _ in input.shape[2:]))


def _scale_and_shift(normalized, weight, bias):
    if weight is not None:
        normalized = normalized * _parameter(weight, normalized)
    return normalized if bias is None else normalized + _parameter(bias, normalized)


def _move(buffer, momentum, value):
    """Replaces the buffer's data, not its contents: the published update."""
    if buffer is not None:
        buffer.data = ((1 - momentum) * buffer.reshape(value.shape) + momentum * value.detach()).squeeze()


@subject(
    op="batch_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float32", "float64"),
    domain=Domain(min_rows=1, min_columns=1, max_abs=1e15, max_kappa=1e2),
    mutates=("running_mean", "running_var"),
    known_defects=(
        _SHAPE_LOST,
        KnownDefect(
            check="finite",
            reason="With one value per channel the unbiased variance is 0 / 0: running_var becomes NaN, "
            "and stays so, where PyTorch refuses.",
            where=_one_value_in_training,
        ),
    ),
)
def batch_norm_by_hand_two_variances(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Batch normalization by hand from a mean, a biased and an unbiased variance, as published."""
    dims = [axis for axis in range(input.dim()) if axis != 1]
    if training:
        mean = input.mean(dims, keepdim=True)
        variance = input.var(dims, correction=0, keepdim=True)
        _move(running_mean, momentum, mean)
        _move(running_var, momentum, input.var(dims, correction=1, keepdim=True))
    else:
        mean, variance = _parameter(running_mean, input), _parameter(running_var, input)
    return _scale_and_shift((input - mean) / torch.sqrt(variance + eps), weight, bias)


@subject(
    op="batch_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    dtypes=("float32", "float64"),
    domain=Domain(min_rows=1, min_columns=1, max_abs=1e15, max_kappa=1e2),
    mutates=("running_mean", "running_var"),
    known_defects=(
        _SHAPE_LOST,
        *(
            _nan_of_one_value(check)
            for check in ("forward_error", "finite", "gradient", "layouts", "special_values", "context")
        ),
        *(_division_by_nothing(check) for check in ("forward_error", "gradient", "memory", "special_values")),
    ),
)
def batch_norm_by_hand_one_variance(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    """Batch normalization by hand from one unbiased variance, scaled by (n - 1) / n, as published."""
    dims = [axis for axis in range(input.dim()) if axis != 1]
    if training:
        unbiased, mean = torch.var_mean(input, dims, correction=1, keepdim=True)
        count = input.numel() // input.shape[1]
        variance = unbiased * ((count - 1) / count)
        _move(running_mean, momentum, mean)
        _move(running_var, momentum, unbiased)
    else:
        mean, variance = _parameter(running_mean, input), _parameter(running_var, input)
    return _scale_and_shift((input - mean) / torch.sqrt(variance + eps), weight, bias)

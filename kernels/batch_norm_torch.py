"""PyTorch's own batch norm: a control for training and evaluation, with defects of its own."""

import torch

from verifier import Domain, KnownDefect, subject

_LARGEST = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3e38, "float64": 1e308}


def _no_channels(case):
    return case.rows == 0


def _strided_vector(case):
    vectors = ("weight", "running_mean", "running_var")
    return any(name in case.layouts and case.given[name].numel() > 1 for name in vectors)


def _scale_overflows(case):
    """The output is x * scale + shift, with scale = rstd * weight stored in the dtype of the statistics."""
    return max(case.largest, 1.0) / case.eps**0.5 * 4 > _LARGEST[case.dtype]


@subject(
    op="batch_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    formula="torch_cpu",
    # On the CPU the statistics of half inputs are stored in half, and read back by the forward pass too.
    saved_dtype="input",
    domain=Domain(min_rows=1, min_columns=2),  # one value a channel is refused in training
    guarantees={"layouts", "large_offsets"},
    mutates=("running_mean", "running_var"),
    known_defects=(
        *(
            KnownDefect(
                id="no-channels",
                check=check,
                reason="An input without channels ends in an IndexError.",
                where=_no_channels,
                backends=("eager",),
            )
            for check in ("forward_error", "gradient", "memory", "special_values")
        ),
        KnownDefect(
            id="strided-weight",
            check="layouts",
            reason="The CPU backward of (N, C) and channels-last inputs takes all vectors for contiguous.",
            where=_strided_vector,
            backends=("eager",),
        ),
        KnownDefect(
            id="scale-overflows",
            check="finite",
            reason="x * scale + shift overflows where (x - mean) * scale would not.",
            where=_scale_overflows,
            backends=("eager",),
        ),
    ),
)
def batch_norm_torch(
    input, running_mean=None, running_var=None, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5
):
    return torch.nn.functional.batch_norm(
        input, running_mean, running_var, weight, bias, training, momentum, eps
    )

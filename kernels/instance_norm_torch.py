"""PyTorch's own instance norm, with the statistics of the input: a control, with batch norm's defects."""

import torch

from verifier import Domain, KnownDefect, subject

_LARGEST = {"float32": 3e38, "float64": 1e308}


def _nothing(case):
    return case.rows == 0


def _scale_overflows(case):
    """The output is x * scale + shift, with scale = rstd * weight."""
    return max(case.largest, 1.0) / case.eps**0.5 * 4 > _LARGEST[case.dtype]


@subject(
    op="instance_norm",
    language="torch",
    variance="two_pass",
    accumulates="float32",
    dtypes=("float32", "float64"),
    formula="torch_cpu",
    saved_dtype="input",
    domain=Domain(min_columns=2),  # one position a channel is refused
    guarantees={"layouts", "large_offsets"},
    known_defects=(
        *(
            KnownDefect(
                id="no-channels",
                check=check,
                reason="An input without samples or channels ends in an IndexError.",
                where=_nothing,
                backends=("eager",),
            )
            for check in ("forward_error", "finite", "gradient", "memory", "special_values")
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
def instance_norm_torch(input, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.instance_norm(input, None, None, weight, bias, True, 0.1, eps)

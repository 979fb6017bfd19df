"""Kernels that are examined, below the beginnings of `kernel_file`, and one examination of a subject."""

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination

KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong_in_some_short_rows(input, weight=None, bias=None, eps=1e-5):
    wrong = 3 < input.shape[-1] < 8
    return right(input, weight, bias, eps) * (1.5 if wrong else 1)

@subject(**DECLARED)
def wrong(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.001

@subject(**DECLARED)
def one_nan(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    if out.numel() > 3:
        out.reshape(-1)[2] = float("nan")
    return out

@subject(**{**DECLARED, "variance": None})
def claims_nothing(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 2

@subject(**DECLARED)
def wrong_in_long_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.01 if input.shape[-1] > 100 else 1)

@subject(**DECLARED)
def wrong_for_large_numbers(input, weight=None, bias=None, eps=1e-5):
    large = input.abs() > 100
    return right(input, weight, bias, eps) * torch.where(large, 1.5, 1.0).to(input.dtype)

@subject(**DECLARED)
def refuses_long_rows(input, weight=None, bias=None, eps=1e-5):
    if input.shape[-1] > 100:
        raise ValueError("more than 100 columns are not supported")
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def flattens_what_is_not_contiguous(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    return out if input.is_contiguous() else out.reshape(-1)

@subject(**DECLARED)
def without_weight_and_bias(input, eps):
    return right(input, None, None, eps)

@subject(**DECLARED)
def without_eps(input, weight=None, bias=None):
    return right(input, weight, bias, 1e-5)
"""


def examined(subject, runner, check="forward_error", cases=12, **options):
    """Return the line of a subject and a check, in float32 unless another dtype is named."""
    given = {"dtype": "float32", "budget": Budget(cases=cases), **options}
    return Examination(subject=subject, check_name=check, runner=runner, **given).run()

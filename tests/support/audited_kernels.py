"""Kernels that audits of every verdict are made of, below the beginnings of `kernel_file`."""

KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.01

@subject(**{**DECLARED, "variance": None})
def claims_nothing(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**{**DECLARED, "op": "layer_norms"})
def of_no_op(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""

QUICK = ("--workers", "1", "--check", "forward_error")

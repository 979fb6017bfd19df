"""Norms of Liger-Kernel, unmodified, declared as its documentation says what they compute."""

from mpmath import fsum, sqrt

from verifier import Domain, subject

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"min_rows": 1, "min_columns": 1, "max_columns": 65536}
RMS = {"op": "rms_norm", "language": "triton", "variance": "rms", "dtypes": DTYPES}


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    dtypes=DTYPES,
    domain=Domain(max_abs=1e15, max_kappa=1e3, **ROWS),
)
def layer_norm(input, weight, bias, eps=1e-6):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(input, weight, bias, eps)


def _rms_norm(input, weight, eps, mode):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(input, weight, eps, 0.0, mode, False)


@subject(**RMS, formula="cast_before_weight", domain=Domain(max_abs=1e15, **ROWS))
def rms_norm_llama(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "llama")


@subject(**RMS, domain=Domain(max_abs=1e15, **ROWS))
def rms_norm_gemma(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "gemma")


@subject(**RMS, accumulates="input")
def rms_norm_none(input, weight):
    return _rms_norm(input, weight, 1e-5, "none")


@subject(op="group_norm", language="triton", variance="textbook", accumulates="input", dtypes=DTYPES)
def group_norm(input, num_groups, weight, bias, eps=1e-5):
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(input, weight, bias, input.shape[1], num_groups, eps)


@subject(op="softmax", language="triton", variance="softmax", accumulates="input", dtypes=DTYPES)
def softmax(input):
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(input)


def _norm(numbers, eps):
    root = sqrt(fsum([x * x for x in numbers]) / len(numbers) + eps)
    return [x / root for x in numbers]


def _poly_norm(input, weight, bias, eps):
    powers = [_norm([x**k for x in input], eps) for k in (3, 2, 1)]
    return [weight[0] * p + weight[1] * q + weight[2] * r + bias[0] for p, q, r in zip(*powers, strict=True)]


@subject(
    op="unknown",
    specification=_poly_norm,
    language="triton",
    dtypes=DTYPES,
    domain=Domain(min_rows=1, min_columns=3, max_rank=2, layouts=("contiguous",), optional=False),
)
def poly_norm(input, weight, bias, eps=1e-6):
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction

    return LigerPolyNormFunction.apply(input, weight[:3], bias[0], eps, False)

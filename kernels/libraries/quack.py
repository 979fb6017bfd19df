"""The norms of QuACK as quack-kernels has them installed, unmodified: on a device alone.

They are written in CuTe-DSL, which compiles them as they run, launched by host code that it compiles as well:
no PTX of a launch passes where the machine could take it. So they are audited where torch sees a device, by
the checks that need no compiled code. What is claimed is what their sources say.

Its softmax sums in one sweep with powers of two, which no form describes.
"""

from verifier import Domain, Library, subject

LIBRARY = Library(distribution="quack-kernels", package="quack", needs=("nvidia-cutlass-dsl",))

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"min_rows": 1, "min_columns": 1, "layouts": ("contiguous", "transposed", "sliced")}
SQUARES = Domain(max_abs=1e15, **ROWS)
"""Beyond 1e15 the sum of squares may overflow."""
CENTRED = Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=("float32",), max_rank=2, **ROWS)
RMS_NORM = {"language": "binary", "dtypes": DTYPES, "variance": "rms", "domain": SQUARES}


@subject(op="rms_norm", **RMS_NORM)
def quack_rms_norm(input, weight=None, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, eps=eps)


@subject(op="rms_norm_one_plus_weight", **RMS_NORM)
def quack_rms_norm_one_plus_weight(input, weight, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, eps=eps, weight_offset=1.0)


@subject(op="add_rms_norm", formula="kept_sum", returns=("output", "new_residual"), **RMS_NORM)
def quack_add_rms_norm(input, residual, weight=None, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, residual=residual, eps=eps, prenorm=True)


@subject(
    op="layer_norm",
    language="binary",
    dtypes=DTYPES,
    variance="two_pass",
    domain=CENTRED,
    differentiable=False,
)
def quack_layer_norm(input, weight, bias=None, eps=1e-6):
    from quack.rmsnorm import layernorm_fwd

    return layernorm_fwd(input, weight, bias, eps=eps)

"""The norms of QuACK as quack-kernels has them installed, unmodified: on a device alone.

They are written in CuTe-DSL, which compiles them as they run, launched by host code that it compiles as well:
no PTX of a launch passes where the machine could take it. So they are audited where torch sees a device, by
the checks that need no compiled code. What is claimed is what their sources say.

Its softmax is declared for rows that one warp holds: in longer ones each warp takes powers against its own
maximum and scales them afterwards, which no form describes.
"""

from verifier import Domain, KnownDefect, Library, subject

LIBRARY = Library(distribution="quack-kernels", package="quack", needs=("nvidia-cutlass-dsl",))

DTYPES = ("float32", "float16", "bfloat16")
VECTOR = {"float32": 4, "float16": 8, "bfloat16": 8}
"""Elements of 16 bytes."""
COPIED = ("contiguous", "transposed", "leading_reversed", "leading_sliced")
"""Inputs are copied first where their columns lie apart; rows and parameters must begin where vectors may."""
SQUARES = Domain(max_abs=1e15, min_rows=1, min_columns=1, layouts=COPIED)
"""Beyond 1e15 the sum of squares may overflow."""
CENTRED = Domain(
    max_abs=1e15, max_kappa=1e3, min_rows=2, min_columns=1, max_rank=2, layouts=("contiguous",),
    parameter_dtypes=("float32",),
)  # fmt: skip
"""Matrices alone, so that one row is not promised; none is copied."""
ODD = KnownDefect(
    id="odd-columns-in-half",
    check="forward_error",
    reason="Of an odd number of columns in half an element would be copied alone, 16 bits, which the "
    "asynchronous copy does not know: an internal error of the compiler, and no word of the columns.",
    where=lambda case: case.columns % 2 == 1,
    also=("*",),
    dtypes=("float16", "bfloat16"),
    versions="quack-kernels<=0.6.5",
)
ANY = {"language": "binary", "dtypes": DTYPES, "known_defects": (ODD,)}
RMS_NORM = {"variance": "rms", "domain": SQUARES, **ANY}


@subject(op="rms_norm", **RMS_NORM)
def quack_rms_norm(input, weight=None, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, eps=eps)


@subject(op="rms_norm_one_plus_weight", **RMS_NORM)
def quack_rms_norm_one_plus_weight(input, weight, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, eps=eps, weight_offset=1.0)


RESIDUAL_ALONE = KnownDefect(
    id="residual-alone",
    check="partial_gradients",
    reason="The forward keeps rstd where input, weight or bias require a gradient; where the residual alone "
    "does, the backward is given none, and raises a TypeError.",
    versions="quack-kernels<=0.6.5",
)


@subject(
    op="add_rms_norm",
    formula="kept_sum",
    returns=("output", "new_residual"),
    **{**RMS_NORM, "known_defects": (ODD, RESIDUAL_ALONE)},
)
def quack_add_rms_norm(input, residual, weight=None, eps=1e-6):
    from quack.rmsnorm import rmsnorm

    return rmsnorm(input, weight, residual=residual, eps=eps, prenorm=True)


@subject(
    op="layer_norm",
    variance="two_pass",
    domain=CENTRED,
    differentiable=False,
    **ANY,
)
def quack_layer_norm(input, weight, bias=None, eps=1e-6):
    from quack.rmsnorm import layernorm_fwd

    return layernorm_fwd(input, weight, bias, eps=eps)


POWERS_OF_ERRORS = KnownDefect(
    id="powers-of-rounding-errors",
    check="finite",
    reason="exp2(x * log2(e) - max * log2(e)) is no longer 1 where x is the largest element: one product is "
    "rounded and the other fused. Beyond 1.4e9 its rounding error reaches 128, the power overflows, and the "
    "output is NaN.",
    where=lambda case: case.largest >= 2**30,
    dtypes=("float32", "bfloat16"),
    versions="quack-kernels<=0.6.5",
)

PART_OF_A_VECTOR = KnownDefect(
    id="part-of-a-vector",
    check="forward_error",
    reason="Rows are read in vectors of 16 bytes, and no shorter ones: where the last would be part of one, "
    "an assertion of the host code fails.",
    where=lambda case: case.columns % VECTOR[case.dtype] != 0,
    also=("*",),
    versions="quack-kernels<=0.6.5",
)


@subject(
    op="softmax",
    variance="softmax",
    formula="folded",
    language="binary",
    dtypes=DTYPES,
    domain=Domain(min_rows=1, min_columns=1, max_columns=3072, max_rank=2, layouts=("contiguous",)),
    known_defects=(POWERS_OF_ERRORS, PART_OF_A_VECTOR),
)
def quack_softmax(input):
    from quack.softmax import softmax

    return softmax(input)

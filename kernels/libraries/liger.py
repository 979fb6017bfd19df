"""The norms of Liger-Kernel as it is installed: what its documentation and sources say they compute.

The functions that `liger_kernel.transformers.functional` hands on are called with PyTorch's names; nothing of
the library is changed. Rows are those of a contiguous copy that it makes itself; of at most 65536 columns.
By default (`in_place=True`) backward passes of RMS norms overwrite the gradient that comes in; they are
called without, as the documentation advises where others need that gradient.
"""

from dataclasses import replace

from verifier import Domain, KnownDefect, Library, Trees, any_order, subject, tile, tree

LIBRARY = Library(distribution="liger-kernel", package="liger_kernel", needs=("triton",))

DTYPES = ("float32", "float16", "bfloat16")
LARGEST_HALF = 65504.0
ROWS = {"min_rows": 1, "min_columns": 1, "max_columns": 65536}
SQUARES = Domain(max_abs=1e15, **ROWS)
"""Beyond 1e15 the sum of squares may overflow."""
HELD = {"parameter_dtypes": ("input", "float32")}
"""Of norms whose kernels convert weight and bias, or multiply what is half already by them."""


def _row_depth(columns):
    """Additions that an element meets at most: the whole row is one tile, see `calculate_settings`."""
    block = 1 << max(columns - 1, 0).bit_length()
    warps = next(n for least, n in ((32768, 32), (8192, 16), (2048, 8), (0, 4)) if block >= least)
    return tile(block=block, threads=32 * warps).depth(columns)


ROW = tree(depth=_row_depth)
TREES = Trees(statistics=ROW, row_gradients=ROW, columns=any_order())


# -- layer norm ----------------------------------------------------------------------------------

SUMS_IN_HALF = LIBRARY.within("<0.6.1")
"""Such versions sum in the input's dtype, and keep mean and rstd in it."""


def _is_padded(case):
    """Whether the row's tile has lanes beyond the row."""
    return case.columns & (case.columns - 1) != 0


@subject(
    op="layer_norm",
    language="triton",
    variance="two_pass",
    accumulates="input" if SUMS_IN_HALF else "float32",
    dtypes=DTYPES,
    trees=TREES,
    domain=None if SUMS_IN_HALF else Domain(max_abs=1e15, max_kappa=1e3, **ROWS, **HELD),
    known_defects=(
        KnownDefect(
            id="lanes-beyond-the-row",
            check="forward_error",
            reason="Lanes beyond the row count in the variance as (0 - mean)**2 where the number of columns "
            "is no power of two (Liger-Kernel's pull request 582 mends it).",
            where=_is_padded,
            also=("*",),
            versions="liger-kernel<0.5.4",
        ),
    ),
)
def liger_layer_norm(input, weight, bias, eps=1e-6):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(input, weight, bias, eps)


# -- RMS norm ------------------------------------------------------------------------------------


def _in_blocks_of_rows(case):
    """Whether one of the blocks of 16 rows that many short rows are taken in has fewer."""
    return case.rows >= 4096 * 8 and case.columns <= 256 and case.rows % 16 != 0


UNDEFINED_ROWS = KnownDefect(
    id="undefined-rows",
    check="memory",
    reason="Backward of 32768 rows or more, of at most 256 columns, loads rstd without other=, and sums "
    "products of zeros with the lanes of rows that are not there: one that holds infinity or NaN makes "
    "grad_weight NaN.",
    where=_in_blocks_of_rows,
)
RMS = {"op": "rms_norm", "language": "triton", "variance": "rms", "dtypes": DTYPES, "trees": TREES}
IN_BLOCKS = {**RMS, "domain": replace(SQUARES, **HELD), "known_defects": (UNDEFINED_ROWS,)}


def _rms_norm(input, weight, eps, mode, offset=0.0):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(input, weight, eps, offset, mode, False)


@subject(**IN_BLOCKS, formula="cast_before_weight_input_sums")
def liger_rms_norm_llama(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "llama")


@subject(**IN_BLOCKS, formula="input_sums")
def liger_rms_norm_gemma(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "gemma")


def _eps_is_lost(case):
    """Whether eps is nothing in float16."""
    return case.eps <= 2.0**-25


def _square_of_rstd_overflows(case):
    """Whether rstd**2 / N of a row of zeros, 1 / (N * eps), may exceed the largest number of float16."""
    return case.columns * case.eps < 2e-5


@subject(
    **RMS,
    accumulates="input",
    domain=Domain(**ROWS),
    known_defects=(
        UNDEFINED_ROWS,
        KnownDefect(
            id="eps-lost",
            check="finite",
            reason="eps is rounded to float16: below 2**-25 it is 0, and a row of zeros comes out as NaN.",
            where=_eps_is_lost,
            also=("*",),
            dtypes=("float16",),
        ),
        KnownDefect(
            id="square-of-rstd-overflows",
            check="gradient",
            reason="Backward computes rstd**2 / N in float16: for a row of zeros, with N * eps below 1.5e-5, "
            "it is infinite and grad_input is NaN.",
            where=_square_of_rstd_overflows,
            also=("*",),
            dtypes=("float16",),
        ),
    ),
)
def liger_rms_norm_none(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "none")


@subject(**{**IN_BLOCKS, "op": "rms_norm_one_plus_weight"}, formula="input_sums")
def liger_rms_norm_gemma_offset(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, "gemma", 1.0)


# -- RMS norm with a residual --------------------------------------------------------------------

ADDED = {
    **RMS,
    "op": "add_rms_norm",
    "returns": ("output", "new_residual"),
    "domain": replace(SQUARES, **HELD),
}


def _fused_add(input, residual, weight, eps, mode):
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    return LigerFusedAddRMSNormFunction.apply(input, residual, weight, eps, 0.0, mode, False)


@subject(**ADDED, formula="cast_before_weight_input_sums")
def liger_fused_add_rms_norm_llama(input, residual, weight, eps=1e-6):
    return _fused_add(input, residual, weight, eps, "llama")


@subject(**ADDED, formula="input_sums")
def liger_fused_add_rms_norm_gemma(input, residual, weight, eps=1e-6):
    return _fused_add(input, residual, weight, eps, "gemma")


# -- modulated RMS norm --------------------------------------------------------------------------


def _modulated(input, weight, gate, residual, eps):
    norm = input * (input.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
    return norm * (1 + gate) + residual


@subject(op="unknown", specification=_modulated, language="triton", dtypes=DTYPES, domain=SQUARES)
def liger_modulated_rms_norm(input, weight, gate, residual, eps=1e-6):
    from liger_kernel.ops.modulated_rms_norm import LigerModulatedRMSNormFunction

    return LigerModulatedRMSNormFunction.apply(input, weight, gate, residual, eps, 0.0, "llama", False)


# -- group norm, softmax -------------------------------------------------------------------------


def _no_columns(case):
    return case.columns == 0


def _variance_may_be_negative(case):
    """Whether rounding of the two means, N + 4 operations, may exceed the variance: kappa**2 of it."""
    half_ulp = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[case.dtype]
    return case.kappa**2 * 2 * (case.columns + 4) * half_ulp > 1


def _sums_overflow(case):
    """Whether the sum of a row overflows in float16, or that of its squares with the square of its mean."""
    if case.dtype == "float16":
        return case.largest * case.columns > LARGEST_HALF
    return case.largest**2 * case.columns > 3e38


@subject(
    op="group_norm",
    language="triton",
    variance="textbook",
    accumulates="input",
    dtypes=DTYPES,
    domain=Domain(min_rows=1, max_rows=65535, min_columns=1),  # a grid has no more groups
    known_defects=(
        KnownDefect(
            id="sums-through-bfloat16",
            check="gradient",
            reason="Parts of grad_weight and grad_bias in float16 are rounded to bfloat16 before they are "
            "added.",
            also=("layouts", "special_values", "context", "running_bound", "large_offsets"),
            dtypes=("float16",),
        ),
        KnownDefect(
            id="sums-overflow",
            check="finite",
            reason="Rows and their squares are summed in the input's dtype: where the sum overflows in "
            "float16, or that of the squares in another dtype, the output is NaN.",
            where=_sums_overflow,
        ),
        KnownDefect(
            id="no-columns",
            check="special_values",
            reason="Positions of which there are none break the compilation, with no clear error.",
            where=_no_columns,
            also=("*",),
        ),
        KnownDefect(
            id="negative-variance",
            check="finite",
            reason="The variance is mean(x**2) - mean(x)**2 and may fall below -eps: rows that are nearly "
            "constant come out as NaN.",
            where=_variance_may_be_negative,
        ),
    ),
)
def liger_group_norm(input, num_groups, weight, bias, eps=1e-6):
    from liger_kernel.ops.group_norm import LigerGroupNormFunction

    return LigerGroupNormFunction.apply(input, weight, bias, input.shape[1], num_groups, eps)


@subject(
    op="softmax",
    language="triton",
    variance="softmax",
    accumulates="input",
    dtypes=DTYPES,
    trees=ROW,
    domain=Domain(**ROWS),
)
def liger_softmax(input):
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(input)


# -- dynamic tanh --------------------------------------------------------------------------------


def _is_mixed(case):
    """Whether parameters are held in another dtype than the input."""
    return case.dtype_of("alpha") != case.dtype


@subject(
    op="dynamic_tanh",
    language="triton",
    formula="canonical",
    dtypes=DTYPES,
    domain=Domain(
        max_abs=1e15,
        min_rows=1,
        max_rows=65535,  # they are the second dimension of a grid, which has no more
        min_columns=1,
        required=("weight",),
        parameter_dtypes=("input", "float32"),
    ),
    known_defects=(
        KnownDefect(
            id="sums-through-the-input",
            check="gradient",
            reason="Gradients of alpha and bias are rounded to the input's dtype, float32 parameters beside "
            "a half input included.",
            where=_is_mixed,
            also=("layouts", "special_values", "context", "running_bound", "large_offsets"),
            dtypes=("float16", "bfloat16"),
        ),
    ),
)
def liger_dynamic_tanh(input, alpha, weight, bias=None):
    from liger_kernel.ops.dyt import LigerDyTFunction

    return LigerDyTFunction.apply(input, alpha, weight, bias)


# -- poly norm -----------------------------------------------------------------------------------


def _powers_overflow(case):
    """Whether the sum of squares of third powers may exceed the largest number of the dtype."""
    return case.largest**6 * case.columns > (LARGEST_HALF if case.dtype == "float16" else 3e38)


@subject(
    op="poly_norm",
    language="triton",
    formula="expanded",
    accumulates="input",  # powers and their squares are summed so, what follows in float32
    dtypes=DTYPES,
    trees=TREES,
    domain=Domain(**ROWS),
    known_defects=(
        KnownDefect(
            id="powers-overflow",
            check="finite",
            reason="Third powers are squared and summed in the input's dtype: in float16 they may overflow "
            "with |input| from 7 on, and from 41 on the output is NaN; in other dtypes from 2.6e6 on.",
            where=_powers_overflow,
        ),
    ),
)
def liger_poly_norm(input, weight, bias, eps=1e-6):
    from liger_kernel.ops.poly_norm import LigerPolyNormFunction

    return LigerPolyNormFunction.apply(input, weight, bias.reshape(()), eps, False)

"""The norms of flash-linear-attention as fla-core has them installed, unmodified.

Rows of at most 512 columns go through kernels that take several rows at a time, longer ones through kernels
of one row; all of them are autotuned. A row has at most 64 KiB, in float32 16384 columns.
A residual is added in float32, and the sum normalized before it is rounded; the backward pass reads it as it
is stored.

The softmax subtracts the maximum in the input's dtype; its backward pass takes products and their sum there.

Not declared: norms with a gate in groups of columns and group_norm_linear, since no specification divides a
row into groups; norms that quantize, since none rounds or takes a maximum. What has `_npu` or `triton_ascend`
in its name runs on other devices; `_ref` and `naive` are written in torch operators; norms inside of ttt,
cyfa and linear attention are parts of kernels that do more.
"""

from dataclasses import replace

import torch
from torch.nn.functional import linear, silu

from verifier import Domain, KnownDefect, Library, subject

LIBRARY = Library(distribution="fla-core", package="fla", needs=("einops", "triton"))

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"min_rows": 1, "min_columns": 1, "max_columns": 16384}
CENTRED = Domain(max_abs=1e15, max_kappa=1e3, **ROWS)
SQUARES = Domain(max_abs=1e15, **ROWS)
"""Beyond 1e15 the sum of squares may overflow."""
HELD = {"parameter_dtypes": ("input", "float32")}
"""Weight and bias are converted to float32 where they are loaded."""


def _no_rows(case):
    return case.rows == 0


NO_ROWS = KnownDefect(
    id="no-rows",
    check="gradient",
    reason="The backward pass of an empty batch divides by the number of its programs, 0.",
    where=_no_rows,
    also=("*",),
)


def _is_padded_with_weight(case):
    """Whether a row has fewer columns than lanes, and each a weight."""
    return case.columns & (case.columns - 1) != 0 and case.tensors.get("weight") is not None


UNDEFINED_LANES = KnownDefect(
    id="undefined-lanes",
    check="memory",
    reason="Backward loads weight without other=, and sums products of zeros with lanes that are undefined "
    "where the number of columns is no power of two: one that holds infinity or NaN makes grad_input NaN.",
    where=_is_padded_with_weight,
)
UNDEFINED_LANES_OF_GATE = KnownDefect(
    id="undefined-lanes-of-gate",
    check="memory",
    reason="Forward loads gate without other=, multiplies zeros by its undefined lanes where the number of "
    "columns is no power of two, and sums them to the mean: one that holds infinity or NaN makes a row NaN. "
    "Backward loads weight so, too.",
    where=_is_padded_with_weight,
)
DECLARED = {"language": "triton", "dtypes": DTYPES, "known_defects": (NO_ROWS, UNDEFINED_LANES)}
LAYER_NORM = {"variance": "two_pass", "domain": replace(CENTRED, **HELD), **DECLARED}
RMS_NORM = {"variance": "rms", "domain": replace(SQUARES, **HELD), **DECLARED}


@subject(op="layer_norm", **LAYER_NORM)
def fla_layer_norm(input, weight=None, bias=None, eps=1e-5):
    from fla.modules.norm.layernorm import layer_norm

    return layer_norm(input, weight, bias, eps=eps)


@subject(op="rms_norm", **RMS_NORM)
def fla_rms_norm(input, weight=None, eps=1e-5):
    from fla.modules.norm.layernorm import rms_norm

    return rms_norm(input, weight, None, eps=eps)


ADDED = {"formula": "kept_sum", "returns": ("output", "new_residual")}
STREAM = {"residual_dtypes": ("input", "float32")}
"""The sum is returned in the residual's dtype, which may be float32 (`residual_in_fp32`)."""
LONGEST_OF_SEVERAL = 512
"""Columns of the longest row of which a kernel takes several at a time."""


def _is_long_beside_float32(case):
    """Whether a row goes through the kernel of one row, and the residual has another dtype than the input."""
    return case.columns > LONGEST_OF_SEVERAL and case.dtype_of("residual") != case.dtype


RESIDUAL_THROUGH_INPUT = KnownDefect(
    id="residual-through-input",
    check="gradient",
    reason="In rows of more than 512 columns the gradient of a float32 residual is rounded to the input's "
    "dtype before it is stored.",
    where=_is_long_beside_float32,
    dtypes=("float16", "bfloat16"),
    also=("layouts", "memory", "modes", "partial_gradients", "repeated_calls"),
)
SUM_DECLARED = {"known_defects": (NO_ROWS, UNDEFINED_LANES, RESIDUAL_THROUGH_INPUT), **ADDED}


@subject(op="add_layer_norm", **{**LAYER_NORM, "domain": replace(CENTRED, **HELD, **STREAM), **SUM_DECLARED})
def fla_add_layer_norm(input, residual, weight=None, bias=None, eps=1e-5):
    from fla.modules.norm.layernorm import layer_norm

    return layer_norm(input, weight, bias, residual=residual, eps=eps, prenorm=True)


@subject(op="add_rms_norm", **{**RMS_NORM, "domain": replace(SQUARES, **HELD, **STREAM), **SUM_DECLARED})
def fla_add_rms_norm(input, residual, weight=None, eps=1e-5):
    from fla.modules.norm.layernorm import rms_norm

    return rms_norm(input, weight, None, residual=residual, eps=eps, prenorm=True)


# -- rows of length one, gated norms -------------------------------------------------------------


@subject(op="l2_norm", formula="saved_output", domain=SQUARES, language="triton", dtypes=DTYPES)
def fla_l2_norm(input, eps=1e-6):
    from fla.modules.norm.l2norm import l2norm

    return l2norm(input, eps)


@subject(op="rms_norm_silu_gate", **RMS_NORM)
def fla_rms_norm_gated_silu(input, gate, weight=None, eps=1e-6):
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    return rms_norm_gated(input, gate, weight, None, activation="swish", eps=eps)


@subject(op="rms_norm_sigmoid_gate", **RMS_NORM)
def fla_rms_norm_gated_sigmoid(input, gate, weight=None, eps=1e-6):
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    return rms_norm_gated(input, gate, weight, None, activation="sigmoid", eps=eps)


@subject(op="layer_norm_silu_gate", **LAYER_NORM)
def fla_layer_norm_gated_silu(input, gate, weight=None, bias=None, eps=1e-6):
    from fla.modules.norm.fused_norm_gate import layer_norm_gated

    return layer_norm_gated(input, gate, weight, bias, activation="swish", eps=eps)


@subject(op="layer_norm_sigmoid_gate", **LAYER_NORM)
def fla_layer_norm_gated_sigmoid(input, gate, weight=None, bias=None, eps=1e-6):
    from fla.modules.norm.fused_norm_gate import layer_norm_gated

    return layer_norm_gated(input, gate, weight, bias, activation="sigmoid", eps=eps)


# -- groups of columns ----------------------------------------------------------------------------

OF_CHANNELS = {**LAYER_NORM, "domain": replace(CENTRED, max_rank=2)}
"""Columns are channels: a sample has no other positions."""


@subject(op="group_norm", **OF_CHANNELS)
def fla_group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    from fla.modules.norm.layernorm import group_norm

    assert input.dim() == 2, "more dimensions are more samples, not positions"
    return group_norm(input, weight, bias, eps=eps, num_groups=num_groups)


# -- norms of Mamba 2, whose gate comes before or after -------------------------------------------

WEIGHTED = {"known_defects": (UNDEFINED_LANES,), "language": "triton", "dtypes": DTYPES}
"""Their weight is required; programs are as many without rows."""


@subject(op="layer_norm", variance="two_pass", domain=CENTRED, **WEIGHTED)
def fla_layernorm_fn(input, weight, bias=None, eps=1e-6):
    from fla.modules.norm.layernorm_gated import layernorm_fn

    return layernorm_fn(input, weight, bias, eps=eps)


@subject(op="rms_norm", variance="rms", domain=SQUARES, **WEIGHTED)
def fla_rmsnorm_fn(input, weight, eps=1e-6):
    from fla.modules.norm.layernorm_gated import rmsnorm_fn

    return rmsnorm_fn(input, weight, None, eps=eps)


OF_A_GRID = replace(CENTRED, max_rank=2, max_rows=65535)
"""A grid has no more groups."""


@subject(op="group_norm", variance="two_pass", domain=OF_A_GRID, **WEIGHTED)
def fla_layernorm_fn_groups(input, num_groups, weight, bias=None, eps=1e-6):
    from fla.modules.norm.layernorm_gated import layernorm_fn

    assert input.dim() == 2, "more dimensions are more samples, not positions"
    return layernorm_fn(input, weight, bias, eps=eps, group_size=input.shape[1] // num_groups)


@subject(op="layer_norm_silu_gate", variance="two_pass", domain=CENTRED, **WEIGHTED)
def fla_layernorm_fn_gated(input, gate, weight, bias=None, eps=1e-6):
    from fla.modules.norm.layernorm_gated import layernorm_fn

    return layernorm_fn(input, weight, bias, gate, eps)


@subject(op="rms_norm_silu_gate", variance="rms", domain=SQUARES, **WEIGHTED)
def fla_rmsnorm_fn_gated(input, gate, weight, eps=1e-6):
    from fla.modules.norm.layernorm_gated import rmsnorm_fn

    return rmsnorm_fn(input, weight, None, gate, eps)


@subject(op="silu_gate_rms_norm", formula="canonical", domain=SQUARES, **WEIGHTED)
def fla_rmsnorm_fn_gate_first(input, gate, weight, eps=1e-6):
    from fla.modules.norm.layernorm_gated import rmsnorm_fn

    return rmsnorm_fn(input, weight, None, gate, eps, norm_before_gate=False)


@subject(
    op="silu_gate_layer_norm",
    formula="canonical",
    domain=CENTRED,
    **{**WEIGHTED, "known_defects": (UNDEFINED_LANES_OF_GATE,)},
)
def fla_layernorm_fn_gate_first(input, gate, weight, bias=None, eps=1e-6):
    from fla.modules.norm.layernorm_gated import layernorm_fn

    return layernorm_fn(input, weight, bias, gate, eps, norm_before_gate=False)


# -- softmax, norms of queries and keys -----------------------------------------------------------


ROW_BY_ROW = ("contiguous", "storage_offset", "misaligned")


def _is_strided(case):
    """Whether a tensor is in another layout than the domain's."""
    return not case.layout_names.issubset(ROW_BY_ROW)


STRIDES = KnownDefect(
    id="strides-not-read",
    check="layouts",
    reason="Strides are not read: of a matrix that does not lie row by row, other elements are taken for "
    "those of a row, with no error.",
    where=_is_strided,
    also=("*",),
)
SOFTMAX = {
    "language": "triton",
    "dtypes": DTYPES,
    "domain": Domain(min_rows=1, min_columns=1, max_columns=65536, layouts=ROW_BY_ROW),
}


@subject(
    op="softmax",
    variance="softmax",
    accumulates="input",
    differentiable=False,
    known_defects=(STRIDES,),
    **SOFTMAX,
)
def fla_softmax(input):
    from fla.ops.utils.softmax import softmax_fwd

    return softmax_fwd(input, dtype=input.dtype)


@subject(
    op="softmax_backward",
    formula="distributed",
    accumulates="input",
    returns=("grad_input",),
    known_defects=(STRIDES,),
    **SOFTMAX,
)
def fla_softmax_backward(grad_output, output):
    from fla.ops.utils.softmax import softmax_bwd

    return softmax_bwd(output, grad_output, dtype=output.dtype)


def _is_strided_weight(case):
    layout = case.layouts.get("weight")
    return layout is not None and not {*layout.kinds}.issubset(ROW_BY_ROW)


STRIDE_OF_WEIGHT = KnownDefect(
    id="strides-not-read",
    check="layouts",
    reason="The stride of weight is not read, nor refused: other elements are taken, perhaps beyond its end.",
    where=_is_strided_weight,
    also=("*",),
)
QK_NORM = {
    "op": "rms_norm",
    "variance": "rms",
    "domain": SQUARES,
    "language": "triton",
    "dtypes": DTYPES,
    "known_defects": (STRIDE_OF_WEIGHT,),
}


@subject(returns=("output", "rstd"), differentiable=False, **QK_NORM)
def fla_qk_rmsnorm_of_queries(input, weight, eps=1e-6):
    from fla.ops.cyfa.qk_norm import qk_rmsnorm_fwd

    output, _, rstd, _ = qk_rmsnorm_fwd(input, input, weight, weight, eps, eps, store_rstd=True)
    return output, rstd


@subject(returns=("output", "rstd"), differentiable=False, **QK_NORM)
def fla_qk_rmsnorm_of_keys(input, weight, eps=1e-6):
    from fla.ops.cyfa.qk_norm import qk_rmsnorm_fwd

    _, output, _, rstd = qk_rmsnorm_fwd(
        input, input, weight, weight, eps, eps, store_q=False, store_rstd=True
    )
    return output, rstd


# -- norms before a matrix product, which torch computes --------------------------------------------

OF_PRODUCTS = {**DECLARED, "known_defects": (replace(NO_ROWS, check="device"), UNDEFINED_LANES)}
"""What no op describes is not compared with a theorem's gradient."""


def _centred(input, eps):
    centred = input - input.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps)


def _of_length(input, eps):
    return input / torch.sqrt(input.square().mean(-1, keepdim=True) + eps)


def _scaled(y, weight, bias):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def layer_norm_linear(input, weight, bias, linear_weight, linear_bias, eps):
    return linear(_scaled(_centred(input, eps), weight, bias), linear_weight, linear_bias)


def rms_norm_linear(input, weight, linear_weight, linear_bias, eps):
    return linear(_scaled(_of_length(input, eps), weight, None), linear_weight, linear_bias)


def layer_norm_silu_gate_linear(input, gate, weight, bias, linear_weight, linear_bias, eps):
    return linear(_scaled(_centred(input, eps), weight, bias) * silu(gate), linear_weight, linear_bias)


def rms_norm_silu_gate_linear(input, gate, weight, linear_weight, linear_bias, eps):
    return linear(_scaled(_of_length(input, eps), weight, None) * silu(gate), linear_weight, linear_bias)


@subject(op="unknown", specification=layer_norm_linear, domain=CENTRED, **OF_PRODUCTS)
def fla_layer_norm_linear(input, linear_weight, weight=None, bias=None, linear_bias=None, eps=1e-5):
    from fla.modules.norm.layernorm import layer_norm_linear

    return layer_norm_linear(input, weight, bias, linear_weight, linear_bias, eps=eps)


@subject(op="unknown", specification=rms_norm_linear, domain=SQUARES, **OF_PRODUCTS)
def fla_rms_norm_linear(input, linear_weight, weight=None, linear_bias=None, eps=1e-5):
    from fla.modules.norm.layernorm import rms_norm_linear

    return rms_norm_linear(input, weight, None, linear_weight, linear_bias, eps=eps)


@subject(op="unknown", specification=layer_norm_silu_gate_linear, domain=CENTRED, **OF_PRODUCTS)
def fla_layer_norm_gated_linear(
    input, gate, linear_weight, weight=None, bias=None, linear_bias=None, eps=1e-6
):
    from fla.modules.norm.fused_norm_gate import layer_norm_swish_gate_linear

    return layer_norm_swish_gate_linear(input, gate, weight, bias, linear_weight, linear_bias, eps=eps)


@subject(op="unknown", specification=rms_norm_silu_gate_linear, domain=SQUARES, **OF_PRODUCTS)
def fla_rms_norm_gated_linear(input, gate, linear_weight, weight=None, linear_bias=None, eps=1e-6):
    from fla.modules.norm.fused_norm_gate import rms_norm_swish_gate_linear

    return rms_norm_swish_gate_linear(input, gate, weight, None, linear_weight, linear_bias, eps=eps)

"""The Triton norms of flash-attention as flash-attn has them installed, unmodified.

The package itself asks for its CUDA extension; the module of norms needs none, so the package's `__init__` is
left out. Without a CUDA compiler it is installed so:

    FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE FLASH_ATTENTION_FORCE_BUILD=TRUE \\
        pip install --no-deps --no-build-isolation flash-attn

Each row is held in registers: 64 KiB of it at most, in float32 16384 columns. Kernels are autotuned over the
number of warps. A residual is added in float32, and the sum normalized before it is rounded; the backward
pass reads it as it is stored. A weight has to be there.
"""

from dataclasses import replace

import torch
from torch.nn.functional import linear

from verifier import Domain, KnownDefect, Library, subject

LIBRARY = Library(
    distribution="flash-attn", package="flash_attn", needs=("triton",), without_init=("flash_attn",)
)

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"min_rows": 1, "min_columns": 1, "max_columns": 16384}
CENTRED = Domain(max_abs=1e15, max_kappa=1e3, **ROWS)
SQUARES = Domain(max_abs=1e15, **ROWS)
"""Beyond 1e15 the sum of squares may overflow."""


def _is_padded(case):
    """Whether a row has fewer columns than lanes."""
    return case.columns & (case.columns - 1) != 0


UNDEFINED_LANES = KnownDefect(
    id="undefined-lanes",
    check="memory",
    reason="Backward loads weight without other=, and sums products of zeros with lanes that are undefined "
    "where the number of columns is no power of two: one that holds infinity or NaN makes grad_input NaN.",
    where=_is_padded,
)


def _beyond_32_bits(case):
    """Whether a row of what is read by row number begins 2^31 elements behind the first one, or later."""
    for name in ("input", "residual", "grad_output", "grad_new_residual"):
        tensor = case.tensors.get(name)
        if tensor is not None:
            strides = case.layouts[name].strides(tensor.shape) if name in case.layouts else tensor.stride()
            if case.rows * max(case.columns, *strides) >= 2**31:
                return True
    return False


IN_32_BITS = (
    "row * stride is a 32-bit product, which overflows at 2^31 elements: rows beyond are read elsewhere."
)
OFFSETS = KnownDefect(
    id="offsets-in-32-bits", check="large_offsets", reason=IN_32_BITS, where=_beyond_32_bits
)
HUGE = KnownDefect(id="rows-in-32-bits", check="huge_extents", reason=IN_32_BITS, backends=("machine",))
DECLARED = {"language": "triton", "dtypes": DTYPES, "known_defects": (UNDEFINED_LANES, OFFSETS, HUGE)}
LAYER_NORM = {"variance": "two_pass", "domain": CENTRED, **DECLARED}
RMS_NORM = {"variance": "rms", "domain": SQUARES, **DECLARED}


@subject(op="layer_norm", **LAYER_NORM)
def flash_attention_layer_norm(input, weight, bias=None, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    return layer_norm_fn(input, weight, bias, eps=eps)


@subject(op="rms_norm", **RMS_NORM)
def flash_attention_rms_norm(input, weight, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return rms_norm_fn(input, weight, None, eps=eps)


# -- norms of input + residual -------------------------------------------------------------------


ADDED = {"formula": "kept_sum", "returns": ("output", "new_residual")}
RESIDUALS = {"residual_dtypes": ("input", "float32")}
"""What is returned as the new residual has the residual's dtype."""


@subject(op="add_layer_norm", **{**LAYER_NORM, "domain": replace(CENTRED, **RESIDUALS)}, **ADDED)
def flash_attention_add_layer_norm(input, residual, weight, bias=None, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    return layer_norm_fn(input, weight, bias, residual=residual, eps=eps, prenorm=True)


@subject(op="add_rms_norm", **{**RMS_NORM, "domain": replace(SQUARES, **RESIDUALS)}, **ADDED)
def flash_attention_add_rms_norm(input, residual, weight, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return rms_norm_fn(input, weight, None, residual=residual, eps=eps, prenorm=True)


# -- one plus the weight, as Gemma has it --------------------------------------------------------


@subject(op="layer_norm_one_plus_weight", **LAYER_NORM)
def flash_attention_layer_norm_zero_centred(input, weight, bias=None, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import layer_norm_fn

    return layer_norm_fn(input, weight, bias, eps=eps, zero_centered_weight=True)


@subject(op="rms_norm_one_plus_weight", **RMS_NORM)
def flash_attention_rms_norm_zero_centred(input, weight, eps=1e-5):
    from flash_attn.ops.triton.layer_norm import rms_norm_fn

    return rms_norm_fn(input, weight, None, eps=eps, zero_centered_weight=True)


# -- norms before a matrix product, which torch computes --------------------------------------------

OF_PRODUCTS = {**DECLARED, "known_defects": (UNDEFINED_LANES,)}
"""Offsets of what no op describes are tried in no extent that reaches 2^31 elements."""


def layer_norm_linear(input, weight, bias, linear_weight, linear_bias, eps):
    centred = input - input.mean(-1, keepdim=True)
    y = centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + eps) * weight
    return linear(y if bias is None else y + bias, linear_weight, linear_bias)


def rms_norm_linear(input, weight, linear_weight, linear_bias, eps):
    y = input / torch.sqrt(input.square().mean(-1, keepdim=True) + eps) * weight
    return linear(y, linear_weight, linear_bias)


@subject(op="unknown", specification=layer_norm_linear, domain=CENTRED, **OF_PRODUCTS)
def flash_attention_layer_norm_linear(input, weight, linear_weight, bias=None, linear_bias=None, eps=1e-6):
    from flash_attn.ops.triton.layer_norm import layer_norm_linear_fn

    return layer_norm_linear_fn(input, weight, bias, linear_weight, linear_bias, eps=eps)


@subject(op="unknown", specification=rms_norm_linear, domain=SQUARES, **OF_PRODUCTS)
def flash_attention_rms_norm_linear(input, weight, linear_weight, linear_bias=None, eps=1e-6):
    from flash_attn.ops.triton.layer_norm import layer_norm_linear_fn

    return layer_norm_linear_fn(input, weight, None, linear_weight, linear_bias, eps=eps, is_rms_norm=True)

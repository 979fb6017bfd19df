"""The Triton norms of unsloth as it is installed, unmodified.

The package itself asks for a device and for what training needs; its kernels need less of it, see
docs/how-to/library.md. Its modules of kernels are imported alone, and told that there may be no device.

Rows are held in one block, of at most 65536 columns; RMS norms of 33 to 128 columns go through kernels of
several rows, once the package has seen on the device that they give the same bits as those of one row: here
in half precision alone. In float32, Triton 3.9 compiles the latter to stores of several lanes to one place,
whose numbers differ in the last bit; the machine keeps another one than a GPU does.
Gradients of weight and bias are left out where they are frozen, by kernels of their own.
RMS norms round x * rstd to the weight's dtype before they multiply; Gemma's and layer norms round nothing
before the results.
"""

from pathlib import Path
from tempfile import gettempdir

from verifier import Domain, KnownDefect, Library, subject

LIBRARY = Library(
    distribution="unsloth",
    package="unsloth",
    needs=("triton", "transformers", "unsloth_zoo"),
    without_init=("unsloth", "unsloth.kernels", "unsloth_zoo", "unsloth_zoo.temporary_patches"),
    handed_on=("unsloth_zoo.device_type.DEVICE_TYPE",),
    environment=(
        "UNSLOTH_ALLOW_CPU=1",
        f"UNSLOTH_COMPILE_LOCATION={Path(gettempdir()) / 'unsloth_compiled_cache'}",
    ),
    installed_by="pip install --no-deps unsloth unsloth-zoo, then pip install 'transformers<=5.17.0'",
)

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"min_rows": 1, "min_columns": 1, "max_columns": 65536, "parameter_dtypes": ("input", "float32")}
CENTRED = Domain(max_abs=1e15, max_kappa=1e3, **ROWS)
SQUARES = Domain(max_abs=1e15, **ROWS)
"""Beyond 1e15 the sum of squares may overflow."""
OF_ROWS = Domain(max_abs=1e15, layouts=("contiguous", "padded_rows", "storage_offset", "misaligned"), **ROWS)
"""What the package's own question says yes to; it leaves the rest to torch."""

DECLARED = {"language": "triton", "dtypes": DTYPES}
RMS_NORM = {"variance": "rms", "domain": SQUARES, **DECLARED}
LAYER_NORM = {"op": "layer_norm", "variance": "two_pass", "domain": CENTRED, **DECLARED}
LLAMA = {"op": "rms_norm", "formula": "cast_before_weight", **RMS_NORM}
GEMMA = {"op": "rms_norm_one_plus_weight", **RMS_NORM}


def _rms_norm(input, weight, eps, gemma):
    from unsloth.kernels.rms_layernorm import Fast_RMS_Layernorm

    return Fast_RMS_Layernorm.apply(input, weight, eps, gemma)


def _layer_norm(input, weight, bias, eps):
    from unsloth.kernels.layernorm import Fast_Layernorm

    return Fast_Layernorm.apply(input, weight, bias, eps)


@subject(**LLAMA)
def unsloth_rms_norm(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, False)


@subject(**GEMMA)
def unsloth_rms_norm_gemma(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, True)


@subject(**LAYER_NORM)
def unsloth_layer_norm(input, weight, bias=None, eps=1e-5):
    return _layer_norm(input, weight, bias, eps)


# -- weights that are frozen ---------------------------------------------------------------------


@subject(gradients=("input",), **LLAMA)
def unsloth_rms_norm_frozen(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, False)


@subject(gradients=("input",), **GEMMA)
def unsloth_rms_norm_gemma_frozen(input, weight, eps=1e-6):
    return _rms_norm(input, weight, eps, True)


@subject(gradients=("input",), **LAYER_NORM)
def unsloth_layer_norm_frozen(input, weight, bias=None, eps=1e-5):
    return _layer_norm(input, weight, bias, eps)


# -- a residual in inference ---------------------------------------------------------------------


def _copied(tensor):
    """Copy a tensor with its strides, since the kernel writes over it; memory between rows is not touched."""
    span = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if not tensor.numel() or 0 in tensor.stride():
        return tensor.clone()
    return tensor.new_zeros(span + 1).as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def _of_two_warps(case):
    """Whether two warps hold a row, and the two others of the four its copy: sums of both meet in memory."""
    return case.rows > 0 and 33 <= case.columns <= 64


@subject(
    op="add_rms_norm",
    formula="cast_before_weight_forward",
    known_defects=(
        KnownDefect(
            id="late-copies",
            check="synchronization",
            reason="Rows of 33 to 64 columns are held by two of four warps, and as copies by the others. The "
            "sum is stored over the residual with no barrier behind the loads: a late copy reads the sum, "
            "adds input again, and stores its part of the sum of squares where the right warp's is.",
            where=_of_two_warps,
        ),
    ),
    returns=("output", "new_residual"),
    differentiable=False,
    **{**RMS_NORM, "domain": OF_ROWS},
)
def unsloth_add_rms_norm_inference(input, residual, weight, eps=1e-6):
    from unsloth.kernels.fused_add_rms_layernorm import (
        fast_add_rms_layernorm_inference,
        fast_add_rms_layernorm_inference_ok,
    )

    x, kept = _copied(input), _copied(residual)
    if not fast_add_rms_layernorm_inference_ok(x, kept, weight):
        raise ValueError("unsloth leaves rows that are no view of a matrix, or strided weights, to torch")
    return fast_add_rms_layernorm_inference(x, kept, weight, eps), kept

"""The fused layer and RMS norms of NVIDIA's apex as it is installed, unmodified: on a device alone.

They are functions of an extension in CUDA C++, which apex builds where it is installed from its sources; the
package `apex` of the index is another one. So they are audited where torch sees a device, by the checks that
need no compiled code. What is claimed is what their sources say: Welford's steps in each lane, joined as Chan
does, and a norm that is rounded to the input's dtype before it is multiplied. Of layer norms no form
describes that, so that those with a weight are declared in float32, where it changes nothing.
"""

from verifier import Domain, Library, subject

LIBRARY = Library(
    distribution="apex",
    package="apex",
    installed_by="APEX_CUDA_EXT=1 pip install --no-build-isolation . in a clone of NVIDIA's apex",
)

DTYPES = ("float32", "float16", "bfloat16")
ROWS = {"max_abs": 1e15, "min_rows": 1, "min_columns": 1}
"""Beyond 1e15 the sum of squares may overflow."""
ALONE = {"parameter_dtypes": ("input",)}
DECLARED = {"language": "binary", "dtypes": DTYPES}
LAYER_NORM = {
    "op": "layer_norm",
    "variance": "welford",
    "variance_options": {"merge": "weighted"},
    **DECLARED,
}
RMS_NORM = {"op": "rms_norm", "variance": "rms", **DECLARED}


@subject(domain=Domain(max_kappa=1e3, **ROWS, **ALONE), **{**LAYER_NORM, "dtypes": ("float32",)})
def apex_layer_norm(input, normalized_shape, weight, bias, eps=1e-6):
    from apex.normalization.fused_layer_norm import fused_layer_norm_affine

    return fused_layer_norm_affine(input, weight, bias, normalized_shape, eps)


@subject(domain=Domain(max_kappa=1e3, **ROWS), **LAYER_NORM)
def apex_layer_norm_plain(input, normalized_shape, eps=1e-6):
    from apex.normalization.fused_layer_norm import fused_layer_norm

    return fused_layer_norm(input, normalized_shape, eps)


@subject(formula="cast_before_weight_forward", domain=Domain(**ROWS, **ALONE), **RMS_NORM)
def apex_rms_norm(input, normalized_shape, weight, eps=1e-6):
    from apex.normalization.fused_layer_norm import fused_rms_norm_affine

    return fused_rms_norm_affine(input, weight, normalized_shape, eps)


@subject(domain=Domain(**ROWS), **RMS_NORM)
def apex_rms_norm_plain(input, normalized_shape, eps=1e-6):
    from apex.normalization.fused_layer_norm import fused_rms_norm

    return fused_rms_norm(input, normalized_shape, eps)

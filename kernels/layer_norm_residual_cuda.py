"""Layer normalization of input + residual with a conversion of the result, fused into one CUDA kernel.

This is what the load and store functors of the row kernels are for: the Welford kernel of
layer_norm_welford_cuda.py with a load that adds a second tensor in the compute type, and a store in another
dtype. Only the forward is fused; the sum itself is never stored.
"""

from pathlib import Path

from verifier import Domain, Source, load, source, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="as layer_norm_welford_cuda, with the load and the store that the articles describe",
)

tiers = load(Path(__file__).with_name("row_norm_skeleton_cuda.py")).module
layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
split = load(Path(__file__).with_name("two_parts_skeleton_torch.py")).module.split
WELFORD = source(Path(__file__).with_name("layer_norm_welford_cuda.cu"))


def add_layer_norm(input, residual, normalized_shape, weight=None, bias=None, eps=1e-5, output_dtype=None):
    """Normalize input + residual, which is neither rounded nor stored; returns (output, mean, rstd)."""
    columns = layer_norm.normalized_columns(input, normalized_shape, weight, bias, residual)
    return layer_norm.normalize(
        WELFORD, "Welford", input, columns, weight, bias, eps, residual, output_dtype
    )  # fmt: skip


@subject(
    op="layer_norm",
    language="cuda",
    source=SOURCE,
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=layer_norm.TREES,
    differentiable=False,
    mean_contraction="none",  # as in the kernel without a residual
    divide_by_n="division",
    clamp=True,
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e2, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts"},
)
def layer_norm_residual_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ of a sum of two tensors, converted in the same kernel.

    The input arrives as two parts that add up to it exactly, and the output leaves in the compute dtype: one
    rounding to the input's dtype follows, as it would in the kernel.
    """
    if not input.dim():
        raise ValueError("layer_norm takes at least one dimension.")
    part, residual = split(input)
    wide = tiers.compute_dtype(input.dtype)
    output, mean, rstd = add_layer_norm(part, residual, normalized_shape, weight, bias, eps, wide)
    return output.to(input.dtype), mean, rstd

"""Layer normalization in CUDA C++ by Welford's variance: one update an element, then merges of threads.

This is the variance that the published kernels use. Its device code is in the .cu of the same name; tiers,
packs, threads and the backward are those of layer_norm_skeleton_cuda.py.
"""

from pathlib import Path

from verifier import Domain, Source, load, source, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="every stride, misaligned storage, a missing weight or bias, any number of rows and columns",
)

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)


@subject(
    op="layer_norm",
    language="cuda",
    source=SOURCE,
    variance="welford",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=layer_norm.TREES,
    mean_contraction="none",  # the mean is the end of a division or an addition: one machine number
    divide_by_n="division",
    clamp=True,
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e2, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def layer_norm_welford_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by Welford's variance, the row kept in registers or shared memory."""
    return layer_norm.layer_norm_by(KERNELS, "Welford", input, normalized_shape, weight, bias, eps)

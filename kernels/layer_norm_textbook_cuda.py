"""Layer normalization in CUDA C++ by the textbook variance E[x^2] - E[x]^2.

Fast and, for a mean of many standard deviations, wrong: kept to be measured against its own bound and against
the other two, on the same three tiers, packs and threads (see layer_norm_skeleton_cuda.py).
"""

from pathlib import Path

from verifier import Domain, Source, load, source, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="as layer_norm_welford_cuda, and another variance",
)

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)


@subject(
    op="layer_norm",
    language="cuda",
    source=SOURCE,
    variance="textbook",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=layer_norm.TREES,
    mean_contraction="none",  # the mean is the quotient of a division: one machine number
    divide_by_n="division",
    clamp=True,
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e1, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def layer_norm_textbook_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by the textbook variance E[x^2] - E[x]^2."""
    return layer_norm.layer_norm_by(KERNELS, "Textbook", input, normalized_shape, weight, bias, eps)

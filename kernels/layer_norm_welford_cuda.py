"""Layer normalization in CUDA C++ by Welford's variance: one update an element, then merges of threads.

This is the variance that the published kernels use. Its device code is in the .cu of the same name; tiers,
packs, threads and the backward are those of layer_norm_skeleton_cuda.py.
"""

from pathlib import Path

from verifier import Domain, load, source, subject

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)


@subject(
    **layer_norm.DECLARED,
    source=layer_norm.SOURCE,
    variance="welford",
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e2, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
)
def layer_norm_welford_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by Welford's variance, the row kept in registers or shared memory."""
    return layer_norm.layer_norm_by(KERNELS, "Welford", input, normalized_shape, weight, bias, eps)

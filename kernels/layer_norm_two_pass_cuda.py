"""Layer normalization in CUDA C++ by the two-pass variance: the mean first, then the mean of (x - mean)^2.

The second pass reads registers or shared memory where the row fits there; tiers, packs and threads are those
of layer_norm_skeleton_cuda.py.
"""

from dataclasses import replace
from pathlib import Path

from verifier import Domain, load, source, subject

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)


@subject(
    **layer_norm.DECLARED,
    source=replace(layer_norm.SOURCE, changed="as layer_norm_welford_cuda, and another variance"),
    variance="two_pass",
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e3, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
)
def layer_norm_two_pass_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by the two-pass variance, the mean first, then (x - mean)^2."""
    return layer_norm.layer_norm_by(KERNELS, "TwoPass", input, normalized_shape, weight, bias, eps)

"""Layer normalization in CUDA C++ by the textbook variance E[x^2] - E[x]^2.

Fast and, for a mean of many standard deviations, wrong: kept to be measured against its own bound and against
the other two, on the same three tiers, packs and threads (see layer_norm_skeleton_cuda.py).
"""

from dataclasses import replace
from pathlib import Path

from verifier import Domain, load, source, subject

layer_norm = load(Path(__file__).with_name("layer_norm_skeleton_cuda.py")).module
KERNELS = source(__file__)


@subject(
    **layer_norm.DECLARED,
    source=replace(layer_norm.SOURCE, changed="as layer_norm_welford_cuda, and another variance"),
    variance="textbook",
    # Beyond it the bound of this variance says too little, and squares may overflow.
    domain=Domain(max_kappa=1e1, max_abs=1e15, parameter_dtypes=layer_norm.tiers.PARAMETER_DTYPES),
)
def layer_norm_textbook_cuda(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """Layer normalization in CUDA C++ by the textbook variance E[x^2] - E[x]^2."""
    return layer_norm.layer_norm_by(KERNELS, "Textbook", input, normalized_shape, weight, bias, eps)

"""Layer normalization times 1 + weight, plus bias, forward and backward, for any layout.

Torch adds one to the weight in fp32 (fp64 for doubles), one addition for each parameter, and the kernels of
layer_norm_two_pass_triton.py do the rest: in half precision, small weights would be lost beside 1.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the squares may overflow in fp32: the kernel makes no
promise there.
"""

from pathlib import Path

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Transformer Engine, LayerNorm with zero_centered_gamma",
    author="NVIDIA",
    url="https://github.com/NVIDIA/TransformerEngine",
    licence="Apache-2.0",
    changed="our own in Triton",
)

two_pass = load(Path(__file__).with_name("layer_norm_two_pass_triton.py")).module
skeleton = two_pass.skeleton


@subject(
    op="layer_norm_one_plus_weight",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # Squares and their sums stay finite, and the theorem holds for every order of summation.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_one_plus_weight_triton(input, normalized_shape, weight, bias=None, eps=1e-5):
    scale = 1.0 + weight.to(skeleton.accumulator(input.dtype)[0])
    return two_pass.layer_norm.layer_norm_by(two_pass.DESIGN, input, normalized_shape, scale, bias, eps)

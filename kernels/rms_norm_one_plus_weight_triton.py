"""RMS normalization times 1 + weight (Gemma's), forward and backward, for any layout.

Torch adds one to the weight in fp32 (fp64 for doubles), one addition for each parameter, and the kernels of
rms_norm_triton.py do the rest: in half precision, small weights would be lost beside 1.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the sum of squares may overflow in fp32: the kernel
makes no promise there.
"""

from pathlib import Path

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Gemma in PyTorch, RMSNorm",
    author="Google",
    url="https://github.com/google/gemma_pytorch",
    licence="Apache-2.0",
    changed="our own in Triton",
)

rms_norm = load(Path(__file__).with_name("rms_norm_triton.py")).module
skeleton = rms_norm.skeleton


@subject(
    op="rms_norm_one_plus_weight",
    language="triton",
    source=SOURCE,
    variance="rms",
    accumulates="float32",
    dtypes=skeleton.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # the mean square ends in an IEEE division, which no compiler contracts
    divide_by_n="division",
    # The sum of squares stays finite.
    domain=Domain(max_abs=1e15, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def rms_norm_one_plus_weight_triton(input, normalized_shape, weight, eps=1e-6):
    columns = skeleton.normalized_columns("rms_norm_one_plus_weight", input, normalized_shape, weight=weight)
    return rms_norm._RMSNorm.apply(
        input, 1.0 + weight.to(skeleton.accumulator(input.dtype)[0]), columns, float(eps)
    )

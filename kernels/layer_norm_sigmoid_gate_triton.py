"""Layer normalization times sigmoid(gate) in Triton, forward and backward, for any layout.

The gate is applied before the output is rounded, as in linear attention's fused kernels.

A row that holds NaN comes out as NaN. Beyond |x| = 1e15 the squares may overflow in fp32: the kernel makes no
promise there.
"""

from pathlib import Path

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="flash-linear-attention, fused_norm_gate",
    author="Songlin Yang, Yu Zhang, Zhiyuan Li",
    url="https://github.com/fla-org/flash-linear-attention",
    licence="MIT",
    changed="written anew: every stride and rank, rows of any length, 64-bit offsets, an empty batch, fp32 "
    "parts in a fixed order",
)

gated_norm = load(Path(__file__).with_name("gated_norm_skeleton_triton.py")).module
skeleton = gated_norm.skeleton


@subject(
    op="layer_norm_sigmoid_gate",
    language="triton",
    source=SOURCE,
    variance="two_pass",
    accumulates="float32",
    dtypes=gated_norm.DTYPES,
    trees=skeleton.TREES,
    mean_contraction="none",  # mean and mean square end in IEEE divisions, which no compiler contracts
    divide_by_n="division",
    # Beyond 1e15 the sum of squares may overflow, beyond kappa 1e3 the mean's own error is seen.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    returns=("output", "mean", "rstd"),
    guarantees=skeleton.GUARANTEES,
)
def layer_norm_sigmoid_gate_triton(input, gate, normalized_shape, weight=None, bias=None, eps=1e-6):
    return gated_norm.gated_norm(
        "layer_norm_sigmoid_gate", input, gate, normalized_shape, weight, bias, eps,
        mean_of=gated_norm.mean_of_row, silu=False,
    )  # fmt: skip

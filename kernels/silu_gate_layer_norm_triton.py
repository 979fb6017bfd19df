"""Layer normalization of input * gate * sigmoid(gate) in Triton, forward and backward, for any layout.

The product is made in fp32 and not rounded to less.

A row that holds NaN comes out as NaN. Beyond 1e15 in magnitude the squares of what is gated may overflow in
fp32: the kernel makes no promise there.
"""

from pathlib import Path

from verifier import Domain, Source, load, subject

SOURCE = Source(
    title="Mamba 2, layernorm_fn with norm_before_gate=False",
    author="Tri Dao, Albert Gu",
    url="https://github.com/state-spaces/mamba",
    licence="Apache-2.0",
    changed="written anew: every stride and rank, a missing weight, 64-bit offsets, rows of any length, fp32 "
    "parts in a fixed order",
)

gate_first = load(Path(__file__).with_name("gate_first_skeleton_triton.py")).module
skeleton = gate_first.skeleton


@subject(
    op="silu_gate_layer_norm",
    language="triton",
    source=SOURCE,
    formula="canonical",
    accumulates="float32",
    dtypes=gate_first.DTYPES,
    trees=skeleton.TREES,
    divide_by_n="division",
    mean_contraction="none",  # mean and mean square end in IEEE divisions, which no compiler contracts
    # Beyond 1e15 the sum of squares may overflow, beyond kappa 1e3 the mean's own error is seen.
    domain=Domain(max_abs=1e15, max_kappa=1e3, parameter_dtypes=skeleton.PARAMETER_DTYPES),
    guarantees=skeleton.GUARANTEES,
)
def silu_gate_layer_norm_triton(input, gate, normalized_shape, weight=None, bias=None, eps=1e-6):
    return gate_first.gate_first_norm(
        "silu_gate_layer_norm", input, gate, normalized_shape, weight, bias, eps,
        mean_of=gate_first.mean_of_row, silu=True,
    )  # fmt: skip

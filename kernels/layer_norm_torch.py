"""PyTorch's own layer norm: a control, not a reference, since it has defects of its own."""

import torch

from verifier import KnownDefect, Trees, either, subject, torch_cascade

# A vector register of the CPU holds 2 to 16 elements (NEON to AVX-512, doubles or floats), and a load of
# half numbers fills two: torch chooses where it runs, so the bound has to hold for each.
CASCADES = either(
    *(torch_cascade(lanes=lanes) for lanes in (2, 4, 8, 16)),
    *(torch_cascade(lanes=lanes, registers=2) for lanes in (4, 8, 16)),
)


def _squares_overflow(case):
    # Empty lanes are merged as (x - 0)^2 * 0: infinity times zero where the square overflows.
    return case.largest > (1e153 if case.dtype == "float64" else 1e18)


@subject(
    op="layer_norm",
    language="torch",
    variance="welford",
    accumulates="float32",
    trees=Trees(statistics=CASCADES),
    dtypes=("float16", "bfloat16", "float32", "float64"),
    # On the CPU half inputs are scaled and shifted where the others are centred, and the sums over rows
    # of the backward pass are held in the dtype of weight, as are the saved statistics.
    formula={
        "float16": "torch_cpu_half",
        "bfloat16": "torch_cpu_half",
        "float32": "torch_cpu",
        "float64": "torch_cpu",
    },
    saved_dtype="input",
    guarantees={"layouts", "large_offsets"},
    known_defects=(
        KnownDefect(
            id="merged-with-nothing",
            check="finite",
            reason="Squares overflow where empty lanes are merged, and finite rows become NaN.",
            where=_squares_overflow,
            also=("*",),
            dtypes=("bfloat16", "float32", "float64"),
        ),
    ),
)
def layer_norm_torch(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)

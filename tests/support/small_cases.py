"""Cases that are written down, not drawn."""

import math

from strategies.layouts import Layout
from verifier.records.case import Case


def case_of(input, **changes):
    given = {
        "op": "layer_norm",
        "dtype": str(input.dtype).removeprefix("torch."),
        "tensors": {"input": input, "weight": None},
        "scalars": {"eps": 0.1 + 2.0**-55, "normalized_shape": (2, 3), "num_groups": 4, "training": True},
        "layouts": {"input": Layout(order="transposed", row_padding=3)},
        "rows": 2,
        "columns": 4,
        "kappa": math.inf,
        "largest": 1e300,
        "hazard": "cancellation",
        "origin": "Recipe(rows=2, columns=4)",
    }
    return Case(**{**given, **changes})

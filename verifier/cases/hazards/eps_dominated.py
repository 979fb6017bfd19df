"""An input so small that eps decides the result."""

from __future__ import annotations

import math

import torch

from verifier.ops import Op
from verifier.records.case import Case

NAME = "eps_dominated"
AIMS_AT = "eps outside the root, forgotten, added twice or held in a format that rounds it away"
NEEDS = ("input",)


def apply(_op: Op, case: Case) -> dict[str, torch.Tensor]:
    """Return the input scaled by a power of two to a standard deviation near sqrt(eps)."""
    x = case.given["input"]
    largest = float(x.double().abs().amax()) if x.numel() else 0.0
    eps = float(case.scalars.get("eps", 1e-5))
    if largest in {0.0, math.inf} or math.isnan(largest) or eps <= 0:
        return {}
    shift = math.frexp(math.sqrt(eps))[1] - math.frexp(largest)[1]
    return {"input": torch.ldexp(x.double(), torch.tensor(shift)).to(x.dtype)}

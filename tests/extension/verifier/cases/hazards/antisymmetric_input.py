"""Rows whose second half is minus the first: their mean is zero but for what is added."""

from __future__ import annotations

import torch

from verifier.ops import Op
from verifier.records.case import Case

NAME = "antisymmetric_input"
AIMS_AT = "a constant that is added to a mean of zero"
NEEDS = ("input",)


def apply(_op: Op, case: Case) -> dict[str, torch.Tensor]:
    """Return x less its mirror image along the first axis."""
    x = case.given["input"]
    return {"input": x - x.flip(0)}

"""Weights that are exactly zero in every third place."""

from __future__ import annotations

import torch

from verifier.ops import Op
from verifier.records.case import Case

NAME = "zero_weight"
AIMS_AT = "a backward pass that recovers the normalized input by dividing the output by weight"
NEEDS = ("weight",)


def apply(_op: Op, case: Case) -> dict[str, torch.Tensor]:
    """Return weight with zeros."""
    holes = case.given["weight"].clone()
    holes.view(-1)[::3] = 0
    return {"weight": holes}

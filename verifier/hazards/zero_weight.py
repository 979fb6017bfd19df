"""Weights that are exactly zero in every third place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NAME = "zero_weight"
AIMS_AT = "a backward pass that recovers the normalized input by dividing the output by weight"
NEEDS = ("weight",)


def apply(
    tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, Any], columns: int
) -> dict[str, torch.Tensor]:
    """Return weight with zeros."""
    del scalars, columns
    weight = tensors["weight"]
    assert weight is not None
    holes = weight.clone()
    holes.view(-1)[::3] = 0
    return {"weight": holes}

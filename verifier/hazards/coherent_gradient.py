"""A gradient of one sign and size everywhere: the sums over rows grow with the number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NAME = "coherent_gradient"
AIMS_AT = "grad_weight and grad_bias accumulated in a narrow format: fp16 sums of ones stop at 2048"
NEEDS = ("grad_output",)


def apply(
    tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, Any], columns: int
) -> dict[str, torch.Tensor]:
    """Return grad_output of ones, as y.sum().backward() gives it."""
    del scalars, columns
    gradient = tensors["grad_output"]
    assert gradient is not None
    return {"grad_output": torch.ones_like(gradient)}

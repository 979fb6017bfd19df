"""A gradient of one sign and size everywhere: the sums over rows grow with the number of rows."""

from __future__ import annotations

import torch

from verifier.ops import Op
from verifier.records.case import Case

NAME = "coherent_gradient"
AIMS_AT = "grad_weight and grad_bias accumulated in a narrow format: fp16 sums of ones stop at 2048"
NEEDS = ("grad_output",)


def apply(_op: Op, case: Case) -> dict[str, torch.Tensor]:
    """Return grad_output of ones, as y.sum().backward() gives it."""
    return {"grad_output": torch.ones_like(case.given["grad_output"])}

"""A gradient that the normalization projects away: the exact grad_input nearly vanishes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

NAME = "null_space_gradient"
AIMS_AT = "row sums of the backward pass that are dropped, scaled wrongly or taken over the wrong count"
NEEDS = ("grad_output", "input")


def apply(
    tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, Any], columns: int
) -> dict[str, torch.Tensor]:
    """Return grad_output near (1 + xhat) / weight, whose exact grad_input is eps * rstd**3 * xhat."""
    del scalars
    x, weight = tensors["input"], tensors.get("weight")
    assert x is not None
    rows = x.reshape(-1, max(columns, 1)).double()
    centred = rows - rows.mean(1, keepdim=True)
    deviation = centred.square().mean(1, keepdim=True).sqrt()
    normalized = centred / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    scale = torch.ones(1, dtype=torch.float64)
    if weight is not None and weight.numel() == columns:
        scale = weight.reshape(1, -1).double()
    wanted = (1.0 + normalized) / torch.where(scale == 0, torch.ones_like(scale), scale)
    # A weight near zero would ask for a gradient beyond every format.
    gradient = torch.nan_to_num(wanted, nan=0.0).clamp(-1e4, 1e4)
    return {"grad_output": gradient.reshape(x.shape).to(x.dtype)}

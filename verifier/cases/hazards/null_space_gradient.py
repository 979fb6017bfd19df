"""A gradient that the normalization projects away: the exact grad_input nearly vanishes."""

from __future__ import annotations

import numpy as np
import torch

from verifier.ops import Op, from_rows
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import Case

NAME = "null_space_gradient"
AIMS_AT = "row sums of the backward pass that are dropped, scaled wrongly or taken over the wrong count"
NEEDS = ("grad_output", "input")


def apply(op: Op, case: Case) -> dict[str, torch.Tensor]:
    """Return grad_output near (1 + xhat) / weight in every row, whose exact grad_input nearly vanishes.

    It is eps * rstd**3 * xhat for a centred norm; without a mean, xhat / weight has that property.
    """
    if case.given["grad_output"].shape != case.given["input"].shape:
        return {}  # a matrix stands between them
    posed = op.problem(case)
    read = to_float64(op.normalized(case.tensors, case.scalars))
    rows = torch.from_numpy(np.array(op.canonical(case, "input", read)))
    centred = posed is None or posed.centred
    away = rows - rows.mean(1, keepdim=True) if centred else rows
    deviation = away.square().mean(1, keepdim=True).sqrt()
    normalized = away / torch.where(deviation > 0, deviation, torch.ones_like(deviation))
    weight = None if posed is None or "weight" in op.wholes else posed.weight
    scale = torch.ones(1, 1).double() if weight is None else torch.from_numpy(np.asarray(weight))
    wanted = (normalized + float(centred)) / torch.where(scale == 0, torch.ones_like(scale), scale)
    # A weight near zero would ask for a gradient beyond every format.
    gradient = torch.nan_to_num(wanted, nan=0.0).clamp(-1e4, 1e4).to(case.given["input"].dtype)
    return {"grad_output": from_rows(op, case, "grad_output", gradient.expand(rows.shape))}

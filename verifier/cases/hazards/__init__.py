"""Joint recipes: hazards that involve several tensors of an op, one file each.

A module of this folder is a joint hazard when it defines `NAME`, `AIMS_AT` (the bug class),
`NEEDS` (argument names that must be there) and

`apply(op: Op, case: Case) -> dict[str, torch.Tensor]`

which returns the tensors of the case to replace. Being in the folder is the registration.
Hazards of one tensor alone live in `strategies`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from strategies.registry import registry


@cache
def joint_hazards() -> dict[str, Any]:
    """Return the joint hazards by name."""
    return dict(registry(__name__, "NAME"))

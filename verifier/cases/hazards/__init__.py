"""Joint recipes: hazards that involve several tensors of an op, one file each.

A module of this folder is a joint hazard when it defines `NAME`, `AIMS_AT` (the bug class),
`NEEDS` (argument names that must be there) and

`apply(op: Op, case: Case) -> dict[str, torch.Tensor]`

which returns the tensors of the case to replace. Being in the folder is the registration.
Hazards of one tensor alone live in `strategies`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from strategies.registry import registry

if TYPE_CHECKING:
    import torch

    from verifier.ops import Op
    from verifier.records.case import Case


class JointHazard(Protocol):
    """What a module of this folder that is a joint hazard has."""

    NAME: str
    AIMS_AT: str
    NEEDS: tuple[str, ...]

    def apply(self, op: Op, case: Case, /) -> dict[str, torch.Tensor]:
        """Return the tensors of the case to replace."""


@cache
def joint_hazards() -> dict[str, JointHazard]:
    """Return the joint hazards by name."""
    return {name: cast("JointHazard", module) for name, module in registry(__name__, "NAME").items()}

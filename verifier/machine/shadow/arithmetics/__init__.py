"""Arithmetics of shadows, the second values of floats, one file each.

A module of this folder is an arithmetic when it defines `NAME` and `build(**settings) -> ShadowArithmetic`
(see `verifier.machine.shadow.slots`). Being in the folder is the registration.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from strategies.registry import registry

if TYPE_CHECKING:
    from verifier.machine.shadow.slots import ShadowArithmetic


class ArithmeticModule(Protocol):
    """What a module of this folder that is an arithmetic has."""

    NAME: str

    def build(self, **settings: object) -> ShadowArithmetic:
        """Make the arithmetic."""
        ...


@cache
def arithmetics() -> dict[str, ArithmeticModule]:
    """Return the modules of arithmetics by name."""
    return {name: cast("ArithmeticModule", module) for name, module in registry(__name__, "NAME").items()}


def make(name: str, **settings: object) -> ShadowArithmetic:
    """Build an arithmetic by its name.

    Raises ValueError for a name that no file has.
    """
    known = arithmetics()
    if name not in known:
        raise ValueError(f"no arithmetic is called {name!r}; there are {', '.join(known)}")
    return known[name].build(**settings)

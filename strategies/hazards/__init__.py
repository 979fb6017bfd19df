"""Hazards of one tensor seen as (rows, columns): a public function in a module here is a hazard.

It takes a Draw and returns (rows, columns) numbers in float64, which Values rounds to the dtype.
Its docstring says what the numbers are, what `strength` does, and which bugs they find.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from strategies.draws import Draw
from strategies.formats import Reals
from strategies.registry import modules

PLAIN = "ordinary"
"""The hazard that is always there: numbers that aim at nothing."""


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """A recipe with its name and with what it aims at.

    finite: whether all of its numbers are; a module whose numbers are not says FINITE = False.
    """

    name: str
    description: str
    finite: bool
    generate: Callable[[Draw], Reals]


@functools.cache
def discover() -> dict[str, Hazard]:
    """Find every hazard, "ordinary" first, for that is what all others shrink to.

    Raises: TypeError if a hazard has no docstring, or its name is taken.
    """
    found: dict[str, Hazard] = {}
    for module in modules(__name__):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("_") or function.__module__ != module.__name__:
                continue
            if name in found or not function.__doc__:
                raise TypeError(
                    f"hazard {name!r} in {module.__name__} needs a docstring and a name of its own"
                )
            found[name] = Hazard(
                name=name,
                description=inspect.cleandoc(function.__doc__),
                finite=getattr(module, "FINITE", True),
                generate=function,
            )
    return dict(sorted(found.items(), key=lambda item: (item[0] != PLAIN, item[0])))


def hazard_names(*, finite_only: bool = False) -> tuple[str, ...]:
    """Name every hazard, or only those whose numbers are finite."""
    return tuple(name for name, hazard in discover().items() if hazard.finite or not finite_only)

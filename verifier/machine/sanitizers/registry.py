"""The optional sanitizers, by name: what the modules of this folder define."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from strategies.registry import modules

if TYPE_CHECKING:
    from verifier.machine.execute.wave import Monitor
    from verifier.machine.model import Machine


class Sanitizer(Protocol):
    """What a module of this folder that is a sanitizer has."""

    SANITIZES: frozenset[str]
    """Names in `Machine.sanitize` that it answers to."""

    def monitor(self, machine: Machine, *, replicated: bool) -> Monitor | None:
        """Make what watches one launch, None where emitted code does; `replicated`: see `launch_ptx`."""


@cache
def sanitizers() -> tuple[Sanitizer, ...]:
    """Return the sanitizers in the order of their modules' names."""
    found = modules(__name__.rpartition(".")[0])
    return tuple(cast("Sanitizer", module) for module in found if hasattr(module, "SANITIZES"))


def make_monitors(machine: Machine, *, replicated: bool) -> tuple[Monitor, ...]:
    """Give fresh monitors for one launch; `replicated`: see `launch_ptx`.

    Raises ValueError for a name that no sanitizer has.
    """
    names = frozenset[str]().union(*(one.SANITIZES for one in sanitizers()))
    unknown = machine.sanitize - names
    if unknown:
        raise ValueError(
            f"no sanitizer is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}"
        )
    wanted = [one for one in sanitizers() if machine.sanitize & one.SANITIZES]
    made = [one.monitor(machine, replicated=replicated) for one in wanted]
    return tuple(monitor for monitor in made if monitor is not None)

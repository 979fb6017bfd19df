"""Names of the optional sanitizers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.machine.launch import Machine
    from verifier.machine.wave import Monitor

# `uninitialised` is no monitor: it rides along with the emitted code (see `uninitialised.py`).
NAMES = frozenset({"uninitialised", "shared_races", "unequal_stores", "global_races", "inputs", "outputs"})


def make_monitors(machine: Machine, *, copies: bool) -> tuple[Monitor, ...]:
    """Give fresh monitors for one launch; `copies`: see `launch_ptx`.

    Raises ValueError for a name that no sanitizer has.
    """
    from verifier.machine.sanitizers.global_races import GlobalRaces
    from verifier.machine.sanitizers.shared_races import SharedRaces
    from verifier.machine.sanitizers.writes import Writes

    unknown = machine.sanitize - NAMES
    if unknown:
        raise ValueError(
            f"no sanitizer is called {', '.join(sorted(unknown))}; there are {', '.join(sorted(NAMES))}"
        )
    monitors: list[Any] = []
    if machine.sanitize & {"shared_races", "unequal_stores"}:
        monitors.append(SharedRaces(unequal_stores="unequal_stores" in machine.sanitize, copies=copies))
    if "global_races" in machine.sanitize:
        monitors.append(GlobalRaces(copies=copies))
    if machine.sanitize & {"inputs", "outputs"}:
        monitors.append(Writes(machine))
    return tuple(monitors)

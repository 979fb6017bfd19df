"""Names of the optional sanitizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from verifier.machine.launch import Machine
    from verifier.machine.wave import Monitor


def make_monitors(machine: Machine) -> tuple[Monitor, ...]:
    """Give fresh monitors for one launch."""
    return ()

"""Execution of compiled GPU kernels (PTX) on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.machine.approximation import Adversarial, Correct
    from verifier.machine.findings import (
        LaunchError,
        MachineError,
        MachineFinding,
        UnsupportedInstruction,
    )
    from verifier.machine.launch import Machine, launch_ptx
    from verifier.machine.sessions import Session, current, session
    from verifier.machine.unit import Table

_HOMES = {
    "Adversarial": "approximation",
    "Correct": "approximation",
    "LaunchError": "findings",
    "Machine": "launch",
    "MachineError": "findings",
    "MachineFinding": "findings",
    "Session": "sessions",
    "Table": "unit",
    "UnsupportedInstruction": "findings",
    "current": "sessions",
    "launch_ptx": "launch",
    "session": "sessions",
}

__all__ = [
    "Adversarial",
    "Correct",
    "LaunchError",
    "Machine",
    "MachineError",
    "MachineFinding",
    "Session",
    "Table",
    "UnsupportedInstruction",
    "current",
    "launch_ptx",
    "session",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"verifier.machine.{_HOMES[name]}"), name)
    raise AttributeError(name)

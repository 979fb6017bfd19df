"""Execution of compiled GPU kernels (PTX) on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verifier.machine.arithmetic.approximation import Adversarial, Correct
    from verifier.machine.arithmetic.special_function_unit import Table
    from verifier.machine.device.launch import launch_ptx
    from verifier.machine.device.session import session
    from verifier.machine.execute.findings import (
        LaunchError,
        MachineError,
        MachineFinding,
        UnsupportedInstruction,
    )
    from verifier.machine.in_force import MachineSession, current
    from verifier.machine.model import Machine, MaskedFill

_HOMES = {
    "Adversarial": "arithmetic.approximation",
    "Correct": "arithmetic.approximation",
    "LaunchError": "execute.findings",
    "Machine": "model",
    "MachineError": "execute.findings",
    "MachineFinding": "execute.findings",
    "MachineSession": "in_force",
    "MaskedFill": "model",
    "Table": "arithmetic.special_function_unit",
    "UnsupportedInstruction": "execute.findings",
    "current": "in_force",
    "launch_ptx": "device.launch",
    "session": "device.session",
}

__all__ = [
    "Adversarial",
    "Correct",
    "LaunchError",
    "Machine",
    "MachineError",
    "MachineFinding",
    "MachineSession",
    "MaskedFill",
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

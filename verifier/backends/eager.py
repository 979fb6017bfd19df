"""Torch operators as they are, on the CPU."""

from __future__ import annotations

from typing import Any

from verifier.arithmetic import ieee
from verifier.ops import Setting
from verifier.subjects import Subject

NAME = "eager"
SUMMARY = "torch operators on the CPU, one thread"
LANGUAGES = ("torch",)


def unavailable() -> str | None:
    """Torch on the CPU is always there."""
    return None


def refuses(subject: Subject, dtype: str) -> str | None:
    """Run everything that is written in torch."""
    del subject, dtype
    return None


def setting(subject: Subject, dtype: str) -> Setting:
    """Return IEEE arithmetic; torch's vectorised loops use fused multiply-add where they can."""
    arithmetic = ieee(subject.accumulation(dtype), evidence="IEEE 754 operations of the CPU")
    return Setting(arithmetic=arithmetic, trees=subject.claim.trees)


def environment() -> dict[str, str]:
    """Need nothing."""
    return {}


def prepare() -> None:
    """Need nothing."""


def device() -> str:
    """Return the device that tensors are placed on."""
    return "cpu"


def begin() -> None:
    """Note the start of an execution."""


def finish() -> None:
    """Wait for the end of an execution."""


def launches() -> int:
    """Count no launches: torch operators check their arguments before they start."""
    return 0


def launched(subject: Subject) -> int | None:
    """Count nothing: torch's operators launch no kernels here."""
    del subject
    return None


def facts(error: BaseException | None = None) -> dict[str, Any]:
    """Know nothing more."""
    del error
    return {}

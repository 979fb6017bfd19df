"""Torch operators as they are, on the CPU."""

from __future__ import annotations

from verifier.arithmetic.formats import ieee
from verifier.execution.backend import Backend, Power
from verifier.ops import Setting
from verifier.records.subject import Subject


class Eager(Backend):
    """Torch operators; everything that is written in torch runs."""

    name = "eager"
    summary = "torch operators on the CPU, one thread"
    languages = ("torch",)
    powers = frozenset({Power.FAR_ROWS, Power.FOLLOWS_TORCH})
    preference = 40

    def setting(self, subject: Subject, dtype: str) -> Setting:
        """Return IEEE arithmetic; torch's vectorised loops use fused multiply-add where they can."""
        arithmetic = ieee(subject.accumulation(dtype), evidence="IEEE 754 operations of the CPU")
        return Setting(arithmetic=arithmetic, trees=subject.claim.trees)


BACKEND = Eager()

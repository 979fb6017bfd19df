"""How autotuned kernels are played: which configuration each runs, and what its tuner launches before."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary


class TunedState(StrEnum):
    """What became of a configuration, the most telling first."""

    RAN = "ran"
    LACKING = "the machine lacks something that it needs"
    UNFIT = "does not fit the device"
    OPEN = "not tried"
    PRUNED = "pruned by its tuner in every case that was tried"


class TunedKernel(NamedTuple):
    """An autotuned kernel: where its function stands, and all its configurations in words.

    Kernels of one function with the same configurations are one.
    """

    path: str
    function: str
    line: int
    configurations: tuple[str, ...]


@dataclass(kw_only=True, eq=False)
class MetTuner:
    """What one tuner did: configurations that were left after its pruning, chosen ones, and unfit ones.

    benched: whether it launched configurations to compare them.
    """

    candidates: dict[str, None] = field(default_factory=dict)
    chosen: set[str] = field(default_factory=set)
    unfit: set[str] = field(default_factory=set)
    benched: bool = False


@dataclass(kw_only=True, eq=False)
class Tuning:
    """How the tuners of a session choose, without measuring.

    seed: None takes the first configuration that fits the device, an integer one chosen by it.
    forced: a kernel and the configuration that it runs instead, where it fits.
    benched: the kernel whose tuner launches configurations before it chooses, as it does on a device.
    met: what each tuner did. choices: what tuners remember, in the place of their own memory.
    launches: of tuners that compare, how often each launches which configuration.
    """

    seed: int | None = None
    forced: tuple[TunedKernel, str] | None = None
    benched: TunedKernel | None = None
    met: dict[TunedKernel, MetTuner] = field(default_factory=dict)
    choices: MutableMapping[object, dict[object, Any]] = field(default_factory=WeakKeyDictionary)
    launches: MutableMapping[object, dict[str, int]] = field(default_factory=WeakKeyDictionary)

    def anew(self) -> Tuning:
        """Return tuners that choose alike, and have met nothing yet."""
        return Tuning(seed=self.seed, forced=self.forced)

"""Which parts of translated kernels were executed, and how often loops turned.

Nothing is counted while blocks run: a block is noted when it is compiled for a wave, and only the blocks at
the ends of loops are watched.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.tuning import TunedKernel, TunedState
    from verifier.machine.ptx.loops import Loop
    from verifier.machine.translate.compile_kernel import TranslatedKernel

MANY = 3
"""Turns of a loop that are not told apart from more."""


@dataclass(eq=False)
class ReachedCode:
    """What was executed since it was made: blocks and turns of loops, by kernel.

    turns: by the first block of a loop, how often it turned between entry and exit; `MANY` or more are one.
    What nobody else keeps of kernels is forgotten here, too: it has to be read before.
    changed: kernels of which something is new since the set, which is the reader's to empty, was empty.
    multiprocessors: of the machines that launches ran on. configurations: of autotuned kernels.
    """

    blocks: MutableMapping[TranslatedKernel, set[int]] = field(default_factory=WeakKeyDictionary)
    turns: MutableMapping[TranslatedKernel, dict[int, set[int]]] = field(default_factory=WeakKeyDictionary)
    changed: set[TranslatedKernel] = field(default_factory=set)
    multiprocessors: set[int] = field(default_factory=set)
    configurations: set[tuple[TunedKernel, str, TunedState]] = field(default_factory=set)

    def configuration(self, kernel: TunedKernel, words: str, state: TunedState) -> None:
        """Note what became of a configuration of an autotuned kernel."""
        self.configurations.add((kernel, words, state))

    def block(self, kernel: TranslatedKernel, number: int) -> None:
        """Note that a block of a kernel is about to run."""
        known = self.blocks.setdefault(kernel, set())
        if number not in known:
            known.add(number)
            self.changed.add(kernel)

    def loop(self, kernel: TranslatedKernel, loop: Loop, turned: int) -> None:
        """Note that lanes left a loop after so many turns."""
        known = self.turns.setdefault(kernel, {}).setdefault(loop.first, set())
        if turned not in known:
            known.add(turned)
            self.changed.add(kernel)

    def all_seen(self, kernel: TranslatedKernel, loop: Loop) -> bool:
        """Return whether there is nothing more to learn of a loop."""
        return {1, 2, MANY} <= self.turns.get(kernel, {}).get(loop.first, set())


class LoopTurns:
    """Counts the turns of one loop in one wave, for each lane."""

    def __init__(self, reached: ReachedCode, kernel: TranslatedKernel, loop: Loop) -> None:
        """Begin with no lane inside."""
        self.reached, self.kernel, self.loop = reached, kernel, loop
        self.common = 0
        self.own: Array | None = None

    def everybody(self, number: int, lanes: int, result: object) -> None:
        """Follow all lanes of the wave from a block; result: where they go."""
        if result.__class__ is not int:
            self.some(number, np.arange(0), lanes, result)
        elif result == self.loop.first and number in self.loop.latches:
            self.common += 1
        elif not self.loop.first <= result <= self.loop.last:
            self.left(number, self.common if self.own is None else self.own + self.common)
            self.common, self.own = 0, None

    def some(self, number: int, ix: Array, lanes: int, result: object) -> None:
        """Follow a group of lanes `ix` of a wave of so many from a block."""
        if not isinstance(result, int | list):  # they wait, and stay
            return
        for target, going in ((result, ix),) if isinstance(result, int) else result:
            back = target == self.loop.first and number in self.loop.latches
            if not back and self.loop.first <= target <= self.loop.last:
                continue
            if self.own is None:
                self.own = np.zeros(lanes, dtype=np.int64)
            if back:
                self.own[going] += 1
            else:
                self.left(number, self.own[going] + self.common)
                self.own[going] = -self.common

    def left(self, number: int, backs: int | Array) -> None:
        """Note how often lanes turned that leave from a block after so many branches back."""
        whole = 0 if self.loop.heads and number == self.loop.first else 1
        for turned in {backs} if isinstance(backs, int) else np.unique(np.minimum(backs, MANY)).tolist():
            self.reached.loop(self.kernel, self.loop, min(turned + whole, MANY))


class Watch:
    """Puts itself in the place of blocks of one prepared wave, to note what runs there."""

    def __init__(self, reached: ReachedCode, kernel: TranslatedKernel) -> None:
        """Find the blocks at which something is to be seen."""
        self.reached, self.kernel = reached, kernel
        self.at: dict[int, list[LoopTurns]] = {}
        for loop in kernel.loops:
            turns = LoopTurns(reached, kernel, loop)
            for number in loop.latches | loop.exits:
                self.at.setdefault(number, []).append(turns)

    def full(self, number: int, lanes: int, function: Callable[[], object]) -> Callable[[], Any]:
        """Return what stands for a block's function for all lanes of a wave of so many."""
        self.reached.block(self.kernel, number)
        return partial(self._everybody, number, lanes, function) if self._open(number) else function

    def part(self, number: int, lanes: int, function: Callable[[Group], object]) -> Callable[[Group], Any]:
        """Return what stands for a block's function for some lanes."""
        self.reached.block(self.kernel, number)
        return partial(self._some, number, lanes, function) if self._open(number) else function

    def _open(self, number: int) -> bool:
        turns = self.at.get(number, [])
        return any(not self.reached.all_seen(self.kernel, one.loop) for one in turns)

    def _everybody(self, number: int, lanes: int, function: Callable[[], object]) -> Any:
        result = function()
        for turns in self.at[number]:
            turns.everybody(number, lanes, result)
        return result

    def _some(self, number: int, lanes: int, function: Callable[[Group], object], group: Group) -> Any:
        result = function(group)
        for turns in self.at[number]:
            turns.some(number, group.ix, lanes, result)
        return result

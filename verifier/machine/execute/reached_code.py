"""Which parts of translated kernels were executed, how often loops turned, and what guards switched off.

Nothing is counted while blocks run: a block is noted when it is compiled for a wave, and only the blocks at
the ends of loops are watched, and those with guards of which not all is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from enum import IntFlag
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from verifier.machine.ptx.basic_blocks import EXIT

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.lane_groups import Group
    from verifier.machine.execute.tuning import TunedKernel, TunedState
    from verifier.machine.execute.wave import Next
    from verifier.machine.ptx.loops import Loop
    from verifier.machine.translate.compile_kernel import TranslatedKernel
    from verifier.machine.translate.guards import Guard

MANY = 3
"""Turns of a loop that are not told apart from more."""


class On(IntFlag):
    """In how many of the lanes that came there a guard was seen to hold: all, some or none."""

    ALL = 1
    SOME = 2
    NONE = 4


@dataclass(eq=False)
class ReachedCode:
    """What was executed since it was made: blocks and turns of loops, by kernel.

    turns: by the first block of a loop, how often it turned between entry and exit; `MANY` or more are one.
    guards: by the number of a guard, where it held; once it is known to tell lanes apart, nothing is added.
    What nobody else keeps of kernels is forgotten here, too: it has to be read before.
    changed: kernels of which something is new since the set, which is the reader's to empty, was empty.
    multiprocessors: of the machines that launches ran on. configurations: of autotuned kernels.
    """

    blocks: MutableMapping[TranslatedKernel, set[int]] = field(default_factory=WeakKeyDictionary)
    turns: MutableMapping[TranslatedKernel, dict[int, set[int]]] = field(default_factory=WeakKeyDictionary)
    guards: MutableMapping[TranslatedKernel, dict[int, On]] = field(default_factory=WeakKeyDictionary)
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

    def guard(self, kernel: TranslatedKernel, number: int, on: On) -> None:
        """Note where the guard of that number held."""
        known = self.guards.setdefault(kernel, {})
        before = known.get(number, On(0))
        if on not in before:
            known[number] = before | on
            self.changed.add(kernel)

    def told_apart(self, kernel: TranslatedKernel, number: int) -> bool:
        """Return whether a guard was seen to hold in some lanes and not in others.

        Where the lanes of a thread block have it in common, it may have been one after the other.
        """
        known = self.guards.get(kernel, {}).get(number, On(0))
        return On.SOME in known or (not kernel.guards[number].by_lane and On.ALL | On.NONE in known)

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


class GuardedLanes:
    """Sees in which lanes one guard holds, in one wave."""

    def __init__(self, reached: ReachedCode, kernel: TranslatedKernel, number: int, values: Array) -> None:
        """`values`: of the predicate, in its own shape; what they are is read when the block has run."""
        self.reached, self.kernel, self.number, self.values = reached, kernel, number, values
        self.guard: Guard = kernel.guards[number]
        self.branches = self.guard.branches
        self.last: On | None = None

    def open_after(self, group: Group | None, result: object) -> bool:
        """Note where it held for a group of lanes, None for all; return whether there is more to learn."""
        on = self.by_branch(result) if self.branches else self.by_value(group)
        if on is self.last:  # it is noted, and told nothing apart
            return True
        reached, kernel, number, self.last = self.reached, self.kernel, self.number, on
        reached.guard(kernel, number, on)
        return not reached.told_apart(kernel, number)

    def by_branch(self, result: object) -> On:
        """Return how many lanes went where the guarded branch leads."""
        if not isinstance(result, int):
            return On.SOME
        target = self.kernel.program.blocks[self.guard.block].target
        return On.ALL if result == (EXIT if target is None else target) else On.NONE

    def by_value(self, group: Group | None) -> On:
        """Return in how many lanes the predicate lets instructions run."""
        values = self.values if group is None else self.of(group)
        on = int(np.count_nonzero(values))
        if 0 < on < values.size:
            return On.SOME
        return On.ALL if (on == 0) is self.guard.negated else On.NONE

    def of(self, group: Group) -> Array:
        """Return the predicate in some lanes."""
        if self.values.shape[0] == 1:
            answer: Array = self.values[0] if self.values.shape[1] == 1 else self.values[0][group.it]
            return answer
        if self.values.shape[1] == 1:
            return self.values[:, 0][group.ib]
        return self.values.reshape(-1)[group.ix]


class Watch:
    """Puts itself in the place of blocks of one prepared wave, to note what runs there."""

    def __init__(self, reached: ReachedCode, kernel: TranslatedKernel, names: Mapping[str, object]) -> None:
        """Find the blocks at which something is to be seen; names: what the translation sees of the wave."""
        self.reached, self.kernel = reached, kernel
        self.at: dict[int, list[LoopTurns]] = {}
        for loop in kernel.loops:
            turns = LoopTurns(reached, kernel, loop)
            for number in loop.latches | loop.exits:
                self.at.setdefault(number, []).append(turns)
        self.guarded: dict[int, list[GuardedLanes]] = {}
        for number, guard in enumerate(kernel.guards):
            if guard.name in names and not reached.told_apart(kernel, number):
                values = names[guard.name]
                assert isinstance(values, np.ndarray)
                lanes = GuardedLanes(reached, kernel, number, values)
                self.guarded.setdefault(guard.block, []).append(lanes)

    def full(self, number: int, lanes: int, function: Callable[[], Next]) -> Callable[[], Next]:
        """Return what stands for a block's function for all lanes of a wave of so many."""
        self.reached.block(self.kernel, number)
        return partial(self._everybody, number, lanes, function) if self._open(number) else function

    def part(self, number: int, lanes: int, function: Callable[[Group], Next]) -> Callable[[Group], Next]:
        """Return what stands for a block's function for some lanes."""
        self.reached.block(self.kernel, number)
        return partial(self._some, number, lanes, function) if self._open(number) else function

    def _open(self, number: int) -> bool:
        turns = self.at.get(number, [])
        if any(not self.reached.all_seen(self.kernel, one.loop) for one in turns):
            return True
        return bool(self.guarded.get(number))

    def _everybody(self, number: int, lanes: int, function: Callable[[], Next]) -> Next:
        result = function()
        for turns in self.at.get(number, ()):
            turns.everybody(number, lanes, result)
        self._guards(number, None, result)
        return result

    def _some(self, number: int, lanes: int, function: Callable[[Group], Next], group: Group) -> Next:
        result = function(group)
        for turns in self.at.get(number, ()):
            turns.some(number, group.ix, lanes, result)
        self._guards(number, group, result)
        return result

    def _guards(self, number: int, group: Group | None, result: object) -> None:
        if guarded := self.guarded.get(number):
            self.guarded[number] = [one for one in guarded if one.open_after(group, result)]

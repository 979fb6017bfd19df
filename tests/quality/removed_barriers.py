"""Takes each barrier out of the compiled kernels and asks whether the race sanitizers miss it.

Run from a checkout: `python tests/quality/removed_barriers.py [KERNEL.py ...]` for all of them (minutes);
test_removed_barriers.py takes a sample. A barrier that is not missed has to be proved superfluous: nothing
that threads do between it and the barriers before could meet what they do until the next.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from verifier import machine
from verifier.cases.recipe import Recipe, build
from verifier.checks.synchronization import KINDS, SANITIZERS, plan
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.machine.device import launch as launches
from verifier.machine.execute.findings import MachineFinding
from verifier.machine.ptx.basic_blocks import Program, is_barrier
from verifier.machine.ptx.syntax import Instruction
from verifier.ops import op
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

SHAPES = (
    (3, 40),
    (2, 301),
    (2, 1100),
    (2, 2048),
    (2, 3001),
    (66, 9),
    (33, 301),
    (33, 1100),
    (265, 301),
    (1025, 301),
    (513, 2047),
)
"""Rows and columns that take every kernel through its sizes: of a warp, of several, of several tiles; and
more rows than a backward has programs."""
DTYPE = "float32"
MULTIPROCESSORS = 4
"""Of the device that is played: programs that go through rows by themselves do so from few rows on."""
_MEMORY = frozenset({"ld", "ldu", "st", "atom", "red", "ldmatrix", "stmatrix"})
_READS = frozenset({"ld", "ldu", "ldmatrix"})
_ORDERS = frozenset({"atom", "red", "membar", "fence"})
"""What orders accesses of several blocks, or may."""
_STRONG = frozenset({"volatile", "relaxed", "acquire", "release", "acq_rel"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Shot:
    """One launch as it was made: `settings` are the other arguments of `machine.launch_ptx`."""

    kernel: str
    shape: tuple[object, object, int]
    arguments: list[object]
    settings: dict[str, object]


@dataclass(kw_only=True)
class Code:
    """One compiled kernel, what it was launched on, and what each of its lines touches.

    tensors: names by line. shared: (byte, warp) by line; of which block does not matter here.
    """

    ptx: str
    shots: list[Shot] = field(default_factory=list)
    tensors: dict[int, set[str]] = field(default_factory=dict)
    shared: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)

    @property
    def warps(self) -> int:
        """Most warps of a block."""
        return max(math.prod(shot.shape[1]) for shot in self.shots) // 32

    @property
    def program(self) -> Program:
        """Its control flow."""
        return launches.compiled(self.ptx, self.shots[0].kernel, "off", True, None).program

    def barriers(self) -> list[int]:
        """Lines that hold a barrier of the block."""
        return sorted({i.line for i in self.program.instructions() if is_barrier(i)})


# ---- Launches, recorded and repeated ----


def codes(subject: Subject, shapes: tuple[tuple[int, int], ...] = SHAPES) -> list[Code]:
    """Run a subject on ordinary cases, and return the code of its kernels with their launches."""
    found: dict[str, Code] = {}
    the_op = op(subject.op)
    gradients, backward = (
        plan(subject, the_op).gradients,
        bool(the_op.differentiable) and subject.differentiable,
    )
    for number, (rows, columns) in enumerate(shapes):
        case = build(the_op, subject, DTYPE, Recipe(rows=rows, columns=columns), gradients=gradients)
        if case is not None:
            settings = {"poison": 0xFF, "autotune_seed": number, "multiprocessors": MULTIPROCESSORS}
            with machine.session(**settings), _recorded(found):
                seen = execute(subject, case, backend=backend("machine"), gradients=backward)
            assert seen.status in {"ok", "refused"}, seen.message
    for code in found.values():
        for shot in code.shots:
            with _watched(code):
                repeat(code.ptx, shot, frozenset())
    return list(found.values())


@contextmanager
def _recorded(found: dict[str, Code]) -> Iterator[None]:
    original = launches.prepare

    def recorded(ptx, kernel, shape, arguments, machine, *, slots, **settings):
        kept = {name: settings[name] for name in ("names", "replicated")}
        shot = Shot(kernel=kernel, shape=shape, arguments=copied(arguments), settings=kept)
        found.setdefault(ptx, Code(ptx=ptx)).shots.append(shot)
        return original(ptx, kernel, shape, arguments, machine, slots=slots, **settings)

    launches.prepare = recorded
    try:
        yield
    finally:
        launches.prepare = original


class Watch:
    """A monitor that notes which tensors each line of the code touches, and which are written."""

    every_lane = True

    def __init__(self, code: Code) -> None:
        self.code = code
        self.sites = launches.compiled(code.ptx, code.shots[0].kernel, "off", True, None).sites

    def access(self, wave, site, kind, space, located, lanes, width, values) -> None:  # noqa: PLR0917 (as monitors)
        name = located.region.name if space == "global" else space
        line = self.sites[site].line
        self.code.tensors.setdefault(line, set()).add(name)
        if space == "shared":
            lanes = np.broadcast_to(lanes, located.offsets.shape).reshape(-1)
            first = located.offsets.reshape(-1) % wave.shared.stride
            warp = lanes % wave.threads // 32
            seen = {
                (b + n, w) for b, w in zip(first.tolist(), warp.tolist(), strict=True) for n in range(width)
            }
            self.code.shared.setdefault(line, set()).update(seen)
        if not kind.endswith("read"):
            self.code.written.add(name)

    def barrier(self, wave, lanes) -> None:
        """See nothing in it."""

    def ordering(self, wave, site, lanes, words) -> None:
        """See nothing in it."""


@contextmanager
def _watched(code: Code) -> Iterator[None]:
    original = launches.make_monitors
    launches.make_monitors = lambda *_, **__: (Watch(code),)
    try:
        yield
    finally:
        launches.make_monitors = original


def copied(arguments: list[object]) -> list[object]:
    """Copy tensors with all of their storage, once where several share it."""
    kept: dict[int, torch.UntypedStorage] = {}

    def copy(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        held = value.untyped_storage()
        storage = kept.setdefault(held.data_ptr(), held.clone())
        return torch.empty(0, dtype=value.dtype).set_(
            storage, value.storage_offset(), value.shape, value.stride()
        )

    return [copy(value) for value in arguments]


def repeat(ptx: str, shot: Shot, sanitize: frozenset[str]) -> None:
    """Make a launch again, perhaps with other code; on copies of what it was made on."""
    machine.launch_ptx(
        ptx,
        shot.kernel,
        *shot.shape,
        copied(shot.arguments),
        machine=machine.Machine(sanitize=sanitize, step_limit=200_000),
        **shot.settings,
    )


def finding(ptx: str, shots: list[Shot]) -> str | None:
    """Return what is found in a code on its launches, or None."""
    for shot in shots:
        try:
            repeat(ptx, shot, SANITIZERS)
        except MachineFinding as found:
            if found.kind in KINDS:
                return found.kind
    return None


def without(ptx: str, line: int) -> str:
    """Return the code with a line (counted from 1) left empty."""
    lines = ptx.split("\n")
    lines[line - 1] = ""
    return "\n".join(lines)


# ---- Barriers that are superfluous ----


def superfluous(code: Code, line: int) -> bool:
    """Return whether no two accesses need the barrier, on any path of the code."""
    before, after = _around(code.program, line)
    # A copy ends elsewhere than it stands: each may be on its way before a barrier, and behind it.
    copies = [
        i for i in code.program.instructions() if i.parts[:2] == ("cp", "async") and len(i.operands) > 1
    ]
    before, after = [*before, *copies], [*after, *copies]
    acquires = any(_orders(i) for i in before)
    if acquires and any(_orders(i) or "shared" not in _touched(code, i) for i in after):
        return False
    if any(_orders(i) for i in after) and any(_published(code, i) for i in before):
        return False
    return not any(_meet(code, one, other) for one in before for other in after)


def _published(code: Code, one: Instruction) -> bool:
    """Whether other blocks may care when this access was made."""
    return "shared" not in _touched(code, one) and bool(_touched(code, one) & code.written)


def _meet(code: Code, one: Instruction, other: Instruction) -> bool:
    if {one.parts[0], other.parts[0]} <= _READS or _puts_back(one, other):
        return False
    places = [code.shared.get(i.line) for i in (one, other)]
    if all(places):
        warps: dict[int, set[int]] = {}
        for byte, warp in places[0]:
            warps.setdefault(byte, set()).add(warp)
        return any(warps.get(byte, {warp}) != {warp} for byte, warp in places[1])
    return bool(_touched(code, one) & _touched(code, other))


def _puts_back(one: Instruction, other: Instruction) -> bool:
    """Whether the second stores what the first loaded where that came from: every copy of it is the same."""
    return one.parts[0] == "ld" and other.parts[0] == "st" and one.operands == other.operands[::-1]


def _touched(code: Code, instruction: Instruction) -> set[str]:
    """The tensors of an access, and "shared"; what no launch has executed may touch every written one."""
    parts = instruction.parts
    if "shared" in parts or parts[0].endswith("matrix"):
        return {"shared"}
    seen = code.tensors.get(instruction.line)
    if seen is not None:
        return seen
    return code.written - {"shared"} if "global" in parts else code.written | {"shared"}


def _orders(instruction: Instruction) -> bool:
    return instruction.parts[0] in _ORDERS or bool(_STRONG & set(instruction.parts))


def _accesses(instructions: tuple[Instruction, ...]) -> list[Instruction]:
    return [
        i
        for i in instructions
        if (i.parts[0] in _MEMORY and not {"param", "local", "const"} & set(i.parts)) or _orders(i)
    ]


def _around(program: Program, line: int) -> tuple[list[Instruction], list[Instruction]]:
    """List accesses that may come between the last barriers and this one, and between it and the next."""
    blocks = program.blocks
    ahead = {n: _next(program, n) for n in range(len(blocks))}
    back = {n: [m for m in ahead if n in ahead[m]] for n in ahead}
    ends = [n for n, b in enumerate(blocks) if b.instructions and b.instructions[-1].line == line]
    ends = [n for n in ends if is_barrier(blocks[n].instructions[-1])]
    closed = {n for n, b in enumerate(blocks) if b.instructions and is_barrier(b.instructions[-1])}
    earlier = set(ends) | _reached([m for n in ends for m in back[n]], back, closed, enter=False)
    later = _reached([m for n in ends for m in ahead[n]], ahead, closed, enter=True)
    return tuple([i for n in sorted(s) for i in _accesses(blocks[n].instructions)] for s in (earlier, later))


def _next(program: Program, number: int) -> list[int]:
    """Blocks to which control may go."""
    block = program.blocks[number]
    last = block.instructions[-1] if block.instructions else None
    targets = [] if block.target is None else [block.target]
    leaves = last is not None and last.parts[0] in {"bra", "ret", "exit", "trap"} and last.guard is None
    if not leaves and number + 1 < len(program.blocks):
        targets.append(number + 1)
    return targets


def _reached(starts: list[int], edges: dict[int, list[int]], closed: set[int], *, enter: bool) -> set[int]:
    """Blocks on the way to the next barriers; a closed one ends in a barrier, and may be entered."""
    reached: set[int] = set()
    waiting = list(starts)
    while waiting:
        number = waiting.pop()
        if number in reached or (not enter and number in closed):
            continue
        reached.add(number)
        if number not in closed:
            waiting += edges[number]
    return reached


# ---- All of them ----

UNSEEN = "taken out unseen"


def declared_to_race(subject: Subject) -> bool:
    """Whether the sanitizers find something in the subject as it is."""
    return any(d.check == "synchronization" for d in subject.known_defects)


def barriers(found: list[Code]) -> Iterator[tuple[Code, int]]:
    """List barriers between several warps: lanes of one run in step here, so that a lone warp misses none."""
    for code in found:
        if code.warps > 1:
            assert finding(code.ptx, code.shots) is None
            yield from ((code, line) for line in code.barriers())


def verdict(code: Code, line: int) -> str:
    """Say what becomes of a code without its barrier."""
    needless = superfluous(code, line)
    found = finding(without(code.ptx, line), code.shots)
    assert not (found and needless), f"a barrier that is missed is no superfluous one: line {line}"
    return found or ("superfluous" if needless else UNSEEN)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", type=Path)
    files = parser.parse_args().kernels or [f for f in builtin_files() if not f.stem.endswith("_torch")]
    wrong = 0
    for file in files:
        for subject in load_subjects(file):
            started, counts = time.monotonic(), Counter()
            if declared_to_race(subject):
                print(f"{subject.name}: declares that it races as it is")
                continue
            for code, line in barriers(codes(subject)):
                said = verdict(code, line)
                counts[said] += 1
                if said == UNSEEN:
                    print(f"  {code.shots[0].kernel}: {UNSEEN}: the barrier of line {line}")
            wrong += counts[UNSEEN]
            print(f"{subject.name}: {dict(counts)}, {time.monotonic() - started:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

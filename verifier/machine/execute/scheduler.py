"""Order of execution within a wave: which lanes run which basic block next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import findings
from verifier.machine.execute.clusters import AT_CLUSTER
from verifier.machine.execute.lane_groups import WARP, Group
from verifier.machine.execute.memory import Fault
from verifier.machine.execute.wave import Wait
from verifier.machine.ptx.basic_blocks import EXIT, is_collective
from verifier.machine.ptx.syntax import Immediate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from verifier.machine.arithmetic.numerics import Array, ArrayOrNumber
    from verifier.machine.execute.wave import Next, Wave
    from verifier.machine.ptx.basic_blocks import Program
    from verifier.machine.ptx.syntax import Instruction

_FAIR = 32  # every so many turns the group that has waited longest runs, so that nobody starves
_SPIN_TURNS = 1000  # turns in which only waiting loops ran, per group, before it is called a livelock
PATIENCE = (
    64  # turns in which only waiting loops ran, per group, before blocks of other waves have their turn
)
_KINDS: dict[str, type[findings.MachineFinding]] = {
    "out_of_bounds": findings.OutOfBounds,
    "misaligned": findings.Misaligned,
    "device_assertion": findings.DeviceAssertion,
    "uninitialised": findings.Uninitialised,
    "shared_race": findings.SharedRace,
    "global_race": findings.GlobalRace,
    "input_written": findings.InputWritten,
    "divergent_barrier": findings.DivergentBarrier,
}


class Scheduler:
    """Runs one wave to its end.

    While all lanes agree, blocks run for everybody. After a split, lanes are grouped by the block they
    stand at: the lowest block first, so that lanes that went ahead wait for the others; loops that wait
    for another thread come last.
    """

    def __init__(
        self,
        program: Program,
        wave: Wave,
        sites: list[Instruction],
        step_limit: int,
        members: dict[int, Callable[[Group], Array]],
    ) -> None:
        """`step_limit`: block executions allowed; `absent`: blocks that wait for a place on the device.

        members: give the member mask of the collective with which a block begins, if a register holds it.
        """
        self.members = members
        self.program, self.wave, self.sites, self.step_limit = program, wave, sites, step_limit
        self.steps = 0
        lanes = wave.blocks * wave.threads
        self.groups: dict[int, Array] = {}
        self.born: dict[int, int] = {}
        self.parked: dict[int, Array] = {}
        self.exited = np.zeros(lanes, dtype=bool)
        self.waiting_at = np.full(lanes, -1, dtype=np.int64)
        self.waiting_for = np.full(lanes, -1, dtype=np.int64)
        self.waits: dict[int, Wait] = {}
        self.idle_turns = 0
        self.restless = 0
        self.progressed = False
        self.absent = 0
        self.all_at: int | None = 0
        self.spins = [block.spins for block in program.blocks]
        if wave.clusters is not None:
            wave.clusters.loops_wait = any(self.spins)

    def run(self, full: list[Callable[[], Next]], part: list[Callable[[Group], Next]]) -> bool:
        """Execute until every lane has left the kernel (true), or for long only waiting loops have run."""
        group: Group = self.wave.everyone
        self.restless, self.progressed = 0, False
        try:
            while self.all_at is not None or self.groups or self.parked or (self.waiting_at >= 0).any():
                if self.all_at is not None:
                    group = self.wave.everyone
                    following = self.together(full, self.all_at)
                    if following is None:
                        return True
                    if type(following) is int:
                        return False
                    self.enter(group, following)
                else:
                    target, lanes = self.choose()
                    if len(lanes) == self.exited.size:
                        self.all_at = target
                        continue
                    group = Group(lanes, self.wave.threads)
                    self.count(target, group)
                    if self.wave.monitors:
                        self.wave.companions.execute(group)
                    self.enter(group, part[target](group))
                    if self.wave.clusters is not None and self.wave.clusters.opened:
                        self.open_clusters()
                    if self.restless > PATIENCE * (1 + len(self.groups)):
                        return False
        except Fault as fault:
            raise self.finding(fault, group) from None
        return True

    def together(self, full: list[Callable[[], Next]], target: int) -> Next | None:
        """Run blocks for all lanes until they split; None when all have left.

        A number says at which block everybody waits, which `all_at` remembers.
        """
        limit, steps, spins = self.step_limit, self.steps, self.spins
        watched, companions = bool(self.wave.monitors), self.wave.companions
        self.all_at = None
        while True:
            steps += 1
            if steps > limit:
                self.steps = steps
                self.count(target, self.wave.everyone)
            if spins[target]:
                self.waited(target, self.wave.everyone.ix)
                if self.restless > PATIENCE:
                    self.all_at, self.steps = target, steps
                    return target
            else:
                self.restless, self.idle_turns, self.progressed = 0, 0, True
            if watched:
                companions.execute(self.wave.everyone)
            following = full[target]()
            if type(following) is not int:
                self.steps = steps
                return following
            if following == EXIT:
                self.steps = steps
                self.exited[:] = True
                if self.wave.clusters is not None:
                    self.leave_cluster(self.wave.everyone.ix)
                return None
            target = following

    def unfinished_blocks(self) -> int:
        """Count the blocks of which a lane has not left the kernel."""
        return int(np.count_nonzero(~self.exited.reshape(-1, self.wave.threads).all(axis=1)))

    def count(self, target: int, group: Group) -> None:
        """Count a step and stop at the limit."""
        self.steps += 1
        if self.steps > self.step_limit:
            first = self.program.blocks[target].instructions[:1]
            raise self.make(
                findings.StepLimit, f"not finished after {self.step_limit} steps", group.ix[:1], first
            )

    def enter(self, group: Group, following: Next) -> None:
        """Put lanes where they go next."""
        if isinstance(following, int):
            self.arrive(following, group.ix)
        elif isinstance(following, Wait):
            hold = self.wait_for_cluster if following.barrier == AT_CLUSTER else self.wait
            hold(group.ix, following)
        else:
            for target, lanes in following:
                self.arrive(target, lanes)

    def arrive(self, target: int, lanes: Array) -> None:
        """Add lanes to the group at a block."""
        if target == EXIT:
            self.exited[lanes] = True
            self.open_barriers(lanes)
            if self.wave.clusters is not None:
                self.leave_cluster(lanes)
            for parked in list(self.parked):
                self.unpark(parked)
            return
        if target in self.parked:
            lanes = np.sort(np.concatenate((self.parked.pop(target), lanes)), kind="stable")
        present = self.groups.get(target)
        if present is None:
            self.born[target] = self.steps
        else:
            # Two sorted runs: a merge.
            lanes = np.sort(np.concatenate((present, lanes)), kind="stable")
        self.groups[target] = lanes

    def unpark(self, target: int) -> None:
        """Let lanes that waited for others of their warp try again."""
        lanes = self.parked.pop(target)
        self.arrive(target, lanes)

    def choose(self) -> tuple[int, Array]:
        """Take the next group: by place normally, by age now and then."""
        while True:
            if not self.groups:
                self.stuck()
            blocks = self.program.blocks
            if len(self.groups) == 1:
                (target,) = self.groups
            elif self.steps % _FAIR == 0:
                target = min(self.groups, key=lambda t: self.born[t])
            else:
                target = min(self.groups, key=lambda t: (blocks[t].spins, t))
            lanes = self.groups.pop(target)
            self.watch_spinning(target, lanes)
            ready = self.complete_warps(target, lanes)
            if ready is None:
                return target, lanes
            if ready.any():
                if not ready.all():
                    self.parked[target] = lanes[~ready]
                return target, lanes[ready]
            self.parked[target] = lanes
            if not self.groups:
                self.stuck()

    def watch_spinning(self, target: int, lanes: Array) -> None:
        """Take note of whether anybody but waiting loops has run."""
        if self.spins[target] and not any(not self.spins[t] for t in self.groups):
            self.waited(target, lanes)
        else:
            self.restless, self.idle_turns, self.progressed = 0, 0, True

    def waited(self, target: int, lanes: Array) -> None:
        """Call it a livelock when for long only waiting loops have run, a deadlock if blocks are missing."""
        self.restless += 1
        self.idle_turns += 1
        if self.idle_turns <= _SPIN_TURNS * (1 + len(self.groups)) * len(self.program.blocks):
            return
        first = self.program.blocks[target].instructions[:1]
        who = f"{len(lanes)} threads wait in a loop for what"
        if self.absent:
            message = (
                f"{who} no block on the device does; {self.absent} blocks of the grid are not resident, "
                "and get no place before others end"
            )
            raise self.make(findings.Deadlock, message, lanes[:1], first)
        raise self.make(findings.StepLimit, f"{who} nobody will do", lanes[:1], first)

    def complete_warps(self, target: int, lanes: Array) -> Array | None:
        """Lanes whose warp is complete, None for all: a collective waits for every lane that it names."""
        instructions = self.program.blocks[target].instructions
        if not instructions or not is_collective(instructions[0]) or len(lanes) == self.exited.size:
            return None
        threads = self.wave.threads
        if len(lanes) % WARP == 0 and threads % WARP == 0:
            rows = lanes.reshape(-1, WARP)
            if not (rows[:, 0] % WARP).any() and (rows[:, -1] - rows[:, 0] == WARP - 1).all():
                return None
        per_block = -(-threads // WARP)
        warp = lanes // threads * per_block + lanes % threads // WARP
        present = np.zeros(self.wave.blocks * per_block, dtype=np.uint32)
        np.bitwise_or.at(present, warp, np.uint32(1) << (lanes % threads % WARP).astype(np.uint32))
        everyone = np.arange(self.exited.size)[~self.exited]
        alive = np.zeros_like(present)
        number = everyone // threads * per_block + everyone % threads // WARP
        np.bitwise_or.at(alive, number, np.uint32(1) << (everyone % threads % WARP).astype(np.uint32))
        named: ArrayOrNumber = np.uint32(self.named(instructions[0]))
        if target in self.members:
            named = self.read_members(target, lanes)
        answer: Array = (alive[warp] & named & ~present[warp]) == 0
        return answer

    def read_members(self, target: int, lanes: Array) -> Array:
        """Member masks that lanes hold in a register."""
        return np.asarray(self.members[target](Group(lanes, self.wave.threads)))

    def named(self, instruction: Instruction) -> int:
        """Member mask of a collective if it is a constant, else the whole warp."""
        last = instruction.operands[-1] if instruction.operands else None
        if instruction.parts[0] in ("ldmatrix", "stmatrix") or not isinstance(last, Immediate):
            return 0xFFFFFFFF
        return last.value & 0xFFFFFFFF

    # Barriers of a thread block.

    def wait(self, lanes: Array, wait: Wait) -> None:
        """Hold lanes at a barrier, and open it if they were the last; whole blocks pass at once."""
        threads = self.wave.threads
        if wait.count is None and len(lanes) % threads == 0:
            rows = lanes.reshape(-1, threads)
            if not (rows[:, 0] % threads).any() and (rows[:, -1] - rows[:, 0] == threads - 1).all():
                for monitor in self.wave.monitors:
                    monitor.barrier(self.wave, lanes)
                self.arrive(wait.target, lanes)
                return
        self.waiting_at[lanes] = wait.target
        self.waiting_for[lanes] = wait.barrier
        self.waits[wait.target] = wait
        self.open_barriers(lanes)

    def open_barriers(self, lanes: Array) -> None:
        """Release the blocks of these lanes all of whose remaining threads wait at one barrier."""
        if not self.waits:  # nobody has ever waited
            return
        threads = self.wave.threads
        blocks = np.unique(lanes // threads)
        exited = self.exited.reshape(-1, threads)[blocks]
        waiting = self.waiting_for.reshape(-1, threads)[blocks]
        places = self.waiting_at.reshape(-1, threads)[blocks]
        for barrier in np.unique(waiting[waiting >= 0]):
            here = waiting == barrier
            full = (here | exited).all(axis=1) & here.any(axis=1)
            for row in np.flatnonzero(here.any(axis=1)):
                count = self.waits[int(places[row][here[row]][0])].count
                if full[row] or (count is not None and here[row].sum() >= count):
                    self.release(int(blocks[row]), np.flatnonzero(here[row]), places[row], exited[row])

    def release(self, block: int, threads: Array, places: Array, exited: Array) -> None:
        """Let the waiting threads of a block go on, after checking that they waited at one place."""
        lanes = block * self.wave.threads + threads
        targets = np.unique(places[threads])
        wait = self.waits[int(targets[0])]
        if len(targets) > 1 and wait.aligned and (wait.count is None or self.mixed_warp(threads, places)):
            lines = ", ".join(str(self.sites[self.waits[int(t)].site].line) for t in targets)
            odd = threads[places[threads] != targets[0]]
            count = f"{len(odd)} of {len(threads)} threads"
            message = f"threads of one block wait at different barriers (PTX lines {lines}; {count})"
            raise self.make(
                findings.DivergentBarrier,
                message,
                lanes[places[threads] != targets[0]][:1],
                [self.sites[wait.site]],
            )
        warps = threads // WARP
        if wait.aligned and np.isin(np.flatnonzero(exited) // WARP, warps).any():
            message = (
                f"{int(exited.sum())} threads of the block have left the kernel, some in a warp that waits"
            )
            raise self.make(findings.DivergentBarrier, message, lanes[:1], [self.sites[wait.site]])
        gone = block * self.wave.threads + np.flatnonzero(exited)
        met = [np.concatenate([lanes, gone]) if wait.count is None else lanes]
        arrived = WARP * len(np.unique(warps))  # as a device counts (PTX ISA, bar)
        if wait.count is not None and arrived > wait.count:  # which of the warps meet is a matter of time
            met = [lanes[warps == warp] for warp in np.unique(warps)]
        elif len(met[0]) < self.wave.threads:
            met = [lanes]
        whole = len(met[0]) == self.wave.threads and wait.count in {None, arrived}
        if not whole and self.wave.slots is not None:
            self.wave.slots.met_in_part(wait.site)
        for monitor in self.wave.monitors:
            for one in met:
                monitor.barrier(self.wave, one)
        self.waiting_at[lanes] = -1
        self.waiting_for[lanes] = -1
        for target in targets:
            self.arrive(int(target), lanes[places[threads] == target])

    def mixed_warp(self, threads: Array, places: Array) -> bool:
        """Whether one warp waits at two places."""
        pairs = {(int(t) // WARP, int(places[t])) for t in threads}
        return len({warp for warp, _ in pairs}) < len(pairs)

    # Barriers of a cluster.

    def wait_for_cluster(self, lanes: Array, wait: Wait) -> None:
        """Hold lanes until all of their cluster have arrived; those for whom they have go on."""
        self.waiting_at[lanes], self.waiting_for[lanes] = wait.target, AT_CLUSTER
        self.waits[wait.target] = wait
        self.open_clusters()

    def open_clusters(self) -> None:
        """Release those that wait for what has come about."""
        clusters = self.wave.clusters
        assert clusters is not None
        clusters.opened = False
        waiting = np.flatnonzero(self.waiting_for == AT_CLUSTER)
        ready = waiting[clusters.ready(waiting)]
        places = self.waiting_at[ready]
        clusters.go_on(ready)
        self.waiting_at[ready] = self.waiting_for[ready] = -1
        for target in np.unique(places):
            self.arrive(int(target), ready[places == target])

    def leave_cluster(self, lanes: Array) -> None:
        """Let no barrier of a cluster wait for lanes that have left, and look for blocks left too early."""
        clusters = self.wave.clusters
        assert clusters is not None
        self.wave.met_in_clusters(clusters.leave(lanes))
        if clusters.opened:
            self.open_clusters()
        block = clusters.deserted()
        if block is not None:
            message = "the block ends while another one of its cluster may still touch its shared memory"
            raise self.make(findings.SharedRace, message, np.array([block * self.wave.threads]), ())

    # Reports.

    def stuck(self) -> None:
        """Nobody can run: say who waits for whom."""
        for target in list(self.parked):
            ready = self.complete_warps(target, self.parked[target])
            if ready is None or ready.any():
                self.unpark(target)
                return
        waiting = np.flatnonzero(self.waiting_at >= 0)
        if self.parked:
            target, lanes = next(iter(self.parked.items()))
            first = self.program.blocks[target].instructions[:1]
            if len(waiting):
                wait = self.waits[int(self.waiting_at[waiting[0]])]
                message = (
                    f"{len(waiting)} threads wait at a barrier, {len(lanes)} others of their block for them "
                    f"at a collective (PTX line {first[0].line})"
                )
                raise self.make(findings.DivergentBarrier, message, waiting[:1], [self.sites[wait.site]])
            message = f"{len(lanes)} lanes wait for lanes of their warp that never come"
            raise self.make(findings.DivergentCollective, message, lanes[:1], first)
        wait = self.waits[int(self.waiting_at[waiting[0]])]
        whole = "cluster" if wait.barrier == AT_CLUSTER else "block"
        message = f"{len(waiting)} threads wait at a barrier that the rest of their {whole} never reaches"
        raise self.make(findings.Deadlock, message, waiting[:1], [self.sites[wait.site]])

    def coordinates(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread of a lane, as the kernel sees them."""
        block, thread = divmod(int(lane), self.wave.threads)
        x, y, _ = self.wave.extents.block
        ids = self.wave.extents.block_ids[block]
        return (int(ids[0]), int(ids[1]), int(ids[2])), (thread % x, thread // x % y, thread // (x * y))

    def make(
        self,
        kind: type[findings.MachineFinding],
        message: str,
        lanes: Array,
        instructions: Iterable[Instruction],
    ) -> findings.MachineFinding:
        """Build a finding about a lane at an instruction."""
        instruction = next(iter(instructions), None)
        block, thread = self.coordinates(lanes[0]) if len(lanes) else (None, None)
        return kind(
            message,
            kernel=self.program.kernel.name,
            block=block,
            thread=thread,
            ptx_line=instruction.line if instruction else None,
            instruction=instruction.text() if instruction else None,
            location=instruction.location if instruction else None,
        )

    def finding(self, fault: Fault, group: Group) -> findings.MachineFinding:
        """Turn a failed access into a finding with its coordinates."""
        lane = group.place_to_lane(fault.place, fault.shape)
        instruction = self.sites[fault.site]
        made = self.make(_KINDS[fault.kind], fault.message, np.array([lane]), [instruction])
        made.tensor = fault.tensor
        return made

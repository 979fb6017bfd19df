"""Emission of barriers: those of a block, the two halves of that of a cluster, and those in shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute import mbarriers
from verifier.machine.execute.clusters import AT_CLUSTER
from verifier.machine.execute.wave import Wait
from verifier.machine.ptx.syntax import Address, Immediate, Instruction, Sink
from verifier.machine.translate.expressions import address_expression

if TYPE_CHECKING:
    from verifier.machine.translate.expressions import Writer


def of_block(writer: Writer, instruction: Instruction, following: int) -> bool:
    """Write `bar.sync`; all lanes together pass at once, a subset has to wait. True if it ends the block."""
    parts, operands = instruction.parts, instruction.operands
    if "arrive" in parts:
        raise writer.refuse(instruction, "a barrier that is not waited for")
    if not operands or not all(isinstance(o, Immediate) for o in operands):
        raise writer.refuse(instruction, "a barrier whose number is computed")
    numbers = [o.value for o in operands if isinstance(o, Immediate)]
    count = numbers[1] if len(numbers) > 1 else None
    aligned = parts[0] == "bar" or "aligned" in parts
    wait = writer.code.constant(Wait(following, numbers[0], count, aligned, writer.site))
    if not writer.part and count is None:
        writer.add("wave.passed(everyone)")
        return False
    writer.add(f"return {wait}")
    return True


def of_cluster(writer: Writer, instruction: Instruction, following: int) -> bool:
    """Write `barrier.cluster.arrive` or `.wait`; only the second can hold lanes, and ends the block."""
    parts = instruction.parts
    if "arrive" in parts:
        if "relaxed" in parts:
            raise writer.refuse(instruction, "which orders no memory")
        writer.add(f"wave.arrive_at_cluster({writer.site}, {writer.group}, {'aligned' in parts})")
        return False
    wait = writer.code.constant(Wait(following, AT_CLUSTER, None, False, writer.site))
    writer.add(f"return wave.wait_for_cluster({writer.group}, {wait})")
    return True


def in_memory(writer: Writer, instruction: Instruction, space: str) -> None:
    """Write `mbarrier`: what is done at a barrier in shared memory."""
    parts, operands = instruction.parts, instruction.operands
    what, guard = parts[1], writer.guard(instruction)
    place = next(n for n, one in enumerate(operands) if isinstance(one, Address))
    where, rest = address_expression(writer, operands[place]), operands[place + 1 :]
    access = f"wave, {writer.site}, {writer.group}, {space!r}, {where}"
    if "relaxed" in parts and what != "expect_tx":
        raise writer.refuse(instruction, "which orders no memory")
    if what == "inval":
        writer.add(f"{writer.code.constant(mbarriers.end)}({access}, {guard})")
    elif what == "init":
        function = writer.code.constant(mbarriers.start)
        writer.add(f"{function}({access}, {writer.source(rest[0], 'u32')}, {guard})")
    elif what in ("arrive", "expect_tx") and "noComplete" not in parts:
        one, none = (writer.code.constant(np.array(number)) for number in (1, 0))
        counts = [one if what == "arrive" else none, none]
        if rest:
            counts["expect_tx" in parts] = writer.source(rest[0], "u32")
        function = writer.code.constant(mbarriers.arrive)
        writer.add(f"s = {function}({access}, ({', '.join(counts)}), {guard})")
        if place and not isinstance(operands[0], Sink):
            _has_no_shadow(writer, instruction)
            writer.assign(operands[0], "u64", "s", guard)
    elif what in ("test_wait", "try_wait"):
        function = writer.code.constant(mbarriers.is_over)
        state = writer.source(rest[0], "u32" if "parity" in parts else "u64")
        writer.add(f"p = {function}({access}, {state}, {guard})")
        _has_no_shadow(writer, instruction)
        writer.assign(operands[0], "pred", "p", guard)
    else:
        raise writer.refuse(instruction)


def _has_no_shadow(writer: Writer, instruction: Instruction) -> None:
    if writer.shadow_emitter is not None:
        writer.shadow_emitter.move(writer, instruction, "mbarrier")

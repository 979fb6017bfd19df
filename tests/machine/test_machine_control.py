"""Control flow, barriers, warps and memory on hand-written PTX."""

# ruff: noqa: E501 - lines of PTX are kept whole

from __future__ import annotations

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel, run

from verifier.machine import LaunchError, Machine, UnsupportedInstruction, launch_ptx
from verifier.machine.execute.findings import (
    Deadlock,
    DeviceAssertion,
    DivergentBarrier,
    Misaligned,
    OutOfBounds,
    StepLimit,
    Uninitialised,
)
from verifier.machine.ptx.parser import parse


def test_lanes_leave_a_loop_at_different_times():
    body = f"""
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    LOOP: setp.ge.u32 %p1, %r1, %t; @%p1 bra DONE;
    add.u32 %r1, %r1, 1; add.u32 %r0, %r0, %r1; bra LOOP;
    DONE: {STORE}"""
    assert run(body).tolist() == [t * (t + 1) // 2 for t in range(64)]


@pytest.mark.parametrize("threads", [32, 48, 64])
def test_collectives_wait_for_lanes_that_took_another_path(threads):
    body = f"""
    and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, 5;
    @%p1 bra EVEN; mov.u32 %r2, 7; add.u32 %r2, %r2, %t;
    EVEN: shfl.sync.bfly.b32 %r0, %r2, 1, 31, -1; {STORE}"""
    values = [5 if t % 2 == 0 else 7 + t for t in range(threads)]
    assert run(body, threads).tolist() == [values[t ^ 1] for t in range(threads)]


@pytest.mark.parametrize(
    ("mode", "b", "c"),
    [
        ("up", 3, 0),
        ("down", 3, 31),
        ("idx", 5, 31),
        ("bfly", 16, 31),
        ("idx", 2, 0x181F),
        ("down", 1, 0x1C1F),
    ],
)
def test_shuffles_follow_the_documented_formula(mode, b, c):
    body = f"shfl.sync.{mode}.b32 %r0|%p1, %t, {b}, {c}, -1; @!%p1 or.b32 %r0, %r0, 1024; {STORE}"
    wanted = []
    for thread in range(64):
        lane, segment, clamp = thread % 32, c >> 8 & 31, c & 31
        highest = lane & segment | clamp & ~segment
        source = {
            "up": lane - b,
            "down": lane + b,
            "bfly": lane ^ b,
            "idx": lane & segment | b & ~segment & 31,
        }[mode]
        valid = source >= highest if mode == "up" else source <= highest
        wanted.append(thread - lane + (source if valid else lane) + (0 if valid else 1024))
    assert run(body).tolist() == wanted


def test_votes_matches_and_reductions():
    body = f"""
    and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 1;
    vote.sync.ballot.b32 %r2, %p1, -1; match.any.sync.b32 %r3, %r1, -1; redux.sync.add.s32 %r4, %t, -1;
    xor.b32 %r0, %r2, %r3; xor.b32 %r0, %r0, %r4; {STORE}"""
    wanted = []
    for t in range(64):
        lanes = range(t - t % 32, t - t % 32 + 32)
        ballot = sum(1 << (s % 32) for s in lanes if s % 4 == 1)
        match = sum(1 << (s % 32) for s in lanes if s % 4 == t % 4)
        wanted.append(ballot ^ match ^ sum(lanes))
    assert (run(body).numpy().view(np.uint32) == np.array(wanted, dtype=np.uint32)).all()


def test_blocks_take_a_spin_lock_in_turn():
    body = """
    setp.ne.u32 %p1, %t, 0; @%p1 bra DONE;
    TRY: atom.global.acq_rel.gpu.cas.b32 %r1, [%base0], 0, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra TRY;
    ld.global.b32 %r2, [%base0+4]; add.u32 %r2, %r2, 3; st.global.b32 [%base0+4], %r2;
    atom.global.acq_rel.gpu.exch.b32 %r3, [%base0], 0;
    DONE:"""
    out = torch.zeros(2, dtype=torch.int32)
    machine = Machine(sanitize=frozenset({"global_races"}))
    assert run(body, 32, out=out, grid=(50,), machine=machine).tolist() == [0, 150]


def test_atomics_of_one_address_happen_one_after_the_other():
    body = "atom.global.add.u32 %r0, [%base0+1024], 1; " + STORE
    out = torch.zeros(257, dtype=torch.int32)
    run(body, 256, out=out)
    assert sorted(out[:256].tolist()) == list(range(256))
    assert out[256] == 256


def test_float_atomics_add_in_lane_order():
    body = "cvt.rn.f32.u32 %f1, %t; mul.f32 %f1, %f1, 0f3DCCCCCD; red.global.add.f32 [%base0], %f1;"
    out = torch.zeros(1, dtype=torch.float32)
    run(body, 100, out=out)
    total = np.float32(0)
    for t in range(100):
        total = np.float32(total + np.float32(np.float32(t) * np.float32(0.1)))
    assert out.item() == total


def test_an_endless_loop_stops_at_the_step_limit():
    with pytest.raises(StepLimit):
        run("LOOP: add.u32 %r0, %r0, 1; bra LOOP;", machine=Machine(step_limit=1000))


def test_waiting_for_what_nobody_does_is_found():
    body = "TRY: atom.global.cas.b32 %r1, [%base0], 1, 2; setp.ne.u32 %p1, %r1, 1; @%p1 bra TRY;"
    with pytest.raises(StepLimit, match="nobody"):
        run("setp.gt.u32 %p2, %t, 3; @%p2 bra OUT;" + body + "OUT:")


def test_barrier_in_a_loop_of_unequal_trip_counts_diverges():
    body = f"""
    mov.u32 %r1, %t;
    LOOP: bar.sync 0; add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 80; @%p1 bra LOOP;
    bar.sync 0; mov.u32 %r0, %r1; {STORE}"""
    with pytest.raises(DivergentBarrier) as caught:
        run(body, 64)
    assert caught.value.ptx_line


def test_half_a_warp_that_left_makes_a_barrier_divergent():
    with pytest.raises(DivergentBarrier, match="left"):
        run("setp.gt.u32 %p1, %t, 40; @%p1 exit; bar.sync 0;")


def test_whole_warps_may_leave_before_a_barrier():
    assert run(f"setp.gt.u32 %p1, %t, 31; @%p1 exit; bar.sync 0; mov.u32 %r0, 1; {STORE}").sum() == 32


def test_barriers_with_different_numbers_deadlock():
    body = "setp.gt.u32 %p1, %t, 31; @%p1 bra B; bar.sync 1; bra C; B: bar.sync 2; C:"
    with pytest.raises(Deadlock):
        run(body)


def test_block_wide_reductions():
    body = (
        f"and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 1; barrier.sync 0; bar.red.popc.u32 %r0, 0, %p1; {STORE}"
    )
    assert run(body, 96).tolist() == [24] * 96


def test_misaligned_and_shared_bounds():
    with pytest.raises(Misaligned):
        run("add.s64 %a0, %base0, 2; ld.global.b32 %r0, [%a0];")
    with pytest.raises(OutOfBounds, match="4096"):
        run("mov.u32 %r1, tile; ld.shared.b32 %r0, [%r1+4094+2];")


def test_asynchronous_copies_arrive_when_they_are_waited_for():
    body = """
    st.global.b32 [%base0], 77; mov.u32 %r1, tile; st.shared.b32 [%r1], 11;
    cp.async.ca.shared.global [%r1], [%base0], 4; cp.async.commit_group;
    ld.shared.b32 %r2, [%r1]; cp.async.wait_group 0; ld.shared.b32 %r3, [%r1];
    st.global.b32 [%base0+4], %r2; st.global.b32 [%base0+8], %r3;"""
    assert run(body, 1, out=torch.zeros(3, dtype=torch.int32)).tolist() == [77, 11, 77]


def test_matrices_come_in_the_documented_layout():
    body = (
        """
    shl.b32 %r1, %t, 4; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1;
    shl.b32 %r3, %t, 3; mov.u32 %r4, 0;
    FILL: add.u32 %r5, %r3, %r4; cvt.u16.u32 %h1, %r5; shl.b32 %r6, %r4, 1; add.u32 %r7, %r2, %r6;
    st.shared.b16 [%r7], %h1; add.u32 %r4, %r4, 1; setp.lt.u32 %p1, %r4, 8; @%p1 bra FILL;
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x1.TRANS.shared.b16 {%r0}, [%r2]; """
        + STORE
    )
    registers = REGISTERS + ".reg .b16 %h<3>;"
    plain = (
        run(body.replace("x1.TRANS.", "x1."), 32, registers=registers).numpy().view(np.uint16).reshape(32, 2)
    )
    assert plain.tolist() == [[8 * (t // 4) + 2 * (t % 4) + k for k in range(2)] for t in range(32)]
    turned = (
        run(body.replace("x1.TRANS.", "x1.trans."), 32, registers=registers)
        .numpy()
        .view(np.uint16)
        .reshape(32, 2)
    )
    assert turned.tolist() == [[8 * (2 * (t % 4) + k) + t // 4 for k in range(2)] for t in range(32)]


def test_calls_local_memory_and_generic_addresses():
    text = """
.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 result) twice(.param .b32 value)
{ .reg .b32 %v; ld.param.b32 %v, [value]; add.u32 %v, %v, %v; st.param.b32 [result], %v; ret; }
.visible .entry k(.param .u64 p0)
{ .local .align 4 .b8 frame[8]; .reg .b64 %rd<9>; .reg .b32 %r<9>;
  ld.param.u64 %rd1, [p0]; mov.u32 %r1, %tid.x; mov.u64 %rd2, frame; cvta.local.u64 %rd3, %rd2;
  st.u32 [%rd3+4], %r1; ld.local.u32 %r2, [%rd2+4];
  { .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), twice, (a); ld.param.b32 %r3, [b]; }
  mad.wide.u32 %rd4, %r1, 4, %rd1; st.u32 [%rd4], %r3; ret; }
"""
    out = torch.zeros(40, dtype=torch.int32)
    launch_ptx(text, "k", (1,), (40,), 0, [out])
    assert out.tolist() == [2 * t for t in range(40)]


def test_guards_merge_with_the_old_value():
    assert run(
        f"mov.u32 %r0, 9; setp.lt.u32 %p1, %t, 5; @%p1 mov.u32 %r0, %t; @!%p1 add.u32 %r0, %r0, 1; {STORE}", 8
    ).tolist() == [0, 1, 2, 3, 4, 10, 10, 10]


def test_carries_go_through_the_condition_code():
    body = f"mov.u32 %r1, 0xffffffff; add.cc.u32 %r2, %r1, %t; addc.u32 %r0, 0, 0; {STORE}"
    assert run(body, 4).tolist() == [0, 1, 1, 1]


def test_unknown_instructions_are_refused_by_name():
    with pytest.raises(UnsupportedInstruction) as caught:
        run("wgmma.fence.sync.aligned;")
    assert caught.value.opcode == "wgmma.fence.sync.aligned"
    assert caught.value.kernel == "k"
    assert caught.value.line > 5


def test_traps_and_launches_that_no_device_accepts():
    with pytest.raises(DeviceAssertion):
        run("setp.eq.u32 %p1, %t, 3; @%p1 trap;")
    with pytest.raises(LaunchError, match="2048"):
        run("mov.u32 %r0, 1;", 2048)
    with pytest.raises(LaunchError, match="at most 64 threads are possible along z"):
        launch_ptx(kernel("", 0), "k", (1,), (1, 1, 128), 0, [])
    with pytest.raises(LaunchError, match="arguments"):
        launch_ptx(kernel("", 2), "k", (1,), (1,), 0, [None])


def test_large_storages_are_mapped_without_being_touched():
    big = torch.empty(1 << 33, dtype=torch.uint8)  # 8 GiB of address space, committed page by page
    body = "mov.u64 %a0, 8589934588; add.s64 %a0, %a0, %base0; st.global.b32 [%a0], 5;"
    run(body, 1, out=big)
    assert big[-4:].tolist() == [5, 0, 0, 0]


def test_registers_of_inline_assembly_stay_in_their_scope():
    body = f"mov.u32 %r0, 1; {{ .reg .u32 x; mov.u32 x, 5; add.u32 %r0, %r0, x; }} {{ .reg .u32 x; mov.u32 x, 7; add.u32 %r0, %r0, x; }} {STORE}"
    assert run(body, 2).tolist() == [13, 13]


def test_inlining_chains_lead_to_the_users_line():
    text = """
.version 9.0
.target sm_90
.address_size 64
.visible .entry k() { .reg .b32 %r<3>;
.loc 1 54 10
.loc 2 314 12, function_name $L1, inlined_at 1 54 10
mov.b32 %r1, 1;
.loc 2 287 12, function_name $L1, inlined_at 2 314 12
mov.b32 %r1, 2;
.loc 1 0 5
mov.b32 %r1, 3;
.loc 2 263 15 // standard.py:263:15 @[ standard.py:293:36 @[ user.py:55:16 ] ]
mov.b32 %r1, 4;
ret; }
.file 1 "/src/user.py"
.file 2 "/lib/standard.py"
"""
    body = parse(text).functions["k"].body
    assert [str(i.location) for i in body[:4]] == ["/src/user.py:54"] * 3 + ["/src/user.py:55"]
    assert body[1].location.inlined == (("/lib/standard.py", 287), ("/lib/standard.py", 314))


def test_inline_assembly_stands_in_the_line_of_its_call():
    """LLVM counts on from that line; Triton loads vectors so: five lines, the last of which is the load."""
    text = """
.version 9.0
.target sm_90
.address_size 64
.visible .entry k() { .reg .b32 %r<3>;
.loc 1 314 12, function_name $L1, inlined_at 1 44 10
// begin inline asm
.loc 1 314 12
mov.u32 %r1, 1;
.loc 1 315 12
mov.u32 %r2, 2;
// end inline asm
mov.u32 %r1, 3;
.loc 1 45 5
ret; }
.file 1 "/src/user.py"
"""
    body = parse(text).functions["k"].body
    assert [str(i.location) for i in body] == ["/src/user.py:44"] * 3 + ["/src/user.py:45"]


def test_unwritten_registers_and_shared_words_are_reported_where_they_take_effect():
    machine = Machine(sanitize=frozenset({"uninitialised"}))
    quiet = "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1; add.u32 %r3, %r1, %r2; mov.u32 %r0, 4; " + STORE
    assert run(quiet, machine=machine).tolist() == [4] * 64
    for body, word in [
        ("add.u32 %r0, %r9, 1; " + STORE, "value stored"),
        ("setp.eq.u32 %p1, %r9, 1; @%p1 bra OUT; OUT:", "branch"),
        ("cvt.u64.u32 %a0, %r9; add.s64 %a0, %a0, %base0; ld.global.b32 %r0, [%a0];", "address"),
        ("mov.u32 %r1, tile; ld.shared.b32 %r0, [%r1+8]; " + STORE, "value stored"),
        ("setp.gt.u32 %p1, %t, 3; @%p1 mov.u32 %r0, 2; " + STORE, "value stored"),
    ]:
        with pytest.raises(Uninitialised, match=word):
            run(body, machine=machine)


def test_an_undefined_half_of_a_packed_register_may_be_dropped():
    machine = Machine(sanitize=frozenset({"uninitialised"}))
    registers = REGISTERS + ".reg .b64 %q<4>;"
    body = "mov.b64 %q1, {%t, %r9}; mov.b64 {%r0, _}, %q1; " + STORE
    assert run(body, machine=machine, registers=registers).tolist() == list(range(64))
    body = "mov.b64 %q1, {%t, %r9}; mov.b64 {_, %r0}, %q1; " + STORE
    with pytest.raises(Uninitialised):
        run(body, machine=machine, registers=registers)


def test_registers_read_before_they_are_written_hold_the_poison_in_every_wave_and_launch():
    poison = int(np.uint32(0xA5A5A5A5).view(np.int32))
    for threads in (32, 32, 64):
        found = run(f"{STORE} mov.u32 %r0, 7;", threads, machine=Machine(lanes_per_wave=threads), grid=(3,))
        assert found[:threads].tolist() == [poison] * threads


# Odd lanes go another way and come late; the mask names all lanes, or those of one parity.
LATE = """
    and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; mov.u32 %r2, %t; MASK
    @%p1 bra MEET; mov.u32 %r3, 0;
    WAIT: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 9; @%p2 bra WAIT; add.u32 %r2, %r2, 100;
    MEET: shfl.sync.bfly.b32 %r0, %r2, DISTANCE, 31, %r4; """


@pytest.mark.parametrize("threads", [32, 40])
def test_a_shuffle_waits_for_the_lanes_that_a_mask_in_a_register_names(threads):
    values = [t + 100 * (t % 2) for t in range(64)]
    everyone = LATE.replace("MASK", "mov.u32 %r4, -1;").replace("DISTANCE", "1") + STORE
    found = run(everyone, threads).tolist()
    assert found[:32] == [values[t ^ 1] for t in range(32)]
    parity = "mov.u32 %r5, 0x55555555; shl.b32 %r4, %r5, %r1;"
    found = run(LATE.replace("MASK", parity).replace("DISTANCE", "2") + STORE, threads).tolist()
    assert found[:32] == [values[t ^ 2] for t in range(32)]


def test_a_mask_in_a_register_that_names_a_lane_which_never_comes_is_found():
    body = """
    mov.u32 %r4, -1; and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra MEET; bar.sync 1; bra OUT;
    MEET: shfl.sync.bfly.b32 %r0, %t, 2, 31, %r4; OUT:"""
    with pytest.raises(DivergentBarrier, match="16 others of their block for them at a collective"):
        run(body, 32)

"""What is the same in all blocks is kept once, and what lanes that are off would touch is not touched."""

# ruff: noqa: E501 - lines of PTX are kept whole

from __future__ import annotations

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, kernel

from verifier.machine import launch_ptx, session
from verifier.machine.execute.findings import OutOfBounds

BLOCKS, THREADS = 3, 64
OWN = "mov.u32 %r9, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r9, %r9, %r8, %t; mul.wide.u32 %a0, %r9, 4; add.s64 %a0, %a0, %base0;"
LANE = [t % 32 for t in range(THREADS)]


def launched(body, *tensors, threads=THREADS, blocks=BLOCKS, **settings):
    result = torch.zeros(blocks * threads, dtype=torch.int32)
    with session(**settings) as opened:
        launch_ptx(
            kernel(body, 1 + len(tensors), registers=REGISTERS),
            "k",
            (blocks,),
            (threads,),
            0,
            [result, *tensors],
        )
    del opened
    return result.reshape(blocks, threads)


EXCHANGED = [
    ("xor.b32 %r1, %t, 3; shfl.sync.idx.b32 %r0, %t, %r1, 31, -1;", [t ^ 3 for t in range(64)]),
    (
        "xor.b32 %r1, %t, 3; shfl.sync.idx.b32 %r0|%p1, %t, %r1, 31, -1; selp.b32 %r0, %r0, 0, %p1;",
        [t ^ 3 for t in range(64)],
    ),
    ("mov.u32 %r1, 5; shfl.sync.idx.b32 %r0|%p1, %r1, %t, 31, -1;", [5] * 64),
    (
        "shfl.sync.up.b32 %r0|%p1, %t, 1, 0, -1; selp.b32 %r0, %r0, 77, %p1;",
        [t - 1 if t % 32 else 77 for t in range(64)],
    ),
    ("setp.lt.u32 %p1, %t, 5; vote.sync.ballot.b32 %r0, %p1, -1;", [31] * 32 + [0] * 32),
    (
        "setp.lt.u32 %p1, %t, 5; vote.sync.any.pred %p2, %p1, -1; selp.b32 %r0, 1, 0, %p2;",
        [1] * 32 + [0] * 32,
    ),
    ("and.b32 %r1, %t, 1; match.sync.any.b32 %r0, %r1, -1;", [0x55555555, -0x55555556] * 32),
    ("redux.sync.add.u32 %r0, %t, -1;", [496] * 32 + [496 + 1024] * 32),
    (
        "mov.u32 %r1, -1; elect.sync %r2|%p1, %r1; selp.b32 %r0, 9, %r2, %p1;",
        [9 if lane == 0 else 0 for lane in LANE],
    ),
    ("mov.u32 %r1, %ctaid.x; xor.b32 %r2, %t, 1; shfl.sync.idx.b32 %r0, %r1, %r2, 31, -1;", None),
]
# Half a warp has other sums and fellows than a whole one.
SHORT = [case for case in EXCHANGED if not case[0].startswith(("redux", "and"))]


@pytest.mark.parametrize(
    ("threads", "collective", "expected"),
    [*((THREADS, *case) for case in EXCHANGED), *((48, *case) for case in SHORT)],
)
def test_warps_exchange_what_is_the_same_in_all_blocks(threads, collective, expected):
    body = f"{collective} {OWN} st.global.b32 [%a0], %r0;"
    found = launched(body, threads=threads).tolist()
    for block, row in enumerate(found):
        assert row == ([block] * threads if expected is None else expected[:threads])


def test_slots_move_with_values_that_are_the_same_in_all_blocks():
    """Of float16 numbers that were rounded: the shadows hold what was lost."""
    body = """
    ld.param.u64 %base1, [p1]; mad.lo.s64 %a1, %wide, 4, %base1; ld.global.b32 %f1, [%a1];
    mul.rn.f32 %f1, %f1, 0f3DCCCCCD; xor.b32 %r1, %t, 7; shfl.sync.idx.b32 %f2, %f1, %r1, 31, -1;
    mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, %t; mul.wide.u32 %a0, %r9, 4; add.s64 %a0, %a0, %base0;
    st.global.b32 [%a0], %f2;"""
    values, result = torch.arange(1.0, 65.0), torch.zeros(BLOCKS, THREADS)
    with session(arithmetic="lifted") as opened:
        launch_ptx(kernel(body, 2, registers=REGISTERS), "k", (BLOCKS,), (THREADS,), 0, [result, values])
        shadows = opened.slots.get(result)
    factor = float(np.float32(0.1))
    moved = values.numpy().astype(np.float64)[np.arange(THREADS) ^ 7] * factor
    assert np.array_equal(shadows, np.broadcast_to(moved, shadows.shape))


# -- lanes that are off ------------------------------------------------------------------------

GUARDED = """
    ld.param.u64 %base1, [p1]; mad.lo.s64 %a1, %wide, 4, %base1; mov.u32 %r0, -1;
    setp.ge.u32 %p1, %t, 5; @%p1 bra DONE;
    {load}
    DONE:"""
BY_BLOCK = """
    ld.param.u64 %base1, [p1]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %a1, %r1, 4; add.s64 %a1, %a1, %base1;
    mov.u32 %r0, -1; setp.ge.u32 %p1, %r1, 2; setp.ge.or.u32 %p1, %t, 5, %p1; @%p1 bra DONE;
    {load}
    DONE:"""
LOADS = {
    "nc": "ld.global.nc.b32 %r2, [%a1]; mov.u32 %r0, %r2;",
    "nc_vector": "mad.lo.s64 %a1, %wide, 4, %a1; ld.global.nc.v2.b32 {%r2, %r3}, [%a1]; mov.u32 %r0, %r2;",
    "generic_nc_in_a_block": "setp.lt.u32 %p2, %t, 4; @%p2 ld.global.nc.b32 %r2, [%a1]; selp.b32 %r0, %r2, 4, %p2;",
    "plain": "ld.global.b32 %r2, [%a1]; mov.u32 %r0, %r2;",
    "volatile": "ld.volatile.global.b32 %r2, [%a1]; mov.u32 %r0, %r2;",
    "atomic": "atom.global.add.u32 %r2, [%a1], 0; mov.u32 %r0, %r2;",
    "copied": "mul.lo.u32 %r4, %t, 4; mov.u32 %r5, tile; add.u32 %r4, %r4, %r5; cp.async.ca.shared.global [%r4], [%a1], 4; "
    "cp.async.wait_all; ld.shared.b32 %r2, [%r4]; mov.u32 %r0, %r2;",
}


@pytest.mark.parametrize("name", LOADS)
def test_lanes_that_are_off_load_nothing(name):
    room = 10 if name == "nc_vector" else 5
    body = GUARDED.format(load=LOADS[name]) + f"{OWN} st.global.b32 [%a0], %r0;"
    found = launched(body, torch.arange(room, dtype=torch.int32))
    step = 2 if name == "nc_vector" else 1
    last = -1 if name != "generic_nc_in_a_block" else 4
    assert (
        found.tolist() == [[0, step, 2 * step, 3 * step, 4 * step if last < 0 else last, *[-1] * 59]] * BLOCKS
    )


@pytest.mark.parametrize("name", [name for name in LOADS if name != "nc_vector"])
def test_blocks_that_are_off_load_nothing(name):
    body = BY_BLOCK.format(load=LOADS[name]) + f"{OWN} st.global.b32 [%a0], %r0;"
    found = launched(body, torch.arange(2, dtype=torch.int32))
    rows = [[b] * 4 + [b if name != "generic_nc_in_a_block" else 4] + [-1] * 59 for b in range(2)]
    assert found.tolist() == [*rows, [-1] * 64]


@pytest.mark.parametrize("name", LOADS)
def test_a_lane_that_is_on_and_reads_beyond_is_found(name):
    room = 8 if name == "nc_vector" else 3
    with pytest.raises(OutOfBounds) as caught:
        launched(GUARDED.format(load=LOADS[name]), torch.arange(room, dtype=torch.int32))
    assert caught.value.thread == (4 if name == "nc_vector" else 3, 0, 0)


def test_what_all_lanes_load_from_one_address_is_loaded_once_a_wave():
    """A null pointer that no lane uses is no access; one address stands for every lane that is on."""
    body = f"""
    ld.param.u64 %base1, [p1]; mov.u32 %r0, 3; setp.eq.s64 %p1, %base1, 0; @%p1 bra DONE;
    setp.ge.u32 %p2, %t, 5; @%p2 bra DONE; ld.global.nc.b32 %r2, [%base1]; mov.u32 %r0, %r2;
    DONE: {OWN} st.global.b32 [%a0], %r0;"""
    assert launched(body, None).tolist() == [[3] * 64] * BLOCKS
    found = launched(body, torch.tensor([11], dtype=torch.int32))
    assert found.tolist() == [[11] * 5 + [3] * 59] * BLOCKS

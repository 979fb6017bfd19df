"""Many blocks: which ones are resident, what waves share, and what a device has no room for."""

from __future__ import annotations

import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel, run

from verifier.machine import LaunchError, Machine, launch_ptx
from verifier.machine.execute.findings import Deadlock, StepLimit


def test_launches_that_share_a_prepared_wave_see_their_own_arguments_and_grids():
    body = f"mov.u32 %r1, %nctaid.x; ld.global.b32 %r2, [%base0]; add.u32 %r0, %r1, %r2; bar.sync 0; {STORE}"
    for blocks, start in ((1, 5), (1, 6), (2, 5)):
        out = torch.full((32,), start, dtype=torch.int32)
        run(body, 32, out=out, grid=(blocks,), machine=Machine(lanes_per_wave=32))
        first = start + blocks
        assert out[1].item() in (first, first + blocks)
        assert out[0].item() == first + (blocks - 1) * blocks


WAIT_FOR_LAST = """
    setp.ne.u32 %p1, %t, 0; @%p1 bra DONE; mov.u32 %r1, %ctaid.x;
    atom.global.add.acq_rel.gpu.u32 %r3, [%base0], 1;
    TRY: ld.acquire.gpu.global.b32 %r2, [%base0]; setp.lt.u32 %p2, %r2, COUNT; @%p2 bra TRY;
    DONE: bar.sync 0; atom.global.add.u32 %r3, [%base0+4], 1;"""


@pytest.mark.parametrize("threads", [1, 32])
@pytest.mark.parametrize("sanitize", [(), ("shared_races", "global_races")])
def test_blocks_wait_for_blocks_of_later_waves_that_fit_on_the_device(threads, sanitize):
    machine = Machine(lanes_per_wave=2 * threads, multiprocessors=1, sanitize=frozenset(sanitize))
    out = torch.zeros(2, dtype=torch.int32)
    run(WAIT_FOR_LAST.replace("COUNT", "20"), threads, out=out, grid=(20,), machine=machine)
    assert out.tolist() == [20, 20 * threads]


@pytest.mark.parametrize("threads", [1, 32])
def test_waiting_for_a_block_that_is_not_resident_is_a_deadlock(threads):
    # sm_90 holds 32 blocks on its one multiprocessor here: the 33rd never comes.
    machine = Machine(lanes_per_wave=8 * threads, multiprocessors=1)
    with pytest.raises(Deadlock, match="1 blocks of the grid are not resident"):
        run(
            WAIT_FOR_LAST.replace("COUNT", "33"),
            threads,
            out=torch.zeros(2, dtype=torch.int32),
            grid=(33,),
            machine=machine,
        )
    out = torch.zeros(2, dtype=torch.int32)
    run(
        WAIT_FOR_LAST.replace("COUNT", "33"), threads, out=out, grid=(33,), machine=Machine(multiprocessors=2)
    )
    assert out[0] == 33


@pytest.mark.parametrize("threads", [1, 32])
def test_waiting_for_more_blocks_than_there_are_is_found_across_waves(threads):
    machine = Machine(lanes_per_wave=2 * threads)
    with pytest.raises(StepLimit, match="nobody"):
        run(
            WAIT_FOR_LAST.replace("COUNT", "9"),
            threads,
            out=torch.zeros(2, dtype=torch.int32),
            grid=(8,),
            machine=machine,
        )


@pytest.mark.parametrize(
    ("architecture", "threads", "shared", "blocks"),
    [
        (90, 128, 0, 16),
        (90, 1024, 0, 2),
        (90, 32, 0, 32),
        (80, 128, 100 << 10, 1),
        (86, 512, 0, 3),
        (90, 33, 40 << 10, 5),
    ],
)
def test_as_many_blocks_are_resident_as_threads_and_shared_memory_allow(
    architecture, threads, shared, blocks
):
    machine = Machine(architecture=architecture, multiprocessors=7)
    assert machine.resident_blocks(threads, shared) == 7 * blocks


def still_works():
    return run(f"mov.u32 %r0, 4; {STORE}", 32).tolist() == [4] * 32


@pytest.mark.parametrize("seed", [None, 3])
def test_a_huge_grid_ends_at_the_step_limit(seed):
    body = "mov.u32 %r1, 1;"
    with pytest.raises(StepLimit):
        run(
            body,
            1,
            grid=((1 << 31) - 1,),
            out=torch.zeros(1),
            machine=Machine(step_limit=300, schedule_seed=seed),
        )
    assert still_works()


def test_a_random_order_of_a_huge_grid_serves_every_block_once(monkeypatch):
    from verifier.machine.execute import block_order

    monkeypatch.setattr(block_order, "_SHUFFLED", 8)
    for total in (9, 16, 30):
        orders = {tuple(block_order.block_numbers(total, seed)(0, total).tolist()) for seed in range(8)}
        assert all(sorted(order) == list(range(total)) for order in orders)
        assert len(orders) > 1


def test_more_shared_or_local_memory_than_a_device_has_is_refused():
    with pytest.raises(LaunchError, match="shared memory"):
        shared = ".reg .b32 %r<3>; .shared .align 4 .b8 big[1073741824];"
        launch_ptx(kernel("mov.u32 %r1, big;", 1, registers=shared), "k", (1,), (32,), 0, [None])
    frame = ".reg .b32 %r<3>; .local .align 4 .b8 frame[1073741824];"
    with pytest.raises(LaunchError, match="local memory"):
        launch_ptx(kernel("mov.u32 %r1, frame;", 1, registers=frame), "k", (1,), (32,), 0, [None])
    assert still_works()


def test_large_frames_run_in_waves_that_fit_into_memory():
    registers = REGISTERS + ".local .align 4 .b8 frame[400000];"
    body = f"mov.u32 %r1, frame; st.local.b32 [%r1+399996], %t; ld.local.b32 %r0, [%r1+399996]; {STORE}"
    out = torch.zeros(64, dtype=torch.int32)
    run(body, 64, registers=registers, out=out, grid=(24,))
    assert out.tolist() == list(range(64))


def test_an_allocation_that_fails_in_the_wrapper_leaves_the_session_usable():
    from verifier import machine

    with machine.session():
        with pytest.raises(RuntimeError, match="alloc"):
            torch.empty(1 << 55, device="cuda")
        assert still_works()
    assert still_works()

"""Thread-block clusters: registers, shared memory of other blocks, their barrier, who breaks its rules."""

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel

from verifier.machine import Machine, launch_ptx
from verifier.machine.execute.findings import (
    Deadlock,
    DivergentBarrier,
    GlobalRace,
    LaunchError,
    OutOfBounds,
    SharedRace,
    UnsupportedFeature,
)

SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RACES = frozenset({"shared_races", "global_races"})
ME = """
    mov.u32 %r9, %ctaid.x; mov.u32 %r8, %ntid.x; mad.lo.u32 %r9, %r9, %r8, %t; cvt.u64.u32 %wide, %r9;
    mov.u32 %r1, tile; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2; mov.u32 %r7, %cluster_ctarank;"""
"""Number of the thread in the grid, address of its word in shared memory, and rank of its block."""
OUT = STORE


def run(body, *, threads=32, grid=(4, 1, 1), cluster=(2, 1, 1), machine=None, out=None, registers=REGISTERS):
    """Run a body in clusters; return what each thread of the grid has stored, block by block."""
    result = torch.zeros(threads * int(np.prod(grid)), dtype=torch.int32) if out is None else out
    directive = f".explicitcluster\n.reqnctapercluster {', '.join(map(str, cluster))}"
    text = kernel(body, 1, registers=registers).replace("(.param .u64 p0)", f"(.param .u64 p0)\n{directive}")
    launch_ptx(text, "k", grid, (threads,), 0, [result], machine=machine or Machine())
    return result if out is not None else result.reshape(-1, threads).tolist()


def exchange(between, *, store="st.shared.b32 [%r1], %r9;"):
    """Every thread reads what its place in the other block of the cluster has stored."""
    return f"""{ME} {store} {between} xor.b32 %r3, %r7, 1; mapa.shared::cluster.u32 %r4, %r1, %r3;
    ld.shared::cluster.b32 %r0, [%r4]; {SYNC} {OUT}"""


@pytest.mark.parametrize("watched", [frozenset(), RACES, frozenset({"uninitialised"})])
@pytest.mark.parametrize("seed", [None, 7])
def test_blocks_of_a_cluster_read_each_others_shared_memory(watched, seed):
    machine = Machine(sanitize=watched, schedule_seed=seed)
    found = run(exchange(SYNC), machine=machine, grid=(300, 1, 1))
    assert found == [[32 * (block ^ 1) + t for t in range(32)] for block in range(300)]


def test_each_block_knows_its_cluster_and_its_place_there():
    """In a grid of 4 x 6 x 2 blocks, in clusters of 2 x 3 x 1."""
    names = [f"{word}.{axis}" for word in ("clusterid", "nclusterid", "cluster_ctaid") for axis in "xyz"]
    names += ["cluster_ctarank", "cluster_nctarank", "cluster_nctaid.y", "is_explicit_cluster"]
    place = """mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z;
    mad.lo.u32 %r2, %r3, 6, %r2; mad.lo.u32 %r1, %r2, 4, %r1; cvt.u64.u32 %wide, %r1;"""
    for name in names:
        seen = run(
            f"{place} mov.u32 %r0, %{name}; {OUT}", threads=1, grid=(4, 6, 2), cluster=(2, 3, 1),
            machine=Machine(schedule_seed=3),
        )  # fmt: skip
        word, _, axis = name.partition(".")
        for number, (value,) in enumerate(seen):
            block = number % 4, number // 4 % 6, number // 24
            size, grid = (2, 3, 1), (4, 6, 2)
            along = "xyz".find(axis)
            inside = [b % s for b, s in zip(block, size, strict=True)]
            expected = {
                "clusterid": block[along] // size[along],
                "nclusterid": grid[along] // size[along],
                "cluster_ctaid": inside[along],
                "cluster_ctarank": inside[0] + 2 * inside[1],
                "cluster_nctarank": 6,
                "cluster_nctaid": size[along],
                "is_explicit_cluster": 1,
            }[word]
            assert value == expected, (name, block)


def test_a_kernel_without_clusters_is_one_of_clusters_of_one_block():
    body = f"""{ME} mapa.shared::cluster.u32 %r4, %r1, 0; st.shared::cluster.b32 [%r4], 5; {SYNC}
    ld.shared.b32 %r0, [%r1]; {OUT}"""
    result = torch.zeros(64, dtype=torch.int32)
    launch_ptx(kernel(body, 1, registers=REGISTERS), "k", (2,), (32,), 0, [result], machine=Machine())
    assert result.tolist() == [5] * 64


WRITES = f"""{ME} mov.u32 %r5, 100; st.shared.b32 [%r1], %r5; {SYNC}
    xor.b32 %r3, %r7, 1; mapa.shared::cluster.u32 %r4, %r1, %r3; DO {SYNC} ld.shared.b32 %r0, [%r1]; {OUT}"""
WIDE = REGISTERS + ".reg .b64 %g<4>;"


@pytest.mark.parametrize(
    "instructions",
    [
        "atom.shared::cluster.add.u32 %r6, [%r4], %r7;",
        "ld.shared::cluster.b32 %r6, [%r4]; add.u32 %r6, %r6, %r7; st.shared::cluster.b32 [%r4], %r6;",
        """cvt.u64.u32 %g0, %r1; cvta.shared.u64 %g1, %g0; mapa.u64 %g2, %g1, %r3;
        ld.b32 %r6, [%g2]; add.u32 %r6, %r6, %r7; st.b32 [%g2], %r6;""",
        "@%p1 st.shared::cluster.b32 [%r4], 0; red.shared::cluster.add.u32 [%r4], %r7;",
    ],
    ids=["atomic", "load_and_store", "generic", "guarded"],
)
def test_they_change_it_too(instructions):
    body = WRITES.replace("DO", f"setp.gt.u32 %p1, %t, 99; {instructions}")
    for watched in (frozenset(), RACES):
        found = run(body, registers=WIDE, machine=Machine(sanitize=watched))
        assert found == [[100 + (1 - block % 2)] * 32 for block in range(4)]


def test_waves_hold_whole_clusters():
    """Even where one block would fill a wave, and a device holds fewer blocks than a cluster."""
    machine = Machine(lanes_per_wave=96, multiprocessors=1)
    found = run(exchange(SYNC), machine=machine, grid=(12, 1, 1), cluster=(4, 1, 1))
    assert found == [[32 * (block ^ 1) + t for t in range(32)] for block in range(12)]


# -- the barrier -------------------------------------------------------------------------------


def test_lanes_that_part_meet_at_the_barrier_of_their_cluster():
    """Warps of one block come by different ways, one after a loop; nobody waits for a block that has left."""
    body = f"""{ME} setp.lt.u32 %p1, %t, 32; @%p1 bra FIRST; mov.u32 %r3, 0;
    TURN: add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 9; @%p2 bra TURN;
    st.shared.b32 [%r1], %r3; barrier.cluster.arrive; barrier.cluster.wait; bra NEXT;
    FIRST: st.shared.b32 [%r1], 7; barrier.cluster.arrive; barrier.cluster.wait;
    NEXT: xor.b32 %r3, %r7, 1; mapa.shared::cluster.u32 %r4, %r1, %r3; ld.shared::cluster.b32 %r0, [%r4];
    barrier.cluster.arrive; barrier.cluster.wait; {OUT}"""
    assert run(body, threads=64) == [[7] * 32 + [9] * 32] * 4
    leaves = f"""{ME} setp.eq.u32 %p1, %r7, 1; @%p1 bra LEFT; {SYNC} mov.u32 %r0, 3; {OUT} LEFT:"""
    assert run(leaves) == [[3] * 32, [0] * 32] * 2


def test_who_breaks_the_rules_of_the_barrier_is_named():
    again = f"{ME} barrier.cluster.arrive; barrier.cluster.arrive; barrier.cluster.wait;"
    with pytest.raises(DivergentBarrier, match="again, before it has waited"):
        run(again)
    with pytest.raises(Deadlock, match="the rest of their cluster never reaches"):
        run(f"{ME} barrier.cluster.wait;")
    half = f"{ME} setp.eq.u32 %p1, %r7, 0; @%p1 barrier.cluster.arrive; barrier.cluster.wait;"
    with pytest.raises(Deadlock, match="the rest of their cluster never reaches"):
        run(half)
    parted = f"{ME} setp.lt.u32 %p1, %t, 9; @%p1 bra A; {SYNC} bra B; A: {SYNC} B: mov.u32 %r0, 1;"
    with pytest.raises(DivergentBarrier, match="lanes of one warp arrive"):
        run(parted)
    run(parted.replace(".aligned", ""))


# -- whose memory, and when --------------------------------------------------------------------


def test_a_block_that_the_cluster_does_not_have_is_out_of_bounds():
    for rank in ("2", "0xffffffff"):
        body = f"{ME} {SYNC} mapa.shared::cluster.u32 %r4, %r1, {rank}; ld.shared::cluster.b32 %r0, [%r4];"
        with pytest.raises(OutOfBounds, match="of its cluster, which has 2"):
            run(body)
    plain = f"{ME} mapa.shared::cluster.u32 %r4, %r1, 1; ld.shared.b32 %r0, [%r4];"
    with pytest.raises(OutOfBounds, match="shared memory"):
        run(plain)


def test_shared_memory_is_touched_only_while_its_block_is_there():
    with pytest.raises(SharedRace, match="may not have begun"):
        run(exchange(""))
    early = exchange(SYNC).rpartition(SYNC)
    with pytest.raises(SharedRace, match="ends while another one of its cluster may still touch"):
        run(early[0] + early[2])
    # One block reads after the other has arrived for the last time.
    late = f"""{ME} {SYNC} barrier.cluster.arrive.aligned; xor.b32 %r3, %r7, 1;
    mapa.shared::cluster.u32 %r4, %r1, %r3; ld.shared::cluster.b32 %r0, [%r4];
    barrier.cluster.wait.aligned; {OUT}"""
    with pytest.raises(SharedRace, match="ends while another one"):
        run(late)


# -- races -------------------------------------------------------------------------------------

TURNS = f"""{ME} xor.b32 %r3, %r7, 1; mapa.shared::cluster.u32 %r4, %r1, %r3; {SYNC}
    st.shared::cluster.b32 [%r4], %r9; A ld.shared.b32 %r0, [%r1]; B st.shared::cluster.b32 [%r4], %r0;
    C {OUT} {SYNC}"""


@pytest.mark.parametrize(
    ("missing", "races"), [("", False), ("A", True), ("B", True), ("C", False)], ids=["none", "A", "B", "C"]
)
def test_what_blocks_hand_each_other_without_the_barrier_races(missing, races):
    body = TURNS
    for name in "ABC":
        body = body.replace(f" {name} ", "" if name == missing else f" {SYNC} ")
    if races:
        with pytest.raises(SharedRace):
            run(body, machine=Machine(sanitize=frozenset({"shared_races"})))
    else:
        run(body, machine=Machine(sanitize=RACES))


def test_a_barrier_of_each_block_orders_nothing_between_blocks():
    body = TURNS.replace(" A ", " bar.sync 0; ").replace(" B ", f" {SYNC} ").replace(" C ", f" {SYNC} ")
    with pytest.raises(SharedRace, match="with nothing to order them"):
        run(body, machine=Machine(sanitize=RACES))


def test_the_barrier_orders_global_memory_within_the_cluster_alone():
    text = f"""{ME} mad.lo.s64 %a0, %wide, 4, %base0; st.global.b32 [%a0], %r9; {{}}
    xor.b32 %r3, %r9, MASK; cvt.u64.u32 %wide, %r3; mad.lo.s64 %a0, %wide, 4, %base0;
    ld.global.b32 %r0, [%a0];"""
    watched = Machine(sanitize=RACES)
    run(text.format(SYNC).replace("MASK", "32"), machine=watched)
    with pytest.raises(GlobalRace):
        run(text.format("").replace("MASK", "32"), machine=watched)
    with pytest.raises(GlobalRace):  # a block of the other cluster
        run(text.format(SYNC).replace("MASK", "64"), machine=watched)


def test_what_is_touched_between_arriving_and_waiting_is_not_judged():
    body = f"""{ME} st.shared.b32 [%r1], %r9; barrier.cluster.arrive.aligned; ld.shared.b32 %r0, [%r1];
    barrier.cluster.wait.aligned; {OUT}"""
    assert run(body)[1] == list(range(32, 64))
    with pytest.raises(UnsupportedFeature, match="between a cluster's arrival and its wait"):
        run(body, machine=Machine(sanitize=RACES))


def test_odd_bytes_and_readers_of_two_blocks_are_not_passed_over():
    odd = f"""{ME} {SYNC} setp.eq.u32 %p1, %t, 33; mov.u32 %r1, tile; @%p1 st.shared.u8 [%r1+1], 7;
    setp.eq.u32 %p2, %t, 0; @%p2 ld.shared.b32 %r0, [%r1]; {SYNC} {OUT}"""
    with pytest.raises(SharedRace):
        run(odd, threads=64, machine=Machine(sanitize=RACES))
    both = f"""{ME} st.shared.b32 [%r1], %r9; {SYNC} xor.b32 %r3, %r7, 1;
    mapa.shared::cluster.u32 %r4, %r1, %r3; ld.shared::cluster.b32 %r0, [%r4]; BETWEEN
    ld.shared.b32 %r5, [%r1]; mov.u32 %r6, tile; ld.shared.b32 %r5, [%r6]; bar.sync 0;
    st.shared.b32 [%r1], %t; {SYNC} {OUT}"""
    with pytest.raises((SharedRace, UnsupportedFeature)):
        run(both.replace("BETWEEN", ""), threads=64, machine=Machine(sanitize=RACES))
    run(both.replace("BETWEEN", SYNC), threads=64, machine=Machine(sanitize=RACES))


def test_what_is_not_followed_in_clusters_is_not_judged():
    part = f"{ME} setp.lt.u32 %p1, %t, 64; @%p1 bar.sync 1, 64; {SYNC}"
    with pytest.raises(UnsupportedFeature, match="barriers of a part of a block"):
        run(part, threads=96, machine=Machine(sanitize=RACES))
    loop = f"""{exchange(SYNC)} setp.gt.u32 %p1, %t, 99; @!%p1 bra LEFT;
    W: ld.volatile.global.b32 %r5, [%base0]; setp.eq.u32 %p2, %r5, 77; @%p2 bra W; LEFT:"""
    with pytest.raises(UnsupportedFeature, match="beside waiting loops"):
        run(loop, machine=Machine(sanitize=RACES))
    with pytest.raises(UnsupportedFeature, match="unequal stores"):
        run(exchange(SYNC), machine=Machine(sanitize=RACES | {"unequal_stores"}))


# -- launches ----------------------------------------------------------------------------------


def test_clusters_that_no_device_takes_are_refused():
    with pytest.raises(LaunchError, match="do not divide"):
        run("", grid=(3, 1, 1))
    with pytest.raises(LaunchError, match="at most 8"):
        run("", grid=(16, 1, 1), cluster=(16, 1, 1))

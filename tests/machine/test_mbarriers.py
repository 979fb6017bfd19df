"""Barriers in shared memory: phases, bytes that are announced, and who uses them wrongly."""

import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel

from verifier.machine import Machine, launch_ptx
from verifier.machine.execute.findings import DivergentBarrier, StepLimit, Uninitialised, UnsupportedFeature
from verifier.machine.execute.mbarriers import BarrierState

RACES = frozenset({"shared_races", "global_races"})
WIDE = REGISTERS + ".reg .b64 %s<4>; .shared .align 8 .b64 bar[2];"
INIT = """mov.u32 %r1, tile; shl.b32 %r2, %t, 2; add.u32 %r1, %r1, %r2; mov.u32 %r8, bar;
    setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [%r8], COUNT; SYNC"""


def wait(parity, *, label="W"):
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], {parity}; @!%p2 bra {label};"


def run(body, *, threads=64, grid=(1,), cluster=None, machine=None, count="64"):
    result = torch.zeros(threads * grid[0], dtype=torch.int32)
    text = INIT.replace("COUNT", count) + body
    text = text.replace("SYNC", "bar.sync 0;" if cluster is None else CLUSTER)
    text = kernel(text, 1, registers=WIDE)
    if cluster is not None:
        directive = f".explicitcluster\n.reqnctapercluster {cluster}, 1, 1"
        text = text.replace("(.param .u64 p0)", f"(.param .u64 p0)\n{directive}")
    launch_ptx(text, "k", grid, (threads,), 0, [result], machine=machine or Machine())
    return result.tolist()


OTHERS = f"""st.shared.b32 [%r1], %t; ARRIVE xor.b32 %r3, %r2, 128; mov.u32 %r4, tile; add.u32 %r4, %r4, %r3;
    ld.shared.b32 %r0, [%r4]; {STORE}"""
"""Every warp reads what the other one has stored."""


@pytest.mark.parametrize(
    "arrive",
    [
        f"mbarrier.arrive.shared::cta.b64 _, [%r8]; {wait(0)}",
        f"mbarrier.arrive.release.cta.shared::cta.b64 %s0, [%r8]; {wait(0)}",
        """mbarrier.arrive.shared.b64 %s0, [%r8];
        W: mbarrier.test_wait.shared.b64 %p2, [%r8], %s0; @!%p2 bra W;""",
        f"@!%p1 mbarrier.arrive.shared.b64 _, [%r8]; @%p1 mbarrier.arrive.shared.b64 _, [%r8], 1; {wait(0)}",
        """cvt.u64.u32 %s1, %r8; cvta.shared.u64 %s1, %s1; mbarrier.arrive.b64 %s0, [%s1];
        W: mbarrier.try_wait.b64 %p2, [%s1], %s0; @!%p2 bra W;""",
    ],
    ids=["parity", "words", "state", "counted", "generic"],
)
def test_who_waits_for_a_phase_sees_what_came_before_its_arrivals(arrive):
    expected = [t ^ 32 for t in range(64)]
    for watched in (frozenset(), frozenset({"uninitialised"})):
        assert run(OTHERS.replace("ARRIVE", arrive), machine=Machine(sanitize=watched)) == expected


@pytest.mark.parametrize("watched", [frozenset({"shared_races"}), frozenset({"global_races"}), RACES])
def test_races_beside_them_are_not_judged(watched):
    """Their phases are not followed: what they order would be a false alarm, and other races missed."""
    arrive = f"mbarrier.arrive.shared::cta.b64 _, [%r8]; {wait(0)}"
    with pytest.raises(UnsupportedFeature, match=r"beside barriers in shared memory \(mbarrier\)"):
        run(OTHERS.replace("ARRIVE", arrive), machine=Machine(sanitize=watched))


def test_a_word_that_is_no_barrier_is_named():
    for use in ("mbarrier.arrive.shared::cta.b64 _, [%r8];", wait(1)):
        with pytest.raises(Uninitialised, match="no barrier"):
            run(f"mov.u32 %r8, tile; {use}")
        with pytest.raises(Uninitialised, match="no barrier"):
            run(f"@%p1 mbarrier.inval.shared::cta.b64 [%r8]; bar.sync 0; {use}")
    for count in ("0", "1048576"):
        with pytest.raises(DivergentBarrier, match="arrivals, not 1 to 1048575"):
            run("", count=count)


def test_phases_follow_each_other():
    body = f"""mov.u32 %r5, 0; mov.u32 %r0, 0;
    TURN: mbarrier.arrive.shared::cta.b64 _, [%r8]; and.b32 %r6, %r5, 1; {wait("%r6")}
    add.u32 %r0, %r0, %t; add.u32 %r5, %r5, 1; setp.lt.u32 %p3, %r5, 5; @%p3 bra TURN; {STORE}"""
    assert run(body) == [5 * t for t in range(64)]


def test_a_wait_that_nobody_ends_is_named():
    with pytest.raises(StepLimit, match="wait in a loop for what nobody will do"):
        run(wait(0), machine=Machine(step_limit=10**9))
    announced = f"@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 4; {wait(0)}"
    with pytest.raises(StepLimit, match="wait in a loop for what nobody will do"):
        run(announced, count="1", machine=Machine(step_limit=10**9))


def test_too_many_arrivals_are_named():
    with pytest.raises(DivergentBarrier, match="more arrivals than its phase has"):
        run("mbarrier.arrive.shared::cta.b64 _, [%r8], 2;", count="65")


@pytest.mark.parametrize("missing", [0, 1, 5, 2**20 - 1])
@pytest.mark.parametrize("octets", [0, 8, -8, 2**20 - 1, 1 - 2**20])
def test_a_word_says_what_was_put_into_it(missing, octets):
    for parity in (0, 1):
        state = BarrierState(missing=missing, expected=7, octets=octets, parity=parity)
        assert BarrierState.of(state.word()) == state


# -- st.async ----------------------------------------------------------------------------------

CLUSTER = """fence.mbarrier_init.release.cluster;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"""
SENT = f"""mov.u32 %r7, %cluster_ctarank; mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, %t;
    cvt.u64.u32 %wide, %r9; xor.b32 %r3, %r7, 1;
    mapa.shared::cluster.u32 %r4, %r1, %r3; mapa.shared::cluster.u32 %r5, %r8, %r3;
    EXPECT
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r4], %r9, [%r5];
    WAIT
    ld.shared.b32 %r0, [%r1]; {STORE}"""
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], 256;"


@pytest.mark.parametrize("watched", [frozenset(), frozenset({"uninitialised"})])
def test_what_is_sent_is_there_when_its_bytes_have_been_counted(watched):
    body = SENT.replace("EXPECT", EXPECT).replace("WAIT", wait(0))
    expected = [64 * (block ^ 1) + t for block in range(6) for t in range(64)]
    found = run(body, grid=(6,), cluster=2, count="1", machine=Machine(sanitize=watched, schedule_seed=1))
    assert found == expected
    apart = """@%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r8], 256;
    @%p1 mbarrier.arrive.shared::cta.b64 _, [%r8];"""
    body = SENT.replace("EXPECT", apart).replace("WAIT", wait(0))
    assert run(body, grid=(6,), cluster=2, count="1", machine=Machine(sanitize=watched)) == expected
    # Bytes may come before they are announced, while an arrival is missing.
    body = SENT.replace("EXPECT", "").replace("WAIT", EXPECT + wait(0))
    assert run(body, grid=(6,), cluster=2, count="1", machine=Machine(sanitize=watched)) == expected


def test_vectors_are_sent_as_well():
    body = f"""mov.u32 %r7, %cluster_ctarank; mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, %t;
    cvt.u64.u32 %wide, %r9; xor.b32 %r3, %r7, 1; mov.u32 %r1, tile; shl.b32 %r2, %t, 3; add.u32 %r1, %r1, %r2;
    mapa.shared::cluster.u32 %r4, %r1, %r3; mapa.shared::cluster.u32 %r5, %r8, %r3;
    {EXPECT.replace("256", "512")}
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r4], {{%r9, %t}}, [%r5];
    {wait(0)} ld.shared.v2.b32 {{%r10, %r11}}, [%r1]; sub.u32 %r0, %r10, %r11; {STORE}"""
    found = run(body, grid=(2,), cluster=2, count="1")
    assert found == [64] * 64 + [0] * 64


SLOTS = f"""mov.u32 %r7, %cluster_ctarank; mov.u32 %r9, %ctaid.x; mad.lo.u32 %r9, %r9, 64, %t;
    cvt.u64.u32 %wide, %r9; xor.b32 %r3, %r7, 1; mov.u32 %r0, 0; mov.u32 %r10, 0;
    TURN: mov.u32 %r8, bar; and.b32 %r11, %r10, TWO; mad.lo.u32 %r8, %r11, 8, %r8;
    mad.lo.u32 %r12, %r11, 256, %r1; mapa.shared::cluster.u32 %r4, %r12, %r3;
    mapa.shared::cluster.u32 %r5, %r8, %r3;
    {EXPECT} add.u32 %r13, %r9, %r10;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r4], %r13, [%r5];
    shr.u32 %r6, %r10, SHIFT; and.b32 %r6, %r6, 1; {wait("%r6")}
    ld.shared.b32 %r14, [%r12]; add.u32 %r0, %r0, %r14;
    add.u32 %r10, %r10, 1; setp.lt.u32 %p3, %r10, 6; @%p3 bra TURN; {STORE}"""


def test_two_slots_are_used_in_turns():
    second = "add.u32 %r8, %r8, 8; @%p1 mbarrier.init.shared::cta.b64 [%r8], 1; mov.u32 %r8, bar; SYNC"
    two = second + SLOTS.replace("TWO", "1").replace("SHIFT", "1")
    expected = [6 * (64 * (block ^ 1) + t) + 15 for block in range(2) for t in range(64)]
    assert run(two, grid=(2,), cluster=2, count="1") == expected

"""What tells how long somebody waited at a barrier in shared memory decides as data does."""

import pytest
from ptx_snippets import REGISTERS, kernel

from verifier.machine.ptx import basic_blocks
from verifier.machine.ptx.independence import Decided, decisions
from verifier.machine.ptx.parser import parsed

WIDE = REGISTERS + ".shared .align 8 .b64 bar[2];"
WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], %r7;"
FIRST = "mov.u32 %r7, 0; mov.u32 %r1, 0;"


def decided(body):
    module = parsed(kernel(FIRST + body, 1, registers=WIDE))
    return {found.what for found in decisions(basic_blocks.build(module, module.functions["k"]))}


@pytest.mark.parametrize(
    "body",
    [
        f"mov.u32 %r8, bar; W: {WAIT} @!%p2 bra W;",
        f"""W: mov.u32 %r8, bar; and.b32 %r7, %t, 1; {WAIT} selp.u32 %r9, 1, 0, %p2;
        setp.eq.u32 %p3, %r9, 0; @%p3 bra W;""",
        f"W: mov.u32 %r8, bar; {WAIT} @!%p2 bra W; st.global.b32 [%base0], %r8;",
    ],
    ids=["alone", "computes_the_same", "the_same_is_seen"],
)
def test_a_loop_that_only_waits_decides_nothing(body):
    assert not decided(body)


@pytest.mark.parametrize(
    "body",
    [
        f"mov.u32 %r8, bar; {WAIT} @%p2 bra X; st.global.b32 [%base0], 1; X:",
        f"""mov.u32 %r8, bar; W: add.u32 %r1, %r1, 1; {WAIT} @!%p2 bra W;
        setp.gt.u32 %p3, %r1, 2; @%p3 bra X; st.global.b32 [%base0], 1; X:""",
        f"""mov.u32 %r8, bar; W: {WAIT} @%p2 bra X; add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 9; @%p4 bra W;
        X: @%p2 bra Y; st.global.b32 [%base0], 1; Y:""",
        f"""mov.u32 %r8, bar; W: ld.volatile.global.b32 %r1, [%base0]; {WAIT} @!%p2 bra W;
        setp.gt.u32 %p3, %r1, 2; @%p3 bra X; st.global.b32 [%base0], 1; X:""",
        f"""mov.u32 %r8, bar; W: {WAIT} @%p2 bra X; setp.lt.u32 %p4, %t, 5; @%p4 bra W;
        st.global.b32 [%base0], 1; X:""",
        f"""mov.u32 %r8, bar; W: {WAIT} @%p2 bra X; mov.u32 %r1, 5; bra W;
        X: setp.eq.u32 %p5, %r1, 0; @%p5 bra Y; st.global.b32 [%base0], 1; Y:""",
    ],
    ids=["asked_once", "turns_counted", "given_up", "memory_read", "left_by_some", "first_look_seen"],
)
def test_what_shows_how_long_somebody_waited_decides(body):
    assert Decided.BRANCH in decided(body)


def test_bytes_and_arrivals_that_data_name_decide():
    announced = """mov.u32 %r8, bar; ld.global.b32 %r1, [%base0];
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r8], %r1;"""
    assert decided(announced) == {Decided.BARRIER}
    assert not decided(announced.replace("ld.global.b32 %r1, [%base0]", "mov.u32 %r1, 4"))

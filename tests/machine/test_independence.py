"""Static proof that nothing decides on data, and the list of what does."""

import pytest
from ptx_snippets import REGISTERS, kernel

from verifier.machine.ptx import basic_blocks, literals
from verifier.machine.ptx.independence import Decided, decisions, depending
from verifier.machine.ptx.parser import parsed


def program_of(body):
    module = parsed(kernel(body, 1, registers=REGISTERS))
    return literals.spread(basic_blocks.build(module, module.functions["k"], contraction=True))


def decided(body):
    return [d.what for d in decisions(program_of(body))]


LOADED = "mad.lo.s64 %a0, %wide, 4, %base0; ld.global.b32 %r0, [%a0]; mov.b32 %f0, %r0; "
COMPARED = LOADED + "setp.gt.f32 %p1, %f0, 0f3F800000; "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (LOADED + "add.f32 %f1, %f0, %f0; st.global.f32 [%a0], %f1;", []),
        ("setp.lt.u32 %p1, %t, 3; @%p1 bra END; mov.u32 %r1, 1; END:", []),
        (COMPARED + "selp.f32 %f1, %f0, 0f00000000, %p1; st.global.f32 [%a0], %f1;", []),
        (LOADED + "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; st.global.b32 [%a0], %r1;", []),
        (COMPARED + "@%p1 bra END; mov.u32 %r1, 1; END:", [Decided.BRANCH]),
        (COMPARED + "@%p1 st.global.f32 [%a0], %f0;", [Decided.GUARD]),
        (COMPARED + "@!%p1 add.f32 %f1, %f0, %f0;", [Decided.GUARD]),
        (LOADED + "cvt.u64.u32 %a1, %r0; ld.global.b32 %r1, [%a1];", [Decided.ADDRESS]),
        (LOADED + "st.shared.b32 [%r0], %t;", [Decided.ADDRESS]),
        (LOADED + "shfl.sync.idx.b32 %r1, %t, %r0, 31, -1;", [Decided.LANE]),
        (LOADED + "shfl.sync.bfly.b32 %r1, %t, 1, 31, %r0;", [Decided.LANE]),
        (COMPARED + "vote.sync.any.pred %p2, %p1, -1;", [Decided.VOTE]),
        (COMPARED + "vote.sync.ballot.b32 %r1, %p1, -1;", [Decided.VOTE]),
        (LOADED + "match.any.sync.b32 %r1, %r0, -1;", [Decided.VOTE]),
        (COMPARED + "bar.red.popc.u32 %r1, 0, %p1;", [Decided.BARRIER]),
        (LOADED + "red.global.add.f32 [%a0], %f0;", [Decided.ATOMIC]),
        ("atom.shared.cas.b32 %r1, [tile], 0, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra END; END:",
         [Decided.ATOMIC, Decided.BRANCH]),
        ("and.b32 %r1, %r2, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra END; END:", [Decided.BRANCH]),
        ("mov.u32 %r2, 1; and.b32 %r1, %r2, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra END; END:", []),
        ("mov.u32 %r1, %clock; setp.gt.u32 %p1, %r1, 9; @%p1 bra END; END:", [Decided.BRANCH]),
    ],
)  # fmt: skip
def test_what_decides_on_data_is_listed(body, expected):
    assert decided(body) == expected


def test_dependence_goes_through_integers_predicates_and_loops():
    """The branch reads what is computed further down, in the turn before."""
    body = (
        LOADED + "mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; "
        "LOOP: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r1, 9; "
        "@%p1 bra END; add.u32 %r1, %r1, %r2; and.b32 %r2, %r0, 7; bra LOOP; END:"
    )
    assert decided(body) == [Decided.BRANCH]
    assert {"%r0", "%r1", "%r2", "%f0", "%p1"} <= depending(program_of(body))
    assert not {"%r3", "%t", "%a0"} & depending(program_of(body))


def test_a_decision_names_its_line_and_its_register():
    (found,) = decisions(program_of("\n" + COMPARED + "\n@%p1 bra END;\nmov.u32 %r1, 1;\nEND:"))
    assert found.register == "%p1"
    assert f"PTX line {found.line}" in str(found)
    text = kernel("\n" + COMPARED + "\n@%p1 bra END;\nmov.u32 %r1, 1;\nEND:", 1, registers=REGISTERS)
    assert "@%p1 bra" in text.splitlines()[found.line - 1]

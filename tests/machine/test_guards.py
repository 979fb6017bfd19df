"""In which lanes guards hold: all, some or none of those that come there."""

import pytest
import torch
from ptx_snippets import STORE, run

from verifier.machine import current, session
from verifier.machine.execute.reached_code import On, ReachedCode


def held(body, threads=64):
    """Run a body; return where each of its guards held, in the order of the text."""
    reached = ReachedCode()
    with session():
        current().reached = reached
        run(f"mov.u32 %r0, 0; {body} {STORE}", threads)
        (kernel,) = reached.blocks
        return [reached.guards.get(kernel, {}).get(number, On(0)) for number in range(len(kernel.guards))]


GUARDED = "setp.{} %p1, %t, {}; @{}%p1 add.u32 %r0, %r0, 1;"


@pytest.mark.parametrize(
    ("body", "lanes"),
    [
        (GUARDED.format("lt.u32", 64, ""), [On.ALL]),
        (GUARDED.format("lt.u32", 64, "!"), [On.NONE]),
        (GUARDED.format("lt.u32", 40, ""), [On.SOME]),
        (GUARDED.format("gt.u32", 64, ""), [On.NONE]),
        (GUARDED.format("gt.u32", 64, "!"), [On.ALL]),
    ],
)
def test_guards_hold_in_all_some_or_no_lanes(body, lanes):
    assert held(body) == lanes


@pytest.mark.parametrize(("first", "lanes"), [(0, On.ALL), (40, On.SOME), (64, On.NONE)])
def test_a_guarded_branch_is_told_by_where_lanes_go(first, lanes):
    assert held(f"setp.ge.u32 %p1, %t, {first}; @%p1 bra END; mov.u32 %r0, 1; END:") == [lanes]


def test_a_guard_is_asked_of_the_lanes_that_come_there():
    """Lanes from 40 on go another way; of those left all are below 41, and the even ones are half of them."""
    body = """setp.ge.u32 %p1, %t, 40; @%p1 bra END; setp.lt.u32 %p2, %t, 41; @%p2 add.u32 %r0, %r0, 1;
    and.b32 %r1, %t, 1; setp.eq.u32 %p3, %r1, 0; @%p3 add.u32 %r0, %r0, 1; END:"""
    assert held(body) == [On.SOME, On.ALL, On.SOME]


def test_constants_and_predicates_that_are_written_anew_are_not_asked():
    constant = "mov.pred %p1, -1; @%p1 add.u32 %r0, %r0, 1;"
    anew = "setp.lt.u32 %p2, %t, 9; @%p2 add.u32 %r0, %r0, 1; setp.lt.u32 %p2, %t, 64;"
    assert held(constant + anew) == []


def test_a_guard_of_whole_blocks_is_told_apart_by_one_that_has_it_and_one_that_has_not():
    body = "mov.u32 %r1, %ctaid.x; setp.eq.u32 %p1, %r1, {}; @%p1 add.u32 %r0, %r0, 1;"
    reached = ReachedCode()
    with session():
        current().reached = reached
        for block in (0, 1):
            run(f"mov.u32 %r0, 0; {body.format(block)} {STORE}", out=torch.zeros(64, dtype=torch.int32))
    assert {on for held in reached.guards.values() for on in held.values()} == {On.ALL, On.NONE}
    kernel = next(iter(reached.guards))
    assert not reached.told_apart(kernel, 0)
    reached.guard(kernel, 0, On.ALL)
    reached.guard(kernel, 0, On.NONE)
    assert reached.told_apart(kernel, 0)

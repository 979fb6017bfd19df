"""Turns of loops that a compiled kernel has no more: once, as often as they were written out, or never."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from verifier.execution.source_reach import (
    SourceReach,
    _moves,
    _Outline,
    _Part,
    _Reader,
    _turned,
    _turns_of_moves,
)
from verifier.machine.execute.findings import Location
from verifier.machine.execute.reached_code import ReachedCode
from verifier.records.reach import MANY, CompiledForm, SourcePlace
from verifier.subjects.source_map import SourceFunction, SourceLoop, SourceMap

FORM = CompiledForm(digest="")
LOCATION = Location(file="/k.cu", line=5)


def loop(path):
    place = SourcePlace(file=path.removeprefix("/"), function="kernel", line=4)
    return SourceLoop(place=place, path=path, head=range(4, 5), body=range(5, 7))


def part(one=None, *, instructions=0, accesses=0, additions=0, loads=0):
    return _Part(
        functions=frozenset(),
        loops=Counter({one: instructions} if instructions else {}),
        accesses=Counter({one: accesses} if accesses else {}),
        copies={one: Counter({("add.f32", LOCATION): additions})} if additions else {},
        stores={},
        moved={one: loads} if loads else {},
    )


def turned(one, parts, ran):
    return list(_turned(_Outline(parts=tuple(parts), regions={}, form=FORM), one, set(ran), {}))


@pytest.mark.parametrize(("path", "turns"), [("/k.cu", 3), ("/k.py", 1)])
def test_turns_that_were_written_out_are_counted_where_one_instruction_is_one_turn(path, turns):
    one = loop(path)
    assert turned(one, [part(one, instructions=8, accesses=4, additions=4)], [0]) == [turns]


def test_what_was_moved_in_front_of_a_loop_does_not_make_its_body_run():
    one = loop("/k.cu")
    parts = [part(one, instructions=5, additions=1), part(one, instructions=3, accesses=1)]
    assert turned(one, parts, [0]) == [0]
    assert turned(one, parts, [0, 1]) == [1]


def test_one_of_several_versions_of_a_body_is_enough():
    one = loop("/k.cu")
    versions = [part(), *(part(one, instructions=4, additions=2) for _ in range(4))]
    assert turned(one, versions, [0, 2]) == [2]
    assert turned(one, versions, [0]) == [0]


def test_turns_of_a_loop_that_only_loads_are_those_of_one_block():
    one = loop("/k.cu")
    a_pack_each = [part(one, instructions=2, accesses=1, loads=1) for _ in range(4)]
    assert turned(one, a_pack_each, range(4)) == [1]
    assert turned(one, [*a_pack_each, part(one, instructions=8, accesses=4, loads=4)], range(5)) == [MANY]


def test_loads_count_once_for_each_turn_of_a_loop_about_them():
    inner, outer = loop("/k.cu"), loop("/j.cu")
    load, branch = ("ld.global.f32", LOCATION), ("bra", LOCATION)
    about = {outer: Counter({branch: 4})}
    assert _turns_of_moves({((inner, outer), load): 4}, about) == {inner: 1}
    assert _turns_of_moves({((inner, outer), load): 8}, about) == {inner: 2}
    assert _turns_of_moves({((inner,), load): 4}, {}) == {inner: 4}


@pytest.mark.parametrize(
    ("opcode", "moves"),
    [
        ("ld.global.v4.f32", True),
        ("ld.param.u64", False),
        ("cvt.f32.f16", True),
        ("cvt.rn.bf16.f32", True),
        ("cvt.rn.f32.s64", False),  # a count
        ("cvt.u64.u32", False),
        ("st.global.f32", False),
        ("mov.b32", False),
    ],
)
def test_what_loads_or_converts_elements_stands_for_turns(opcode, moves):
    assert _moves(opcode.split(".")) == moves


class Kernel(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.mark.parametrize("known", [True, False])
def test_a_launched_kernel_that_stands_in_no_source_is_noted(known):
    place = SourcePlace(file="k.py", function="kernel", line=4)
    function = SourceFunction(place=place, path="/k.py", lines=range(4, 9), entry=True)
    reach = SourceReach(SourceMap(functions=(function,)))
    kernel = Kernel(program=SimpleNamespace(kernel=SimpleNamespace(name="launched")))
    reach._outlines[kernel] = _Outline(
        parts=(replace(part(), functions=frozenset({place} if known else ())),), regions={}, form=FORM
    )
    reached = ReachedCode(changed={kernel}, blocks={kernel: {0}})
    assert reach.news(reached).unfollowed == (frozenset() if known else {"launched"})


@pytest.mark.parametrize(
    ("lines", "inside", "found"),
    [
        ((4,), (), "outer"),
        ((6,), (), "inner"),
        ((6, 4), (), "outer"),  # past a loop inside that has no turn, and after its last
        ((6,), ("inner",), "outer"),
        ((6, 7), (), "inner"),
        ((20,), (), None),
    ],
)
def test_a_compiled_loop_is_the_one_about_all_its_branches_back_and_none_of_those_inside_it(
    lines, inside, found
):
    ranges = {"outer": (range(4, 5), range(5, 10)), "inner": (range(6, 7), range(7, 9))}
    loops = {
        name: SourceLoop(
            place=SourcePlace(file="k.py", function="kernel", line=head.start),
            path="/k.py",
            head=head,
            body=body,
        )
        for name, (head, body) in ranges.items()
    }
    reader = _Reader(SourceMap(loops=tuple(loops.values())))
    ends = [SimpleNamespace(location=Location(file="/k.py", line=line)) for line in lines]
    assert reader.loop_of(ends, {loops[name] for name in inside}) == loops.get(found)

"""Which accesses race with each other, in shared and in global memory."""

# ruff: noqa: E501 - lines of PTX are kept whole

from __future__ import annotations

import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel, run

from verifier.machine import Machine, launch_ptx
from verifier.machine.execute.findings import (
    GlobalRace,
    Misaligned,
    OutOfBounds,
    SharedRace,
    UnsupportedFeature,
)

RACES = frozenset({"shared_races", "global_races"})


def test_shared_memory_race_and_its_cure():
    body = (
        """
    shl.b32 %r1, %t, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; st.shared.b32 [%r2], %t; BARRIER
    xor.b32 %r3, %r1, 128; mov.u32 %r4, tile; add.u32 %r4, %r4, %r3; ld.shared.b32 %r0, [%r4]; """
        + STORE
    )
    machine = Machine(sanitize=frozenset({"shared_races"}))
    with pytest.raises(SharedRace):
        run(body.replace("BARRIER", ""), machine=machine)
    assert run(body.replace("BARRIER", "bar.sync 0;"), machine=machine).tolist() == [
        t ^ 32 for t in range(64)
    ]


def test_an_asynchronous_copy_may_write_as_soon_as_it_is_started():
    body = """
    shl.b32 %r1, %t, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; xor.b32 %r3, %r1, 128; mov.u32 %r4, tile;
    add.u32 %r4, %r4, %r3; ld.shared.b32 %r0, [%r4]; BARRIER mad.lo.s64 %a0, %wide, 4, %base0;
    cp.async.ca.shared.global [%r2], [%a0], 4; cp.async.commit_group; bar.sync 0; cp.async.wait_group 0; """
    machine = Machine(sanitize=frozenset({"shared_races"}))
    with pytest.raises(SharedRace):
        run(body.replace("BARRIER", "") + STORE, machine=machine)
    run(body.replace("BARRIER", "bar.sync 0;") + STORE, machine=machine)


ON_ITS_WAY = """
    shl.b32 %r1, %t, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; mad.lo.s64 %a0, %wide, 4, %base0;
    setp.lt.u32 %p1, %t, 16; st.global.b32 [%a0], %t;
    cp.async.ca.shared.global [%r2], [%a0], 4; """


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("cp.async.wait_all; st.global.b32 [%a0], 7; ld.shared.b32 %r0, [%r2];", None),
        ("cp.async.commit_group; cp.async.wait_group 0; ld.shared.b32 %r0, [%r2];", None),
        ("cp.async.commit_group; ld.shared.b32 %r0, [%r2]; cp.async.wait_group 0;", SharedRace),
        ("cp.async.commit_group; st.shared.b32 [%r2], 7; cp.async.wait_group 0;", SharedRace),
        ("cp.async.ca.shared.global [%r2], [%a0], 4; cp.async.wait_all;", SharedRace),
        ("bar.sync 0; xor.b32 %r3, %r2, 128; ld.shared.b32 %r0, [%r3];", SharedRace),
        ("cp.async.wait_group 0; ld.shared.b32 %r0, [%r2];", SharedRace),
        ("@%p1 cp.async.commit_group; cp.async.wait_group 0; ld.shared.b32 %r0, [%r2];", SharedRace),
        (
            "cp.async.commit_group; @%p1 cp.async.commit_group; cp.async.wait_group 1; ld.shared.b32 %r0, [%r2];",
            SharedRace,
        ),
        ("st.global.b32 [%a0], 7; cp.async.wait_all;", GlobalRace),
    ],
    ids=[
        "all_waited_for", "waited_for", "read_before", "written_before", "copied_twice", "read_by_others",
        "never_closed", "closed_by_some", "of_another_group_for_some", "source_written_before",
    ],
)  # fmt: skip
def test_what_an_asynchronous_copy_is_about_is_left_alone_until_it_is_waited_for(body, kind):
    """Also by its own lane, which the machine would run in an order of its own; lanes have their groups."""
    if kind is None:
        run(ON_ITS_WAY + body + STORE, machine=Machine(sanitize=RACES))
        return
    with pytest.raises(kind, match="what an asynchronous copy on its way"):
        run(ON_ITS_WAY + body + "mov.u32 %r0, 0;" + STORE, machine=Machine(sanitize=RACES))


def test_unequal_stores_of_one_warp_are_reported_only_on_request():
    within_warp = "mov.u32 %r1, tile; and.b32 %r2, %t, 32; add.u32 %r1, %r1, %r2; st.shared.b32 [%r1], %t; "
    run(within_warp, machine=Machine(sanitize=frozenset({"shared_races"})))
    with pytest.raises(SharedRace, match="at once"):
        run(within_warp, machine=Machine(sanitize=frozenset({"unequal_stores"})))
    across_warps = "mov.u32 %r1, tile; st.shared.b32 [%r1], %t; "
    with pytest.raises(SharedRace, match="at once"):
        run(across_warps, machine=Machine(sanitize=frozenset({"shared_races"})))
    equal = "mov.u32 %r1, tile; st.shared.b32 [%r1], 7; "
    run(equal, machine=Machine(sanitize=frozenset({"shared_races", "unequal_stores"})))


def races(body, kind, *, replicated, threads=128):
    """Whether a race of this kind is reported."""
    try:
        run(body, threads, machine=Machine(sanitize=RACES), replicated=replicated)
    except kind:
        return True
    return False


# Every warp loads one word, a thread of the named warp changes it.
OWNER = """
    ld.global.b32 %r1, [%base0]; BARRIER setp.eq.u32 %p1, %t, OWNER; add.u32 %r1, %r1, 1;
    @%p1 st.global.b32 [%base0], %r1;"""


@pytest.mark.parametrize("owner", [0, 127])
def test_the_owner_of_copies_may_overwrite_what_the_other_copies_read(owner):
    body = OWNER.replace("OWNER", str(owner))
    assert not races(body.replace("BARRIER", ""), GlobalRace, replicated=True)
    assert races(body.replace("BARRIER", ""), GlobalRace, replicated=False)
    assert not races(body.replace("BARRIER", "bar.sync 0;"), GlobalRace, replicated=False)


@pytest.mark.parametrize(
    ("later", "racing"),
    [
        ("", False),
        ("@%p1 st.global.b32 [%base0], %r1;", False),
        ("add.u32 %r2, %r1, %t; @%p3 st.global.b32 [%a0], %r2;", True),
        ("@%p1 st.shared.b32 [tile], %r1;", False),
        ("@!%p1 st.shared.b32 [tile], %r1;", True),
        ("setp.eq.u32 %p2, %r1, 77; @%p2 bra LEFT; @%p3 st.global.b32 [%a0], %t; LEFT:", True),
        ("mov.u32 %r2, 5; @%p3 st.global.b32 [%a0], %r2;", False),
    ],
    ids=["nothing", "by_the_owner", "by_all", "shared_by_the_owner", "shared", "decided", "something_else"],
)
def test_copies_that_are_used_race_with_the_owner_of_what_they_read(later, racing):
    """Before the owner's store or after it."""
    body = (
        OWNER.replace("OWNER", "0").replace(
            "BARRIER", "mad.lo.s64 %a0, %wide, 4, %base0; setp.gt.u32 %p3, %t, 0; EARLIER"
        )
        + "LATER"
    )
    for place, other in (("EARLIER", "LATER"), ("LATER", "EARLIER")):
        if not (place == "EARLIER" and "%p1" in later):  # which is not known yet
            found = races(body.replace(place, later).replace(other, ""), GlobalRace, replicated=True)
            assert found is racing, place


def test_a_copy_in_the_middle_that_is_used_is_not_forgotten():
    body = (
        OWNER.replace("OWNER", "0").replace("BARRIER", "")
        + """
    setp.eq.u32 %p2, %t, 40; @%p2 st.shared.b32 [tile], %r1;"""
    )
    assert races(body, GlobalRace, replicated=True)


def test_whoever_overwrites_what_others_read_elsewhere_races_copies_or_not():
    by_others = """
    mov.u32 %r1, 0; setp.lt.u32 %p1, %t, 32; @%p1 bra FIRST; ld.global.b32 %r1, [%base0]; bra NEXT;
    FIRST: mov.u32 %r1, 3; NEXT: setp.eq.u32 %p1, %t, 0; @%p1 st.global.b32 [%base0], %r1;"""
    at_two_places = """
    mov.u32 %r1, 0; setp.lt.u32 %p1, %t, 32; @%p1 bra FIRST; ld.global.b32 %r1, [%base0]; bra NEXT;
    FIRST: ld.global.b32 %r1, [%base0]; NEXT: add.u32 %r1, %r1, 1; setp.eq.u32 %p1, %t, 0; @%p1 st.global.b32 [%base0], %r1;"""
    for body in (by_others, at_two_places):
        assert races(body, GlobalRace, replicated=True)
        assert races(body, GlobalRace, replicated=False)


def test_copies_of_another_block_race():
    body = OWNER.replace("OWNER", "0").replace("BARRIER", "")
    for replicated in (True, False):
        with pytest.raises(GlobalRace):
            run(body, 32, grid=(2,), machine=Machine(sanitize=RACES), replicated=replicated)


SAME_PLACE = "mov.u32 %r1, tile; shr.u32 %r2, %t, 5; st.shared.b32 [%r1], %r2;"


def test_warps_that_store_their_copies_by_one_instruction_do_not_race():
    assert not races(SAME_PLACE, SharedRace, replicated=True)
    assert races(SAME_PLACE, SharedRace, replicated=False)
    equal = SAME_PLACE.replace("shr.u32 %r2, %t, 5", "mov.u32 %r2, 9")
    assert not races(equal, SharedRace, replicated=False)


def test_warps_that_store_at_one_instruction_at_different_times_are_treated_alike():
    late = """
    mov.u32 %r1, tile; shr.u32 %r2, %t, 5; mov.u32 %r3, 0;
    WAIT: add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, %r2; @%p1 bra WAIT; st.shared.b32 [%r1], %r2;"""
    assert not races(late, SharedRace, replicated=True)
    assert races(late, SharedRace, replicated=False)


def test_copies_stored_by_two_instructions_or_read_by_another_warp_race():
    twice = SAME_PLACE + "setp.eq.u32 %p1, %t, 0; @%p1 st.shared.b32 [%r1], 7;"
    read = SAME_PLACE + "ld.shared.b32 %r3, [%r1]; "
    for body in (twice, read):
        assert races(body, SharedRace, replicated=True)


ONE_PLACE = "shr.u32 %r2, %t, 5; st.global.b32 [%base0], %r2;"


def test_warps_that_store_unequal_values_by_one_instruction_race_and_so_do_copies_in_several_blocks():
    assert races(ONE_PLACE, GlobalRace, replicated=False)
    assert not races(ONE_PLACE, GlobalRace, replicated=True)
    equal = ONE_PLACE.replace("shr.u32 %r2, %t, 5", "mov.u32 %r2, 9")
    assert not races(equal, GlobalRace, replicated=False)
    by_block = ONE_PLACE.replace("shr.u32 %r2, %t, 5", "mov.u32 %r2, %ctaid.x")
    with pytest.raises(GlobalRace):
        run(by_block, 32, grid=(2,), machine=Machine(sanitize=RACES), replicated=True)


def test_stores_of_what_is_there_already_are_reported_on_request():
    """By another warp at another instruction, or at another time: of copies, too."""
    first = "setp.lt.u32 %p1, %t, 32; mov.u32 %r2, 9; @%p1 ST [PLACE], %r2; @!%p1 ST [PLACE], %r2;"
    watched = Machine(sanitize=RACES | {"equal_stores"})
    for kind, store, place, copies in (
        (GlobalRace, "st.global.b32", "%base0", True),
        (GlobalRace, "st.global.b32", "%base0", False),
        (SharedRace, "st.shared.b32", "tile", False),
    ):
        body = first.replace("ST", store).replace("PLACE", place)
        assert not races(body, kind, replicated=copies)
        with pytest.raises(kind):
            run(body, 64, machine=watched, replicated=copies)
    run("st.global.b32 [%base0], 9; bar.sync 0; st.global.b32 [%base0], 9;", 32, machine=watched)
    again = "mov.u32 %r3, 0; TURN: st.global.b32 [%base0], 9; add.u32 %r3, %r3, 1; setp.lt.u32 %p1, %r3, 2; @%p1 bra TURN;"
    for copies in (True, False):
        with pytest.raises(GlobalRace):
            run(again, 64, machine=watched, replicated=copies)
    run("st.global.b32 [%base0], 9;", 64, machine=watched, replicated=True)


def test_a_tensor_that_is_too_large_to_be_watched_is_refused_on_request():
    large = torch.zeros((64 << 18) + 1)
    text = kernel("st.global.b32 [%base0], %t;", 1)
    launch_ptx(text, "k", (1,), (32,), 0, [large], machine=Machine(sanitize=RACES))
    with pytest.raises(UnsupportedFeature, match="a watch for races in p0"):
        launch_ptx(text, "k", (1,), (32,), 0, [large], machine=Machine(sanitize=RACES | {"equal_stores"}))


@pytest.mark.parametrize(
    ("store", "load"),
    [
        ("st.release.gpu", "ld.acquire.gpu"),
        ("st.volatile", "ld.volatile"),
        ("st.relaxed.gpu", "ld.acquire.gpu"),
    ],
)
def test_an_acquire_that_need_not_come_after_the_release_is_reported_on_request(store, load):
    """What it sees is ordered, and is no race; but on a device it may see what was there before."""
    body = f"""
    setp.lt.u32 %p1, %t, 32; mov.u32 %r1, 9; @%p1 {store}.global.b32 [%base0], %r1;
    @!%p1 {load}.global.b32 %r1, [%base0];"""
    assert not races(body, GlobalRace, replicated=False)
    with pytest.raises(GlobalRace):
        run(body, 64, machine=Machine(sanitize=RACES | {"equal_stores"}))


def test_the_middle_one_of_many_readers_is_not_forgotten():
    body = """
    ld.global.b32 %r1, [%base0]; setp.eq.u32 %p1, %t, 127; mov.u32 %r2, 5;
    @%p1 st.global.b32 [%base0], %r2;"""
    assert races(body, GlobalRace, replicated=False)


# Of a warp the upper lanes do one thing, and the lower ones another.
PARTED = """
    and.b32 %r1, %t, 15; shl.b32 %r1, %r1, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; mov.u32 %r0, 0;
    cvt.u64.u32 %a0, %r1; add.s64 %a0, %a0, %base0; setp.lt.u32 %p1, %t, 16;
    BEFORE @%p1 bra LOW; UPPER bra MET; LOW: LOWER MET: AFTER """
WROTE, READS = "st.SPACE.b32 [PLACE], %t;", "ld.SPACE.b32 %r0, [PLACE];"
LATER = "setp.lt.u32 %p2, %t, 9; @%p2 bra PAST; {} PAST:"


@pytest.mark.parametrize(("space", "place"), [("shared", "%r2"), ("global", "%a0")])
@pytest.mark.parametrize(
    ("places", "racing"),
    [
        ({"UPPER": WROTE, "LOWER": READS}, True),
        ({"UPPER": READS, "LOWER": WROTE}, True),
        ({"UPPER": WROTE, "LOWER": WROTE}, True),
        ({"UPPER": READS, "LOWER": READS}, False),
        ({"BEFORE": WROTE, "UPPER": READS}, False),
        ({"UPPER": WROTE, "AFTER": READS}, False),
        ({"UPPER": WROTE, "AFTER": WROTE}, False),
        ({"UPPER": READS, "AFTER": LATER.format(WROTE)}, False),
        ({"LOWER": READS, "UPPER": f"bar.warp.sync 0xffff0000; {WROTE}"}, True),
        ({"UPPER": f"{WROTE} {READS} {WROTE}"}, False),
        ({"LOWER": f"setp.lt.u32 %p2, %t, 8; @%p2 bra MET; {READS}", "AFTER": LATER.format(WROTE)}, False),
        ({"LOWER": f"setp.lt.u32 %p2, %t, 8; @%p2 bra LAST; {READS} bra MET; LAST: {WROTE}"}, False),
    ],
)
def test_lanes_of_a_warp_that_have_parted_race_on_request(places, racing, space, place):
    """Which branch a device runs first is its own; what comes after both is ordered."""
    body = PARTED
    for name in ("BEFORE", "UPPER", "LOWER", "AFTER"):
        body = body.replace(name, places.get(name, ""))
    body = body.replace("SPACE", space).replace("PLACE", place)
    run(body, 32, machine=Machine(sanitize=RACES))
    watched = Machine(sanitize=RACES | {"equal_stores"})
    if racing:
        with pytest.raises((SharedRace, GlobalRace), match="in a branch of its own"):
            run(body, 32, machine=watched)
    else:
        run(body, 32, machine=watched)


MEET = """
    setp.lt.u32 %p1, %t, 64; @%p1 bra LOW; BARRIER_2; bra MET; LOW: BARRIER_1; MET: """
"""Of 128 threads, 64 meet at one barrier and 64 at another."""
EXCHANGE = """
    shl.b32 %r1, %t, 2; mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; st.shared.b32 [%r2], %t; MEET
    xor.b32 %r3, %r1, FLIPPED; mov.u32 %r4, tile; add.u32 %r4, %r4, %r3; ld.shared.b32 %r0, [%r4]; """
SEVERALLY = MEET.replace("BARRIER_1", "bar.sync 1, 64").replace("BARRIER_2", "bar.sync 2, 64")


@pytest.mark.parametrize(("flipped", "racing"), [(128, False), (256, True)], ids=["within", "across"])
def test_a_barrier_of_some_warps_orders_these_alone(flipped, racing):
    body = EXCHANGE.replace("MEET", SEVERALLY).replace("FLIPPED", str(flipped)) + STORE
    assert races(body, SharedRace, replicated=False) is racing


@pytest.mark.parametrize(("flipped", "racing"), [(128, False), (256, True)], ids=["within", "across"])
def test_a_barrier_of_some_warps_orders_these_alone_in_global_memory_too(flipped, racing):
    body = f"""mad.lo.s64 %a0, %wide, 4, %base0; st.global.b32 [%a0], %t; {SEVERALLY}
    shl.b32 %r1, %t, 2; xor.b32 %r1, %r1, {flipped}; cvt.u64.u32 %a0, %r1; add.s64 %a0, %a0, %base0;
    ld.global.b32 %r0, [%a0];"""
    assert races(body, GlobalRace, replicated=False) is racing


@pytest.mark.parametrize(
    ("barrier", "racing"),
    [("bar.sync 1, 64;", False), ("bar.sync 1, 32;", True), ("barrier.sync 0, 32;", True)],
    ids=["of_both", "of_either", "of_either_by_number_0"],
)
def test_a_barrier_of_fewer_threads_than_come_orders_no_two_warps(barrier, racing):
    """A device lets each warp on as soon as so many threads are there, which each warp is by itself."""
    body = EXCHANGE.replace("MEET", barrier).replace("FLIPPED", "128") + STORE
    assert races(body, SharedRace, replicated=False, threads=64) is racing


def test_a_barrier_of_some_does_not_order_what_a_warp_did_that_has_left():
    body = """
    mov.u32 %r2, tile; setp.lt.u32 %p1, %t, 64; @%p1 bra STAY; st.shared.b32 [%r2], %t; ret;
    STAY: BARRIER ld.shared.b32 %r0, [%r2]; """
    for barrier, racing in (("bar.sync 1, 64;", True), ("bar.sync 1;", False)):
        found = races(body.replace("BARRIER", barrier) + STORE, SharedRace, replicated=False, threads=96)
        assert found is racing


def test_after_a_barrier_of_all_nobody_has_met_others_before():
    late = "bar.sync 0; st.shared.b32 [%r2], %t; ld.shared.b32 %r0, [%r4]; "
    body = EXCHANGE.replace("MEET", SEVERALLY).replace("FLIPPED", "128")
    assert races(body + late + STORE, SharedRace, replicated=False)


def test_the_read_only_cache_may_not_know_what_the_kernel_writes():
    own = "mad.lo.s64 %a0, %wide, 4, %base0; FIRST LATER"
    store, load = "st.global.b32 [%a0], %t; ", "ld.global.CACHED %r0, [%a0]; "
    cached = load.replace("CACHED", "nc.b32")
    for first, later, racing in ((store, cached, True), (cached, store, False), (store, load, False)):
        body = own.replace("FIRST", first).replace("LATER", later).replace("CACHED", "b32")
        assert races(body, GlobalRace, replicated=False) is racing


@pytest.mark.parametrize("words", ["volatile.shared", "relaxed.cta.shared"])
def test_strong_accesses_are_no_race_but_one_may_come_first(words):
    body = EXCHANGE.replace("st.shared", f"st.{words}").replace("ld.shared", f"ld.{words}")
    body = body.replace("FLIPPED", "128") + STORE
    run(body.replace("MEET", ""), 128, machine=Machine(sanitize=RACES), replicated=False)
    strict = Machine(sanitize=RACES | {"equal_stores"})
    with pytest.raises(SharedRace):
        run(body.replace("MEET", ""), 128, machine=strict, replicated=False)
    run(body.replace("MEET", "bar.sync 0;"), 128, machine=strict, replicated=False)


def test_a_volatile_load_of_an_input_is_no_store_to_it():
    body = "mad.lo.s64 %a0, %wide, 4, %base0; ld.volatile.global.b32 %r0, [%a0];"
    run(body, machine=Machine(sanitize=frozenset({"inputs"}), read_only=frozenset({"out"})))


TWO_ARRAYS = ".shared .align 4 .b8 first[8]; .shared .align 4 .b8 second[256]; " + REGISTERS


@pytest.mark.parametrize(("offset", "beyond"), [(4, False), (8, True)])
def test_what_lies_behind_a_shared_variable_is_left_open(offset, beyond):
    body = f"""mov.u32 %r1, first; mov.u32 %r2, second; st.shared.b32 [%r2], 7; st.shared.b32 [%r1+{offset}], 8;
    ld.shared.b32 %r0, [%r1+{offset}]; {STORE}"""
    watched = Machine(sanitize=frozenset({"shared_bounds"}))
    assert run(body, 1, registers=TWO_ARRAYS).tolist() == [8]
    if not beyond:
        assert run(body, 1, registers=TWO_ARRAYS, machine=watched).tolist() == [8]
        return
    with pytest.raises(OutOfBounds, match="ends 4 bytes behind the shared variable first"):
        run(body, 1, registers=TWO_ARRAYS, machine=watched)


@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize("alignment", [4, 8, 16])
def test_a_variable_is_aligned_as_it_is_declared_and_no_better(space, alignment):
    """PTX says no more of where one lies, and an access that asks for more is undefined."""
    registers = f".{space} .align {alignment} .b8 own[32]; {REGISTERS}"
    for size, opcode in ((8, "v2.b32 {%r0, %r3}"), (16, "v4.b32 {%r0, %r3, %r4, %r5}")):
        kind, target = opcode.split(maxsplit=1)
        body = f"mov.u32 %r1, own; st.{space}.{kind} [%r1], {{{', '.join('7' * (size // 4))}}}; "
        body += f"ld.{space}.{kind} {target}, [%r1]; {STORE}"
        watched = Machine(sanitize=frozenset({"shared_bounds"}))
        if size <= alignment:
            assert run(body, 1, registers=registers, machine=watched).tolist() == [7]
        else:
            with pytest.raises(Misaligned, match=f"{size} bytes"):
                run(body, 1, registers=registers, machine=watched)


@pytest.mark.parametrize(
    "sanitize", [frozenset[str](), frozenset({"shared_bounds"})], ids=["plain", "watched"]
)
def test_a_kernel_learns_how_much_shared_memory_it_asked_for(sanitize):
    machine = Machine(sanitize=sanitize)
    for register, size in (("%dynamic_smem_size", 0), ("%total_smem_size", 4096)):
        body = f"mov.u32 %r1, tile; st.shared.b32 [%r1], 1; mov.u32 %r0, {register}; {STORE}"
        assert run(body, 1, machine=machine).tolist() == [size]


LAST_BLOCK_READS = """
    mov.u32 %r1, %ctaid.x; shl.b32 %r1, %r1, 6; add.u32 %r1, %r1, %t; mul.wide.u32 %a0, %r1, 4; add.s64 %a0, %a0, %base0;
    FIRST st.global.b32 [%a0+4], %t; EARLY
    bar.sync 0; setp.ne.u32 %p1, %t, 0; @%p1 bra TOLD; BEFORE
    atom.global.add.u32 %r3, [%base0], 1; AFTER
    mov.u32 %r2, tile; st.shared.b32 [%r2], %r3;
    TOLD: bar.sync 0; LATE
    mov.u32 %r2, tile; ld.shared.b32 %r3, [%r2]; setp.eq.u32 %p2, %r3, 0; @%p2 bra DONE;
    xor.b32 %r1, %r1, 64; mul.wide.u32 %a0, %r1, 4; add.s64 %a0, %a0, %base0; ld.global.b32 %r0, [%a0+4];
    DONE: bar.sync 0;"""
"""As threadFenceReduction of the CUDA samples and Reduce.cuh of PyTorch have it."""


@pytest.mark.parametrize(
    ("early", "before", "after", "late", "ordered"),
    [
        ("membar.gl;", "", "", "membar.gl;", True),
        ("", "membar.gl;", "", "membar.gl;", True),
        ("membar.gl;", "", "membar.gl;", "", True),
        ("", "membar.gl;", "membar.gl;", "", True),
        ("fence.sc.gpu;", "", "", "fence.sc.gpu;", True),
        ("", "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", "", True),
        ("", "", "", "", False),
        ("membar.gl;", "", "", "", False),
        ("", "", "", "membar.gl;", False),
        ("membar.cta;", "", "", "membar.cta;", False),
        ("fence.acq_rel.gpu;", "", "", "fence.acq_rel.gpu;", False),
        ("membar.gl;", "", "", "fence.acq_rel.gpu;", False),
        ("", "fence.acq_rel.gpu;", "", "membar.gl;", False),
    ],
)
def test_fences_in_other_threads_than_the_atomic_order_blocks_if_they_are_sequentially_consistent(
    early, before, after, late, ordered
):
    body = LAST_BLOCK_READS.replace("FIRST", "")
    for name, words in (("EARLY", early), ("BEFORE", before), ("AFTER", after), ("LATE", late)):
        body = body.replace(name, words)
    launch = {"out": torch.zeros(129, dtype=torch.int32), "grid": (2,), "machine": Machine(sanitize=RACES)}
    if ordered:
        run(body, 64, **launch)
    else:
        with pytest.raises(GlobalRace, match="with nothing to order them"):
            run(body, 64, **launch)


def test_a_store_behind_the_fence_is_not_ordered_by_it():
    body = LAST_BLOCK_READS.replace("FIRST", "membar.gl;").replace("LATE", "membar.gl;")
    for name in ("EARLY", "BEFORE", "AFTER"):
        body = body.replace(name, "")
    with pytest.raises(GlobalRace, match="with nothing to order them"):
        run(body, 64, out=torch.zeros(129, dtype=torch.int32), grid=(2,), machine=Machine(sanitize=RACES))

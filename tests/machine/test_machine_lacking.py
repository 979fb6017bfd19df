"""What the machine does not play ends a launch where it is reached; what changes no value is passed over."""

from __future__ import annotations

import pytest
import torch
from ptx_snippets import REGISTERS, STORE, kernel, run

from verifier.execution.backends import backend
from verifier.execution.call_subject import failure
from verifier.machine import LaunchError, Machine, UnsupportedInstruction, launch_ptx, session
from verifier.machine.execute.findings import OutOfBounds, UnsupportedFeature

WIDE = REGISTERS + ".reg .b64 %d<9>; .reg .b16 %h<9>;"


@pytest.mark.parametrize(
    ("instruction", "opcode", "words"),
    [
        (
            "cp.async.mbarrier.arrive.noinc.shared.b64 [tile];",
            "cp.async.mbarrier.arrive.noinc.shared.b64",
            "barriers in shared memory",
        ),
        (
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [tile], 4;",
            "mbarrier.complete_tx.relaxed.cta.shared::cta.b64",
            "barriers in shared memory",
        ),
        ("discard.global.L2 [%base0], 128;", "discard.global.L2", "memory that is left undefined"),
        (
            "barrier.cluster.arrive.relaxed.aligned;",
            "barrier.cluster.arrive.relaxed.aligned",
            "thread-block clusters",
        ),
        (
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f0, %f1}, {%r1, %r2}, {%r3}, {%f4, %f5};",
            "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32",
            "tensor cores",
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cta.global.tile [%r1], [%d1, {%r2, %r3}], [%r4];",
            "cp.async.bulk.tensor.2d.shared::cta.global.tile",
            "bulk copies (TMA)",
        ),
        (
            "getctarank.shared::cluster.u32 %r0, %r1;",
            "getctarank.shared::cluster.u32",
            "thread-block clusters",
        ),
        ("mov.u32 %r0, %envreg2;", "mov.u32", "%envreg2, as grid-wide synchronisation reads it"),
        ("mov.u32 %r0, %reserved_smem_offset_begin;", "mov.u32", "register %reserved_smem_offset_begin"),
        ("mov.u64 %d1, p0; add.s64 %d1, %d1, 8;", "mov.u64", "the address of parameter p0"),
        ("mov.b128 %d1, {%d2, %d3};", "mov.b128", "in this form"),
        ("fma.rn.oob.f16 %h0, %h1, %h2, %h3;", "fma.rn.oob.f16", ""),
        ("call other, (%r1);", "call", "call to other"),
    ],
)
def test_what_is_lacking_is_named_with_what_it_is_for_and_where(instruction, opcode, words):
    with pytest.raises(UnsupportedInstruction) as caught:
        run(f"mov.u32 %r0, 7; {instruction} {STORE}", registers=WIDE)
    assert caught.value.opcode == opcode
    assert words in str(caught.value)
    assert f"`{opcode}`" in str(caught.value)
    assert "(kernel k, PTX line " in str(caught.value)


def test_what_is_lacking_names_the_line_of_the_source():
    text = kernel(".loc 1 20 0\nwgmma.fence.sync.aligned;", 1).replace(
        ".visible .entry", '.file 1 "/x/norm.cu"\n.visible .entry'
    )
    with pytest.raises(UnsupportedInstruction, match=r"source /x/norm\.cu:20\)"):
        launch_ptx(text, "k", (1,), (1,), 0, [None])


@pytest.mark.parametrize("count", [0, 3])
def test_what_no_lane_reaches_may_be_lacking(count):
    """In a branch that is not taken, behind a guard, and in another kernel of the module."""
    other = ".visible .entry other() { tcgen05.fence::after_thread_sync; ret; }"
    lacking = "wgmma.fence.sync.aligned;"
    body = f"""
    mov.u32 %r0, 5; setp.lt.u32 %p1, %t, {count}; @%p1 {lacking}
    @!%p1 bra DONE; {lacking}
    DONE: {STORE}"""
    result = torch.zeros(4, dtype=torch.int32)
    text = kernel(body, 1, registers=REGISTERS) + other
    if count:
        with pytest.raises(UnsupportedInstruction, match="wgmma"):
            launch_ptx(text, "k", (1,), (4,), 0, [result], machine=Machine())
    else:
        launch_ptx(text, "k", (1,), (4,), 0, [result], machine=Machine())
        assert result.tolist() == [5] * 4


@pytest.mark.parametrize(
    ("directive", "lacks"),
    [
        (".explicitcluster", True),
        (".explicitcluster\n.reqnctapercluster 1, 1, 1", False),
    ],
)
def test_a_kernel_whose_clusters_the_launch_chooses_is_not_played(directive, lacks):
    text = kernel("", 1).replace("(.param .u64 p0)", f"(.param .u64 p0)\n{directive}")
    if lacks:
        with pytest.raises(UnsupportedFeature, match="lacks thread-block clusters"):
            launch_ptx(text, "k", (2,), (1,), 0, [None])
    else:
        launch_ptx(text, "k", (2,), (1,), 0, [None])


def test_a_grid_of_broken_numbers_is_refused_as_by_a_driver():
    with pytest.raises(LaunchError, match="whole numbers"):
        launch_ptx(kernel("", 1), "k", (1.5,), (1,), 0, [None])


# -- what changes no value ---------------------------------------------------------------------


def test_registers_of_an_inner_scope_need_no_blanks():
    body = f"""
    {{.reg.b32 f;
      .reg.pred p;
      .shared.align 4.b8 own[16];
      mov.b32 f, 3; setp.lt.u32 p, %t, 2; @p add.u32 f, f, %t; mov.b32 %r0, f;}}
    {STORE}"""
    assert run(body, 4).tolist() == [3, 4, 3, 3]


def test_policies_of_caches_are_passed_over():
    body = """
    createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;
    createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d1, 0.5;
    createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %d2, [%base0], 8, 16;
    createpolicy.cvt.L2.b64 %d3, 0x10000000000;
    mad.lo.s64 %a0, %wide, 4, %base0;
    prefetch.global.L2::evict_last [%a0];
    cp.async.bulk.prefetch.L2.global.L2::cache_hint [%base0], 16, %d1;
    applypriority.global.L2::evict_normal [%a0], 128;
    griddepcontrol.wait; griddepcontrol.launch_dependents;
    setmaxnreg.inc.sync.aligned.u32 96; nanosleep.u32 20;
    fence.proxy.async;
    ld.global.L1::evict_last.L2::cache_hint.L2::128B.b32 %r0, [%a0], %d1;
    add.u32 %r0, %r0, 1;
    st.global.L1::no_allocate.L2::cache_hint.b32 [%a0], %r0, %d3;
    red.global.add.L2::cache_hint.u32 [%a0], 10, %d1;
    atom.global.add.L2::cache_hint.u32 %r1, [%a0], 100, %d1;
    """
    out = torch.arange(8, dtype=torch.int32)
    assert run(body, 8, registers=WIDE, out=out).tolist() == [111 + t for t in range(8)]


@pytest.mark.parametrize(
    ("form", "operands", "copied"),
    [
        ("", "16", 16),
        (".L2::cache_hint", "16, %d1", 16),
        (".L2::cache_hint.L2::128B", "16, 4, %d1", 4),
        (".L2::128B", "16, 8", 8),
    ],
)
def test_the_policy_of_an_asynchronous_copy_is_not_its_size(form, operands, copied):
    body = f"""
    createpolicy.fractional.L2::evict_first.b64 %d1, 1.0;
    mul.lo.u32 %r1, %t, 16; mov.u32 %r2, tile; add.u32 %r1, %r1, %r2;
    mad.lo.s64 %a0, %wide, 16, %base0;
    cp.async.cg.shared.global{form} [%r1], [%a0], {operands};
    cp.async.commit_group; cp.async.wait_group 0;
    ld.shared.v4.b32 {{%r4, %r5, %r6, %r7}}, [%r1];
    st.global.v4.b32 [%a0], {{%r4, %r5, %r6, %r7}};
    """
    out = torch.arange(1, 17, dtype=torch.int32)
    run(body, 4, registers=WIDE, out=out)
    words = copied // 4
    assert out.tolist() == [n if (n - 1) % 4 < words else 0 for n in range(1, 17)]


# -- what it means for a subject ---------------------------------------------------------------


def observed(error):
    return failure(error, backend("machine"))


def test_what_is_lacking_says_nothing_about_the_subject():
    with session(), pytest.raises(UnsupportedInstruction) as caught:
        run("wgmma.fence.sync.aligned;", machine=None)
    seen = observed(caught.value)
    assert seen.status == "undecided"
    assert seen.message.startswith("the machine lacks tensor cores: `wgmma.fence.sync.aligned` (kernel k")
    assert observed(OutOfBounds("beyond", kernel="k")).status == "crashed"


def test_what_a_wrapper_keeps_back_of_its_launches_is_told_all_the_same():
    """A device does not say which launch failed: a fallback behind `except` is not what would run there."""
    place = backend("machine")
    for body, status in (
        ("wgmma.fence.sync.aligned;", "undecided"),
        ("st.global.b32 [%base0 + 64], 1;", "crashed"),
    ):
        with session() as opened:
            with pytest.raises(Exception):  # noqa: B017 (each has its own)
                launch_ptx(kernel(body, 1), "k", (1,), (1,), 0, [torch.zeros(2)])
            (kept,) = opened.failed
            assert place.failed() is kept
            seen = observed(ValueError("said instead"))
        assert seen.status == status
        assert "said instead" not in seen.message


def test_a_launch_that_a_driver_refuses_may_be_tried_otherwise():
    with session() as opened, pytest.raises(LaunchError):
        launch_ptx(kernel("", 1), "k", (1,), (2048,), 0, [None])
    assert opened.failed == []

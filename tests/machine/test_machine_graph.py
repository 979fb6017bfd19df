"""Recorded expressions: whatever is lost on the way is unknown, and never a literal."""

import gc
from weakref import ref

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, kernel

from verifier.machine import launch_ptx, session
from verifier.machine.arithmetic.approximation import Correct

THREADS = 4
READ = "mad.lo.s64 %a0, %wide, 4, %base0; ld.global.b32 %r0, [%a0]; mov.b32 %f0, %r0; "
READ += "mov.u32 %r9, tile; mad.lo.u32 %r2, %t, 4, %r9; "
WRITE = "mad.lo.s64 %a1, %wide, 4, %base1; st.global.f32 [%a1], %f1; "


def values_of(seed):
    return torch.randn(THREADS, generator=torch.Generator().manual_seed(seed))


def ran(body, x, output, target):
    """Run a body on an input at %base0 and an output at %base1."""
    text = kernel(body, 2, registers=REGISTERS + ".reg .b16 %h<9>;", target=target)
    launch_ptx(text, "k", (1,), (THREADS,), 0, [x, output])


def recorded(body, x=None, output=None, target=90):
    """Record a body; return the nodes of the output, and all nodes."""
    x = values_of(0) if x is None else x
    output = torch.empty(THREADS) if output is None else output
    with session(arithmetic="graph") as opened:
        opened.slots.register("x", x)
        ran(body, x, output, target)
        return opened.slots.outputs(output), opened.slots.nodes


def names(body, **given):
    """Return the operations of the output's nodes."""
    found, nodes = recorded(body, **given)
    columns = nodes.columns()
    return {columns["names"][columns["operation"][n]] for n in found.reshape(-1)}


def replays(body, x=None, other=None, make=lambda: torch.empty(THREADS), target=90):
    """Whether the recorded expressions give, on other inputs, the bits of a run on those."""
    other = values_of(1) if other is None else other
    output, result = make(), make()
    found, nodes = recorded(body, x=x, output=output, target=target)
    with session():
        ran(body, other.clone(), result, target)
    word = {2: torch.int16, 4: torch.int32}
    bits = [
        t.view(word[t.element_size()]).numpy().view(f"u{t.element_size()}").astype(np.uint64)
        for t in (other, result)
    ]
    computed, known = nodes.evaluate({"x": bits[0].reshape(-1)}, Correct())
    return bool(known[found].all() and (computed[found] == bits[1]).all())


FOLLOWED = {
    "sum": "add.rn.f32 %f1, %f0, 0f3F800000;",
    "lane": "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; mov.b32 %f2, %r1; sub.f32 %f1, %f0, %f2;",
    "shared": """st.shared.f32 [%r2], %f0; bar.sync 0; xor.b32 %r3, %r2, 4;
    ld.shared.f32 %f1, [%r3];""",
    "halves in shared": """mov.b32 {%h0, %h1}, %r0; st.shared.b16 [%r2], %h0;
    st.shared.b16 [%r2+2], %h1; bar.sync 0; xor.b32 %r3, %r2, 8;
    ld.shared.f32 %f2, [%r3]; neg.f32 %f1, %f2;""",
    "chosen by data": "setp.gt.f32 %p1, %f0, 0f00000000; selp.f32 %f1, %f0, 0f3F800000, %p1;",
    "not chosen by data": """setp.gt.f32 %p1, %f0, 0f00000000; setp.lt.and.f32 %p2, %f0, 0f3F800000, !%p1;
    selp.f32 %f1, 0f40000000, %f0, %p2;""",
    "chosen by lane": "setp.lt.u32 %p1, %t, 2; selp.f32 %f1, %f0, 0f3F800000, %p1;",
    "merged": """shl.b32 %r1, %r0, 16; shr.u32 %r2, %r0, 16; shl.b32 %r2, %r2, 16; shr.u32 %r1, %r1, 16;
    or.b32 %r3, %r1, %r2; mov.b32 %f2, %r3; mul.f32 %f1, %f2, 0f40400000;""",
    "permuted": """prmt.b32 %r1, %r0, 0, 0x4432; prmt.b32 %r2, %r0, %r1, 0x5410;
    mov.b32 %f1, %r2;""",
    "two merged": "shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; or.b32 %r2, %r0, %r1; mov.b32 %f1, %r2;",
    "bits changed": "xor.b32 %r1, %r0, 1; mov.b32 %f1, %r1;",
    "sign turned": "xor.b32 %r1, %r0, -2147483648; mov.b32 %f2, %r1; add.f32 %f1, %f2, 0f3F800000;",
    "sign turned by the first": "xor.b32 %r1, 0x80000000, %r0; mov.b32 %f1, %r1;",
    "bits masked": "and.b32 %r1, %r0, 0x7FFFFFFF; mov.b32 %f1, %r1;",
    "integer sum": "add.u32 %r1, %r0, 1; mov.b32 %f1, %r1;",
    "shifted by a byte": "shl.b32 %r1, %r0, 8; mov.b32 %f1, %r1;",
    "bytes permuted": "prmt.b32 %r1, %r0, 0, 0x0123; mov.b32 %f1, %r1;",
    "three inputs": "lop3.b32 %r1, %r0, %t, 0, 0xFE; mov.b32 %f1, %r1;",
    "from integer": "cvt.rzi.s32.f32 %r1, %f0; cvt.rn.f32.s32 %f1, %r1;",
    "predicate of integers": "setp.gt.s32 %p1, %r0, 0; selp.f32 %f1, %f0, 0f3F800000, %p1;",
    "counted bits": "popc.b32 %r1, %r0; mov.b32 %f1, %r1;",
    "copied, or zero": """setp.lt.u32 %p1, %t, 2; selp.b32 %r3, 4, 0, %p1;
    cp.async.ca.shared.global [%r2], [%a0], 4, %r3; cp.async.wait_all; ld.shared.f32 %f2, [%r2];
    add.f32 %f1, %f2, %f0;""",
    "masked": "setp.lt.u32 %p1, %t, 2; mov.f32 %f1, 0f00000000; @%p1 add.f32 %f1, %f0, %f0;",
}  # fmt: skip


def test_a_sign_that_an_integer_operation_turns_is_a_negation_and_no_other_bit_is():
    assert "neg.f32" in names(READ + "xor.b32 %r1, %r0, -2147483648; mov.b32 %f1, %r1;" + WRITE)
    for number in ("0x40000000", "0x80000001", "%t"):
        assert "neg.f32" not in names(READ + f"xor.b32 %r1, %r0, {number}; mov.b32 %f1, %r1;" + WRITE)


@pytest.mark.parametrize("body", FOLLOWED.values(), ids=FOLLOWED)
def test_recorded_expressions_compute_other_runs(body):
    assert replays(READ + body + WRITE)


MATRIX = """st.shared.f32 [%r2], %f0; bar.sync 0; mad.lo.u32 %r4, %t, 16, %r9; and.b32 %r4, %r4, -129;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r3}, [%r4]; mov.b32 %f2, %r3; neg.f32 %f1, %f2;"""


def test_a_float_that_a_matrix_gives_back_is_followed_and_its_halves_turned_are_lost(monkeypatch):
    monkeypatch.setattr("test_machine_graph.THREADS", 32)
    assert replays(READ + MATRIX + WRITE)
    found, nodes = recorded(READ + MATRIX.replace("x1.", "x1.trans.") + WRITE)
    assert not nodes.evaluate({"x": np.zeros(32, dtype=np.uint64)}, Correct())[1][found].any()


LOST = {
    "bits of halves": """shl.b32 %r1, %r0, 16; add.u32 %r1, %r1, 1; shr.u32 %r2, %r0, 16;
    or.b32 %r1, %r1, %r2; mov.b32 %f1, %r1;""",
    "64 bits": "cvt.u64.u32 %a2, %r0; shl.b64 %a2, %a2, 3; cvt.u32.u64 %r1, %a2; mov.b32 %f1, %r1;",
    "16 bits": "mov.b32 {%h0, %h1}, %r0; add.u16 %h0, %h0, 1; mov.b32 %r1, {%h0, %h1}; mov.b32 %f1, %r1;",
    "carry": "add.cc.u32 %r1, %r0, %r0; addc.u32 %r2, 0, 0; add.u32 %r1, %r1, %r2; mov.b32 %f1, %r1;",
    "halves exchanged": "mov.b32 {%h0, %h1}, %r0; mov.b32 %r1, {%h1, %h0}; mov.b32 %f1, %r1;",
    "half overwritten": """mov.b32 {%h0, %h1}, %r0; mov.b16 %h0, 7; mov.b32 %r1, {%h0, %h1};
    mov.b32 %f1, %r1;""",
    "halves of two": """shfl.sync.bfly.b32 %r1, %r0, 1, 31, -1; mov.b32 {%h0, %h1}, %r0;
    mov.b32 {%h2, %h3}, %r1; mov.b32 %r2, {%h0, %h3}; mov.b32 %f1, %r2;""",
    "byte stored": """st.shared.f32 [%r2], %f0; st.shared.b8 [%r2], %t;
    ld.shared.f32 %f1, [%r2];""",
    "byte of data stored": """mov.u32 %r3, 0; st.shared.b32 [%r2], %r3;
    st.shared.b8 [%r2+3], %r0; ld.shared.f32 %f1, [%r2];""",
    "half stored": """st.shared.f32 [%r2], %f0; mov.b16 %h0, 7;
    st.shared.b16 [%r2+2], %h0; ld.shared.f32 %f1, [%r2];""",
    "loaded beside": """st.shared.f32 [%r2], %f0; st.shared.f32 [%r2+4], %f0;
    ld.shared.b16 %h0, [%r2+2]; ld.shared.b16 %h1, [%r2]; mov.b32 %r1, {%h0, %h1}; mov.b32 %f1, %r1;""",
    "memory of nobody": "ld.shared.f32 %f1, [%r2];",
    "atomic": """st.shared.f32 [%r2], %f0; red.shared.add.f32 [%r2], %f0;
    ld.shared.f32 %f1, [%r2];""",
    "old of an atomic": """st.shared.f32 [%r2], %f0;
    atom.shared.exch.b32 %r1, [%r2], 0; mov.b32 %f1, %r1;""",
    "largest of a warp": "redux.sync.max.u32 %r1, %r0, 0xF; mov.b32 %f1, %r1;",
    "guarded by data": """setp.gt.f32 %p1, %f0, 0f00000000; mov.f32 %f1, 0f3F800000;
    @%p1 mov.f32 %f1, 0f40000000;""",
    "stored where data say": """setp.gt.f32 %p1, %f0, 0f00000000;
    mov.u32 %r3, 0; st.shared.b32 [%r2], %r3; @%p1 st.shared.b32 [%r2], %t; ld.shared.f32 %f1, [%r2];""",
}  # fmt: skip


@pytest.mark.parametrize("body", LOST.values(), ids=LOST)
def test_what_is_lost_is_unknown(body):
    """Every thread's result, but where a predicate of the data has not let the thread touch it."""
    found, nodes = recorded(READ + body + " add.rn.f32 %f1, %f1, 0f00000000; " + WRITE)
    known = nodes.evaluate({"x": np.zeros(THREADS, dtype=np.uint64)}, Correct())[1][found]
    touched = torch.ones(THREADS, dtype=bool) if "@%p1" not in body else values_of(0) > 0
    assert not known[touched.numpy()].any()


def test_memory_that_nobody_registered_is_unknown():
    other = values_of(2)
    output = torch.empty(THREADS)
    with session(arithmetic="graph") as opened:
        ran(READ + "add.f32 %f1, %f0, %f0; " + WRITE, other, output, 90)
        found = opened.slots.outputs(output)
        assert not opened.slots.nodes.evaluate({}, Correct())[1][found].any()


PAIR = "mad.lo.s64 %a0, %wide, 4, %base0; ld.global.b32 %r0, [%a0]; "
PAIRED = "mad.lo.s64 %a1, %wide, 4, %base1; st.global.b32 [%a1], %r1; "


@pytest.mark.parametrize(
    ("dtype", "opcode"),
    [(torch.float16, "add.f16x2"), (torch.bfloat16, "add.rn.bf16x2"), (torch.float16, "max.f16x2")],
)
def test_each_half_of_a_pair_has_its_node(dtype, opcode):
    def pairs(seed):
        return torch.randn(2 * THREADS, generator=torch.Generator().manual_seed(seed)).to(dtype)

    def make():
        return torch.empty(2 * THREADS, dtype=dtype)

    swapped = "mov.b32 {%h0, %h1}, %r0; mov.b32 %r2, {%h1, %h0}; "
    body = PAIR + swapped + f"{opcode} %r1, %r0, %r2; " + PAIRED
    assert replays(body, x=pairs(0), other=pairs(1), make=make)
    scalar = opcode.replace("x2", "")
    assert names(body, x=pairs(0), output=make()) == {scalar}


def test_a_half_read_in_another_format_is_unknown():
    x = torch.ones(2 * THREADS, dtype=torch.bfloat16)
    output = torch.empty(2 * THREADS, dtype=torch.float16)
    found, nodes = recorded(PAIR + "add.f16x2 %r1, %r0, %r0; " + PAIRED, x=x, output=output)
    assert not nodes.evaluate({"x": np.zeros(2 * THREADS, dtype=np.uint64)}, Correct())[1][found].any()


def test_a_bfloat16_above_zeros_is_widened():
    def make():
        return torch.empty(THREADS)

    x, other = (values_of(seed).repeat(2).bfloat16() for seed in (0, 1))
    body = PAIR + "shl.b32 %r2, %r0, 16; mov.b32 %f0, %r2; add.f32 %f1, %f0, %f0; " + WRITE
    assert replays(body, x=x, other=other, make=make)


def test_torch_between_launches_is_followed_or_lost():
    x = values_of(0)
    with session(arithmetic="graph") as opened:
        slots = opened.slots
        slots.register("x", x)
        kept = slots.outputs(x)
        assert (slots.outputs(x.clone().view(2, 2)).reshape(-1) == kept).all()
        target = torch.zeros(THREADS)
        assert not slots.counters.uncovered
        target.copy_(x)
        assert (slots.outputs(target) == kept).all()
        other = torch.zeros(THREADS)  # an array shares the memory of what was looked at
        other.zero_()
        torch._foreach_add_([other], [x])
        lost = slots.outputs(other)
        columns = slots.nodes.columns()
        assert all(columns["names"][columns["operation"][n]].startswith("unknown:") for n in lost)
        assert slots.counters.uncovered
        assert not slots.asked
        float(torch.ones(3)[0])
        assert not slots.asked  # of a constant
        float(x.sum())  # of what is lost already
        assert slots.asked == {"_local_scalar_dense"}


def test_halves_chosen_by_data_are_chosen_one_by_one():
    def make():
        return torch.empty(2 * THREADS, dtype=torch.float16)

    x, other = (values_of(seed).repeat(2).half() for seed in (0, 1))
    body = (
        PAIR
        + """mov.b32 {%h0, %h1}, %r0; mov.b32 %r2, {%h1, %h0}; cvt.f32.f16 %f0, %h0;
    setp.gt.f32 %p1, %f0, 0f00000000; selp.b32 %r1, %r0, %r2, %p1;"""
        + PAIRED
    )
    assert replays(body, x=x, other=other, make=make)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_torch_between_launches_rounds_as_its_nodes_say(dtype):
    def between(x):
        wide = (x * 0.3 + x).float() - 1.7
        return (wide / x, -wide.to(dtype), 2 - x, x.float().to(torch.bfloat16))

    one, other = (values_of(seed).to(dtype) for seed in (0, 1))
    with session(arithmetic="graph") as opened:
        slots = opened.slots
        slots.register("x", one)
        found = [slots.outputs(t) for t in between(one)]
        word = {2: torch.int16, 4: torch.int32}
        bits = [
            t.view(word[t.element_size()]).numpy().view(f"u{t.element_size()}").astype(np.uint64)
            for t in (other, *between(other))
        ]
        computed, known = slots.nodes.evaluate({"x": bits[0]}, Correct())
    for nodes, wanted in zip(found, bits[1:], strict=True):
        if known[nodes].all():
            assert (computed[nodes] == wanted).all()
    assert known[found[0]].all()
    assert known[found[1]].all()


def test_a_time_is_no_literal():
    found, nodes = recorded("mov.u32 %r0, %clock; cvt.rn.f32.u32 %f1, %r0; " + WRITE)
    assert not nodes.evaluate({"x": np.zeros(THREADS, dtype=np.uint64)}, Correct())[1][found].any()


def test_a_wave_that_waited_has_nothing_of_the_recording_before():
    """Literals are nodes of a recording: those of another would be other nodes of this one."""
    body, x = READ + "add.f32 %f1, %f0, 0f40490FDB; " + WRITE, values_of(0)
    bits = {"x": x.numpy().view(np.uint32).astype(np.uint64)}
    with session():  # about both recordings, so that the wave of the first is for the second
        first, nodes = recorded(body, x=x)
        before = nodes.evaluate(bits, Correct())[0][first]
        count, gone = nodes.count, ref(nodes)
        del nodes
        gc.collect()
        assert gone() is None
        second, nodes = recorded(body, x=x)
    assert nodes.count == count
    assert (first == second).all()
    assert (nodes.evaluate(bits, Correct())[0][second] == before).all()

"""Literals that pass through a register: where they are known, and where they are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ptx_snippets import kernel

from verifier import machine
from verifier.machine.ptx import basic_blocks, literals
from verifier.machine.ptx.parser import parse
from verifier.machine.translate import slot_layouts

REGISTERS = ".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .pred %p<3>;"


def program(body):
    module = parse(kernel(body, 1, registers=REGISTERS))
    return basic_blocks.build(module, module.functions["k"])


def moves(built):
    """Operands of the moves of a program, as text, by target."""
    found = {}
    for instruction in literals.spread(built).instructions():
        if instruction.parts[0] == "mov":
            target, origin = instruction.operands
            found[getattr(target, "name", "")] = getattr(origin, "value", getattr(origin, "name", None))
    return found


def test_a_register_written_once_by_a_literal_is_that_literal():
    assert moves(program("mov.b32 %r1, 5; mov.u32 %r2, %r1; mov.b32 %r3, %r2;"))["%r2"] == 5


@pytest.mark.parametrize(
    "body",
    [
        "mov.b32 %r1, 5; mov.b32 %r1, 6; mov.b32 %r2, %r1;",
        "setp.gt.u32 %p1, %t, 0; @%p1 mov.b32 %r1, 5; mov.b32 %r2, %r1;",
        "setp.gt.u32 %p1, %t, 0; @%p1 bra over; mov.b32 %r1, 5; over: mov.b32 %r2, %r1;",
        "mov.b32 %r2, %r1; mov.b32 %r1, 5;",
        "mov.f32 %r1, 0f40400000; mov.b32 %r2, %r1;",
    ],
    ids=["twice", "guarded", "around", "too_late", "other_type"],
)
def test_other_registers_are_read(body):
    assert moves(program(body))["%r2"] == "%r1"


def test_a_masked_load_into_a_moved_zero_needs_no_tags():
    body = """
    mov.b32 %r1, 0; setp.gt.u32 %p1, %t, 0; mov.b32 %r2, %r1; @%p1 ld.global.b32 %r2, [%base0];
    mov.b32 {%h1, %h2}, %r2; cvt.f32.f16 %f1, %h1; cvt.f32.f16 %f2, %h2; add.f32 %f3, %f1, %f2;
    st.global.f32 [%base0], %f3;"""
    assert slot_layouts.analyse(program(body)).layouts["%r2"] == slot_layouts.DYNAMIC
    assert (
        slot_layouts.analyse(literals.spread(program(body))).layouts["%r2"] == slot_layouts.LAYOUTS["f16x2"]
    )


def test_lanes_that_do_not_load_hold_the_literal():
    body = """
    mad.lo.s64 %a0, %wide, 4, %base0; mov.b32 %r1, 0x3C004000; setp.gt.u32 %p1, %t, 0;
    mov.b32 %r2, %r1; @%p1 ld.global.b32 %r2, [%a0]; mov.b32 {%h1, %h2}, %r2;
    cvt.f32.f16 %f1, %h1; cvt.f32.f16 %f2, %h2; mul.f32 %f3, %f1, 0f3DCCCCCD; add.f32 %f4, %f3, %f2;
    st.global.f32 [%a0], %f4;"""
    pairs = torch.tensor([[1.5, 2.25], [-3.0, 0.5]]).half().view(torch.float32).reshape(-1)
    with machine.session(arithmetic="lifted") as opened:
        machine.launch_ptx(kernel(body, 1, registers=REGISTERS), "k", (1,), (2,), 0, [pairs])
        tenth = float(np.float32(0.1))
        assert opened.slots.get(pairs).tolist() == [2 * tenth + 1.0, -3 * tenth + 0.5]
        assert opened.slots.counters.desynchronised == 0

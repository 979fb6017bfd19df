"""Tags of what a value depends on go through every operation on bits, and stay with their half-words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ptx_snippets import kernel

from verifier import machine

REGISTERS = (
    ".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .b64 %d<9>; .reg .f64 %e<4>; .reg .pred %p<3>;"
)
ADDRESSES = "mad.lo.s64 %a0, %wide, 4, %base0; mad.lo.s64 %a1, %wide, 4, %base1; "


def tags_of(body, low=1, high=2, target=90):
    """Run code on words with these tags and words with 16 and 32; what the first words then have."""
    words = torch.tensor([1.5, -2.25, 5.0, 3.0], dtype=torch.float16)
    other = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float16)
    with machine.session(arithmetic="taint") as opened:
        opened.slots.set(words, np.uint64([low, high, low, high]))
        opened.slots.set(other, np.uint64([16, 32, 16, 32]))
        text = kernel(ADDRESSES + body, 2, registers=REGISTERS, target=target)
        machine.launch_ptx(text, "k", (1,), (2,), 0, [words, other])
        assert not opened.slots.counters.describe()
        assert not opened.slots.counters.broken
        first, second = opened.slots.get(words).reshape(2, 2).tolist()
        assert first == second
        return first


LOAD, STORE = "ld.global.b32 %r1, [%a0]; ld.global.b32 %r2, [%a1]; ", " st.global.b32 [%a0], %r3;"


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("and.b32 %r3, %r1, 0x7fff7fff;", [1, 2]),
        ("and.b32 %r3, %r1, 0x7fff;", [1, 0]),
        ("and.b32 %r3, %r1, -65536;", [0, 2]),
        ("or.b32 %r3, %r1, 1;", [1, 2]),
        ("xor.b32 %r3, %r1, 0x80008000;", [1, 2]),
        ("not.b32 %r3, %r1;", [1, 2]),
        ("and.b32 %r3, %r1, %r2;", [17, 34]),
        ("lop3.b32 %r3, %r1, %r2, %r1, 0x96;", [17, 34]),
        ("add.s32 %r3, %r1, 1;", [3, 3]),
        ("sub.s32 %r3, %r1, %r2;", [51, 51]),
        ("mul.lo.s32 %r3, %r1, 3;", [3, 3]),
        ("mul.hi.u32 %r3, %r1, %r2;", [51, 51]),
        ("mad.lo.s32 %r3, %r1, 3, %r2;", [51, 51]),
        ("min.s32 %r3, %r1, %r2;", [51, 51]),
        ("max.u32 %r3, %r1, 7;", [3, 3]),
        ("shl.b32 %r3, %r1, 16;", [0, 1]),
        ("shl.b32 %r3, %r1, 3;", [1, 3]),
        ("shl.b32 %r3, %r1, 23;", [0, 1]),
        ("shl.b32 %r3, %r1, 40;", [0, 0]),
        ("shr.u32 %r3, %r1, 16;", [2, 0]),
        ("shr.u32 %r3, %r1, 9;", [3, 2]),
        ("shr.s32 %r3, %r1, 31;", [3, 3]),
        ("shl.b32 %r3, %r1, %r2;", [51, 51]),
        ("shf.l.wrap.b32 %r3, %r1, %r2, 5;", [51, 51]),
        ("prmt.b32 %r3, %r1, %r2, 0x5410;", [1, 16]),
        ("prmt.b32 %r3, %r1, %r2, 0x3276;", [32, 2]),
        ("prmt.b32 %r3, %r1, %r2, 0x4421;", [3, 16]),
        ("prmt.b32 %r3, %r1, %r2, %r1;", [51, 51]),
        ("bfe.u32 %r3, %r1, 3, 7;", [3, 3]),
        ("bfi.b32 %r3, %r1, %r2, 8, 8;", [51, 51]),
        ("popc.b32 %r3, %r1;", [3, 3]),
        ("abs.s32 %r3, %r1;", [3, 3]),
        ("mov.b32 {%h1, %h2}, %r1; mov.b32 %r3, {%h2, %h1};", [2, 1]),
        ("mov.b32 {%h1, %h2}, %r1; and.b16 %h3, %h1, 0x7fff; mov.b32 %r3, {%h3, %h2};", [1, 2]),
        ("cvt.u16.u32 %h1, %r1; cvt.u32.u16 %r3, %h1;", [1, 0]),
        ("cvt.u16.u32 %h1, %r1; cvt.s32.s16 %r3, %h1;", [1, 1]),
        ("cvt.u64.u32 %d1, %r1; shl.b64 %d2, %d1, 16; shr.u64 %d2, %d2, 16; cvt.u32.u64 %r3, %d2;", [1, 2]),
        ("mul.wide.u32 %d1, %r1, %r2; cvt.u32.u64 %r3, %d1;", [51, 51]),
        ("abs.f16x2 %r3, %r1;", [1, 2]),
        ("fma.rn.f16x2 %r3, %r1, %r2, %r2;", [17, 34]),
        ("add.bf16x2 %r3, %r1, %r2;", [17, 34]),
        ("max.f16x2 %r3, %r1, %r2;", [1, 32]),
        ("mov.b32 {%h1, %h2}, %r1; cvt.f32.f16 %f1, %h1; mov.b32 %r3, %f1;", [1, 1]),
        ("mov.b32 {%h1, %h2}, %r1; cvt.f32.bf16 %f1, %h2; cvt.rni.s32.f32 %r3, %f1;", [2, 2]),
        ("mov.b32 {%h1, %h2}, %r1; cvt.rn.f32.s16 %f1, %h2; mov.b32 %r3, %f1;", [2, 2]),
        ("mov.b32 {%h1, %h2}, %r1; cvt.rni.bf16.bf16 %h1, %h1; mov.b32 %r3, {%h1, %h2};", [1, 2]),
        ("mov.b32 %f1, %r1; add.f32 %f2, %f1, 0f4B400000; mov.b32 %r3, %f2; shl.b32 %r3, %r3, 23;", [0, 3]),
        ("mov.b32 %f1, %r1; mul.f32 %f2, %f1, %f1; mov.b32 %r4, %f2; shr.u32 %r3, %r4, 16;", [3, 0]),
        ("mov.b32 %f1, %r1; mov.b32 %f2, %r2; cvt.rn.f16x2.f32 %r3, %f2, %f1;", [3, 48]),
        ("setp.lt.u32 %p1, %t, 0; selp.b32 %r3, %r1, %r2, %p1;", [16, 32]),
        ("setp.lt.u32 %p1, %t, 9; selp.b32 %r3, %r1, %r2, %p1;", [1, 2]),
        ("setp.gt.u32 %p1, %t, 9; mov.b32 %r3, %r2; @%p1 mov.b32 %r3, %r1;", [16, 32]),
        ("shfl.sync.bfly.b32 %r3, %r1, 1, 31, 3;", [1, 2]),
        ("redux.sync.max.s32 %r3, %r1, 3;", [3, 3]),
        ("mov.b32 %r3, %r1; shr.u32 %r3, %r3, 16;", [2, 0]),
        ("mov.b32 %r3, %r1; prmt.b32 %r3, %r3, %r3, 0x1032;", [2, 1]),
        ("mov.b64 %d1, {%r1, %r2}; shr.u64 %d2, %d1, 32; cvt.u32.u64 %r3, %d2;", [16, 32]),
        ("mov.b64 %d1, {%r1, %r2}; shr.u64 %d2, %d1, 20; cvt.u32.u64 %r3, %d2;", [18, 48]),
        ("mov.b32 %f1, %r1; cvt.f64.f32 %e1, %f1; mov.b64 {%r4, %r3}, %e1;", [3, 3]),
    ],
)
def test_tags_go_where_bits_go(code, wanted):
    assert tags_of(LOAD + code + STORE) == wanted


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("ld.global.u8 %h1, [%a0+2]; and.b16 %h1, %h1, 127; st.global.u8 [%a0+1], %h1;", [3, 2]),
        ("ld.global.u16 %h1, [%a0+2]; st.global.u16 [%a0], %h1;", [2, 2]),
        ("atom.global.exch.b32 %r3, [%a0], %r2; st.global.b32 [%a1], %r3;", [48, 48]),
        ("red.global.or.b32 [%a0], %r2;", [51, 51]),
        ("red.global.add.noftz.f16x2 [%a0], %r2;", [51, 51]),
        ("xor.b32 %r3, %r1, %r2; atom.global.cas.b32 %r4, [%a0], %r1, %r3;", [51, 51]),
    ],
)
def test_tags_go_through_bytes_and_atomics(code, wanted):
    assert tags_of(LOAD + code) == wanted


def test_literals_and_thread_numbers_depend_on_nothing():
    code = "and.b32 %r3, %r1, 0; or.b32 %r3, %r3, %t; add.s32 %r3, %r3, 5;"
    assert tags_of(LOAD + code + STORE) == [0, 0]

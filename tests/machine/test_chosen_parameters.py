"""Arguments that a kernel chooses between are loaded from a chosen address: every thread gets its own."""

import numpy as np
import pytest
import torch
from ptx_snippets import REGISTERS, kernel

from verifier.machine import launch_ptx, session
from verifier.machine.arithmetic.approximation import Correct
from verifier.machine.execute.findings import UnsupportedInstruction

THREADS = 4
CHOICE = "setp.lt.u32 %p1, %t, 2; mov.b32 %r1, p0; mov.b32 %r2, p1; selp.b32 %r3, %r1, %r2, %p1; "
LOAD = "ld.param.b64 %a2, [%r3]; mad.lo.s64 %a2, %wide, 4, %a2; ld.global.f32 %f1, [%a2]; "
WRITE = "mad.lo.s64 %a0, %wide, 4, %base2; st.global.f32 [%a0], %f1;"


def ran(body, *tensors):
    launch_ptx(kernel(body, 3, registers=REGISTERS), "k", (1,), (THREADS,), 0, list(tensors))


def two():
    return torch.arange(4.0), torch.arange(10.0, 14.0), torch.zeros(THREADS)


@pytest.mark.parametrize(
    "choice",
    [
        CHOICE,
        CHOICE.replace("selp.b32 %r3, %r1, %r2, %p1; ", "mov.b32 %r3, %r2; @%p1 mov.b32 %r3, %r1; "),
        CHOICE.replace("selp.b32 %r3", "selp.b32 %r4") + "mov.b32 %r3, %r4; ",
        "setp.lt.u32 %p1, %t, 2; mov.b32 %r3, p1; @!%p1 bra L; mov.b32 %r3, p0; L: ",
    ],
)
def test_each_thread_loads_the_parameter_whose_address_it_has(choice):
    first, second, out = two()
    ran(choice + LOAD + WRITE, first, second, out)
    assert out.tolist() == [0.0, 1.0, 12.0, 13.0]


def test_recorded_expressions_follow_the_choice():
    first, second, out = two()
    with session(arithmetic="graph") as opened:
        opened.slots.register("a", first)
        opened.slots.register("b", second)
        ran(CHOICE + LOAD + "add.f32 %f1, %f1, %f1; " + WRITE, first, second, out)
        found, nodes = opened.slots.outputs(out), opened.slots.nodes
    words = {name: np.full(THREADS, bits) for name, bits in BITS.items()}
    computed, known = nodes.evaluate(words, Correct())
    assert known[found].all()
    assert computed[found].astype("u4").view("f4").tolist() == [3.0, 3.0, -4.0, -4.0]


BITS = {name: np.float32(value).view("u4").astype("u8") for name, value in {"a": 1.5, "b": -2.0}.items()}


@pytest.mark.parametrize(
    "body",
    [
        CHOICE + "add.u32 %r3, %r3, 8; " + LOAD,  # beyond what was chosen
        "mov.b32 %r1, p0; cvt.u64.u32 %a2, %r1; cvta.param.u64 %a2, %a2; ld.u64 %a2, [%a2]; ",
        CHOICE + "mov.b32 %r3, 7; " + LOAD,
        CHOICE + "ld.param.u32 %r3, [%r3]; " + LOAD.replace("[%r3]", "[p0]"),  # an address, or what lay there
    ],
)
def test_an_address_of_which_more_is_made_is_refused(body):
    with pytest.raises(UnsupportedInstruction, match="the address of parameter p0"):
        ran(body + WRITE, *two())

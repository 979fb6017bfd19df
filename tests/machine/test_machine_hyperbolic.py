"""libdevice's tanh is followed as one function where it is one, and lost where it is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the tanh here is that of Triton's libdevice; Triton is not installed")

import triton
import triton.language as tl
from triton.language.extra import libdevice

from verifier import machine
from verifier.machine.ptx import basic_blocks, hyperbolic
from verifier.machine.ptx.parser import parse
from verifier.machine.shadow.arithmetics import attribution

COUNT = 128
BRANCHES = Path(__file__).with_name("tangent_triton_3_6.ptx")
"""Of a Triton that branches where later ones select."""
SHAPES = [90, BRANCHES]


def named(code):
    return str(getattr(code, "stem", code))


@triton.jit
def _tangent(x, y, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    tl.store(y + at, libdevice.tanh(tl.load(x + at)))


@cache
def compiled(code):
    """PTX of a kernel that stores the hyperbolic tangent of each element, and the kernel's name.

    code: an architecture to compile for, or a file of PTX.
    """
    if isinstance(code, Path):
        return code.read_text(encoding="utf-8"), "_tangent"
    with machine.session(architecture=code) as opened:
        _tangent[(1,)](torch.ones(COUNT), torch.ones(COUNT), COUNT)
        ((ptx, kernel),) = opened.codes
    return ptx, kernel


def run(code, values, arithmetic="lifted", shadows=None, **settings):
    """Floats and shadows of the stored tangents, and the session's counters."""
    x, y = torch.from_numpy(np.float32(values)), torch.zeros(COUNT)
    ptx, kernel = code
    function = parse(ptx).functions[kernel]
    threads = function.directives["reqntid"][0]
    with machine.session(arithmetic=arithmetic, **settings) as opened:
        opened.slots.set(x, np.float64(values) if shadows is None else shadows)
        others = [0] * (len(function.parameters) - 2)
        machine.launch_ptx(ptx, kernel, (1,), (threads,), 0, [x, y, *others])
        return y.numpy(), opened.slots.get(y), opened.slots.counters


def recognised(ptx, kernel):
    """The program, and its tangents."""
    module = parse(ptx)
    program = basic_blocks.build(module, module.functions[kernel])
    return program, hyperbolic.find(program)


def lasts(ptx, kernel):
    """The instructions in which a tangent ends."""
    return [one.last for one in recognised(ptx, kernel)[1].values()]


def spread(seed=0):
    """Floats of both signs and all sizes, some on either side of where the formula changes."""
    random = np.random.default_rng(seed)
    x = np.float32(random.standard_normal(COUNT) * 10.0 ** random.uniform(-30, 1.5, COUNT))
    x[:40] = np.linspace(-9.2, 9.2, 40)
    x[40:60] = np.linspace(0.58, 0.62, 20)
    return x


@pytest.mark.parametrize("contraction", ["off", "on"])
@pytest.mark.parametrize("code", [80, 90, 100, BRANCHES], ids=named)
def test_the_lifted_tangent_is_that_of_the_lifted_argument(code, contraction):
    x = spread()
    near = x.astype(np.float64) * (1 + 2.0**-26)
    floats, shadows, counters = run(compiled(code), x, shadows=near, contraction=contraction)
    wanted = np.tanh(near)
    assert (np.abs(shadows - wanted) <= 2.0**-52 * np.abs(wanted)).all()
    assert (np.abs(floats - wanted) <= 2.0**-21 * np.abs(wanted)).all()
    assert (counters.desynchronised, counters.broken, counters.describe()) == (0, set(), ())


@pytest.mark.parametrize("code", SHAPES, ids=named)
def test_infinities_and_nan_go_the_way_of_the_floats(code):
    x = np.resize(np.float32([np.inf, -np.inf, np.nan, 0.0, 0.5]), COUNT)
    floats, shadows, counters = run(compiled(code), x)
    assert floats[:2].tolist() == shadows[:2].tolist() == [1.0, -1.0]
    assert np.isnan([floats[2], shadows[2]]).all()
    assert shadows[3:5].tolist() == [0.0, np.tanh(0.5)]
    assert counters.desynchronised == 0


@pytest.mark.parametrize("old", ["0fBEAAA9ED", "0f41102CB4"], ids=["polynomial", "end"])
@pytest.mark.parametrize("code", SHAPES, ids=named)
def test_another_coefficient_is_lost_and_its_place_is_told(code, old):
    ptx, kernel = compiled(code)
    assert old in ptx
    new = {"0fBEAAA9ED": "0fBEA0A9ED", "0f41102CB4": "0f40102CB4"}[old]
    x = spread(1)
    floats, shadows, counters = run((ptx.replace(old, new), kernel), x)
    lost = np.abs(floats - np.tanh(x.astype(np.float64))) > 2.0**-20 * np.abs(floats)
    assert lost.any()
    assert counters.desynchronised >= lost.sum()
    (place,) = counters.lost
    ends = [i.opcode for i in lasts(ptx, kernel)]
    assert set(place.split(", ")) & set(ends)
    assert (shadows[lost] == floats[lost]).all()


@pytest.mark.parametrize("code", SHAPES, ids=named)
def test_a_tangent_of_which_something_else_reads_a_part_is_none(code):
    ptx, kernel = compiled(code)

    program, found = recognised(ptx, kernel)
    for one in found.values():
        inner = (i for i in program.instructions() if id(i) in one.inner)
        part = next(d for i in inner for d in i.written if d.startswith("%r"))
        store = next(line for line in ptx.splitlines() if "st.global" in line)
        other = store.split("{")[0] + "{ " + part + " };"
        assert not recognised(ptx.replace(store, f"{store}\n{other}"), kernel)[1]


def test_one_arm_alone_is_no_tangent():
    ptx, kernel = compiled(BRANCHES)
    near, far = lasts(ptx, kernel)
    assert (near.opcode, far.opcode) == ("fma.rn.ftz.f32", "or.b32")
    for line, other in [
        ("fma.rn.ftz.f32 \t%r24, %r23, %r2, %r2;", "fma.rn.ftz.f32 \t%r24, %r23, %r2, %r14;"),
        ("or.b32 \t%r24, %r13, %r12;", "xor.b32 \t%r24, %r13, %r12;"),
    ]:
        assert line in ptx
        assert not lasts(ptx.replace(line, other), kernel)


@pytest.mark.parametrize("code", SHAPES, ids=named)
def test_its_running_bound_holds_and_is_narrow(code):
    x = spread(2)
    given = np.abs(x.astype(np.float64)) * 2.0**-24
    floats, bounds, _ = run(compiled(code), x, "ball", shadows=given)
    ends = [np.tanh(x.astype(np.float64) + sign * given) for sign in (-1, 1)]
    assert all((np.abs(floats - end) <= bounds).all() for end in ends)
    assert (bounds <= 2.0**-20 * np.abs(floats) + given + 2.0**-120).all()


@pytest.mark.parametrize("code", SHAPES, ids=named)
def test_the_parts_of_its_error_add_up(code):
    x = spread(3)
    arithmetic = attribution.build(places=(attribution.CONSTANTS,))
    shadows = np.zeros(COUNT, arithmetic.dtype)
    shadows["exact"] = x.astype(np.float64) * (1 + 2.0**-20)
    shadows["parts"][:, 0] = x - shadows["exact"]
    floats, found, _ = run(compiled(code), x, arithmetic, shadows=shadows)
    error = floats - np.tanh(shadows["exact"])
    assert (np.abs(found["parts"].sum(axis=1) - error) <= 2.0**-40).all()

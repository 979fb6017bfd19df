"""The compilers' logarithms are followed as one function where they are one, and lost where they are not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the logarithms here are Triton's; Triton is not installed")

import triton
import triton.language as tl

from verifier import machine
from verifier.machine.ptx import basic_blocks, logarithms
from verifier.machine.ptx.parser import parse
from verifier.machine.shadow.arithmetics import attribution, field_exponential, make

COUNT = 128
FUNCTIONS = {"log": np.log, "log2": np.log2}


@triton.jit
def _logarithm(x, y, NAME: tl.constexpr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    value = tl.load(x + at)
    tl.store(y + at, tl.log(value) if NAME == "log" else tl.log2(value))


@cache
def compiled(name, architecture=90):
    """PTX of a kernel that stores the logarithm of each element, and the kernel's name."""
    with machine.session(architecture=architecture) as opened:
        _logarithm[(1,)](torch.ones(COUNT), torch.ones(COUNT), name, COUNT)
        ((ptx, kernel),) = opened.codes
    return ptx, kernel


def run(code, values, arithmetic="lifted", shadows=None, **settings):
    """Floats and shadows of the stored logarithms, and the session's counters."""
    x, y = torch.from_numpy(np.float32(values)), torch.zeros(COUNT)
    ptx, kernel = code
    function = parse(ptx).functions[kernel]
    threads = function.directives["reqntid"][0]
    with machine.session(arithmetic=arithmetic, **settings) as opened:
        opened.slots.set(x, np.float64(values) if shadows is None else shadows)
        others = [0] * (len(function.parameters) - 2)
        machine.launch_ptx(ptx, kernel, (1,), (threads,), 0, [x, y, *others])
        return y.numpy(), opened.slots.get(y), opened.slots.counters


def positive(seed=0):
    """Positive floats of all sizes, subnormal ones and neighbours of 1 included."""
    bits = np.random.default_rng(seed).integers(1, 0x7F800000, COUNT, dtype=np.uint32)
    bits[:32] = np.arange(0x3F7FFFF0, 0x3F800010)
    bits[32:40] = np.arange(1, 9)
    return bits.view(np.float32)


@pytest.mark.parametrize("contraction", ["off", "on"])
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_lifted_logarithm_is_that_of_the_lifted_argument(name, architecture, contraction):
    x = positive()
    near = x.astype(np.float64) * (1 + 2.0**-26)  # what the floats were rounded from
    floats, shadows, counters = run(compiled(name, architecture), x, shadows=near, contraction=contraction)
    wanted = FUNCTIONS[name](near)
    # A subnormal argument is scaled, and 23 is taken from its logarithm: each a rounding at 105 at most.
    assert (np.abs(shadows - wanted) <= 2.0**-44).all()
    assert (np.abs(shadows - wanted) <= np.abs(floats - wanted)).all()
    assert (counters.desynchronised, counters.broken, counters.describe()) == (0, set(), ())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_infinity_nan_and_negative_arguments_go_the_way_of_the_floats(name):
    x = np.resize(np.float32([0.0, np.inf, np.nan, -1.0, 2.0]), COUNT)
    floats, shadows, counters = run(compiled(name), x)
    assert floats[:4].tolist()[:2] == shadows[:2].tolist() == [-np.inf, np.inf]
    assert np.isnan(floats[2:4]).all()
    assert np.isnan(shadows[2:4]).all()
    assert shadows[4] == FUNCTIONS[name](2.0)
    assert counters.desynchronised == 0


@pytest.mark.parametrize(
    ("name", "old", "new"), [("log", "0f3E1039F6", "0f3F1039F6"), ("log2", "0fBE2C7F30", "0fBF2C7F30")]
)
def test_another_polynomial_is_lost_and_its_place_is_told(name, old, new):
    ptx, kernel = compiled(name)
    assert old in ptx
    x = np.linspace(1.25, 100.0, COUNT)
    floats, shadows, counters = run((ptx.replace(old, new), kernel), x)
    lost = np.abs(floats - FUNCTIONS[name](np.float32(x).astype(np.float64))) > 2.0**-20
    assert lost.any()
    assert counters.desynchronised >= lost.sum()
    (place,) = counters.lost
    assert ("fma" if name == "log" else "add") in place
    assert (shadows[lost] == floats[lost]).all()


def test_another_step_of_the_exponent_is_another_shape():
    ptx, kernel = compiled("log")
    assert "0f34000000" in ptx
    _, _, counters = run((ptx.replace("0f34000000", "0f34000001"), kernel), np.linspace(1.25, 100.0, COUNT))
    assert counters.broken


def test_a_logarithm_of_which_something_else_reads_a_part_is_none():
    ptx, _ = compiled("log")
    module = parse(ptx)
    (function,) = (f for f in module.functions.values() if f.is_kernel)
    program = basic_blocks.build(module, function)
    (found,) = logarithms.find(program).values()
    names = {d for i in program.instructions() if id(i) in found.inner for d in i.written}
    inner = min(names)
    store = next(line for line in ptx.splitlines() if "st.global" in line)
    other = store.split("{")[0] + "{ " + inner + " };"
    changed = ptx.replace(store, f"{store}\n{other}")
    module = parse(changed)
    assert not logarithms.find(basic_blocks.build(module, module.functions[function.name]))
    assert logarithms.find(basic_blocks.build(parse(ptx), parse(ptx).functions[function.name]))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_its_running_bound_holds_and_is_narrow(name):
    x = positive(1)
    given = np.abs(x.astype(np.float64)) * 2.0**-24
    floats, bounds, _ = run(compiled(name), x, "ball", shadows=given)
    ends = [FUNCTIONS[name](x.astype(np.float64) + s * given) for s in (-1, 1)]
    assert all((np.abs(floats - e) <= bounds).all() for e in ends)
    normal = x >= 2.0**-126  # below, the argument may be flushed
    room = 2.0**-21 * np.maximum(np.abs(floats), 1)
    assert (bounds[normal] <= room[normal]).all()


def test_in_the_field_it_turns_products_into_sums():
    arithmetic = make("field_exponential")
    exponents = np.random.default_rng(2).integers(0, field_exponential.EXPONENTS, (2, COUNT), dtype=np.uint64)
    powers = [field_exponential.power_of_two(e, field_exponential._MODULI["value"]) for e in exponents]
    total = powers[0] * powers[1] % field_exponential._MODULI["value"]
    nothing = field_exponential.pair(np.zeros(COUNT, np.uint64), np.zeros(COUNT, np.uint64))
    log2_e = arithmetic.lift(np.float64(field_exponential._LOG2_E).reshape(1), "f32")
    found = {}
    for name in FUNCTIONS:
        values = (*powers, total)
        a, b, ab = (
            arithmetic.apply(name, "f32", v, (v, v), (field_exponential.pair(v, v), nothing)) for v in values
        )
        assert ((a["exponent"] + b["exponent"]) % field_exponential.EXPONENTS == ab["exponent"]).all()
        found[name] = a
    back = arithmetic.apply("mul", "f32", np.ones(1), (), (found["log"], log2_e))
    assert (back["exponent"] == found["log2"]["exponent"]).all()
    assert (found["log2"]["exponent"] == exponents[0]).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parts_of_its_error_add_up(name):
    x = positive(3)
    arithmetic = attribution.build(places=(attribution.CONSTANTS,))
    shadows = np.zeros(COUNT, arithmetic.dtype)
    shadows["exact"] = x.astype(np.float64) * (1 + 2.0**-20)
    shadows["parts"][:, 0] = x - shadows["exact"]
    floats, found, _ = run(compiled(name), x, arithmetic, shadows=shadows)
    error = floats - FUNCTIONS[name](shadows["exact"])
    assert (np.abs(found["parts"].sum(axis=1) - error) <= 2.0**-40).all()

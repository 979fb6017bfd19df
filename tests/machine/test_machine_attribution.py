"""The error of every output is split over source lines, and the parts add up to it."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton", reason="attribution is tried on Triton kernels; Triton is missing")
import machine_kernels as kernels  # noqa: E402
import triton.language as tl  # noqa: E402

from verifier import machine  # noqa: E402
from verifier.machine.execute.findings import Location  # noqa: E402
from verifier.machine.shadow.arithmetics.attribution import (  # noqa: E402
    CONSTANTS,
    ELSEWHERE,
    Attribution,
    CallChain,
    ErringLines,
    place_of,
)
from verifier.machine.shadow.arithmetics.ball import BallArithmetic  # noqa: E402

HERE = str(Path(__file__))


@triton.jit
def textbook(X, Y, N, eps, NARROW: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (a kernel)
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    var = tl.sum(x * x, axis=0) / N - mean * mean
    rstd = 1 / tl.sqrt(var + eps)
    if NARROW:
        rstd = rstd.to(tl.float16).to(tl.float32)
    tl.store(Y + row * N + cols, (x - mean) * rstd, mask=cols < N)


def line_of(function, text):
    """Return the number of the line of a kernel that holds a text."""
    lines, first = inspect.getsourcelines(function.fn if hasattr(function, "fn") else function)
    return first + next(n for n, line in enumerate(lines) if text in line)


def explained(run):
    """Return (error, parts) of each returned tensor of a function, and the places that errors come from."""
    erring_lines = ErringLines(HERE)
    with machine.session(arithmetic=erring_lines):
        run()
    arithmetic = Attribution(HERE, sorted(erring_lines.erring))
    with machine.session(arithmetic=arithmetic) as session:
        tensors = run()
        shadows = [session.slots.get(t) for t in tensors]
        counters = session.slots.counters
    assert not counters.desynchronised
    assert not counters.uncovered
    assert not arithmetic.unknown
    found = [(t.double().numpy() - s["exact"], s["parts"]) for t, s in zip(tensors, shadows, strict=True)]
    return found, arithmetic.places


def shares(error, parts, places):
    """Share of the squared error by line."""
    total = np.sum(error * error)
    found = {}
    for number, place in enumerate(places):
        line = place.frames[0][1] if place.frames else place.word
        found[line] = found.get(line, 0.0) + float(np.sum(parts[..., number] * error) / total)
    return found


def layer_norm(dtype, rows=8, columns=300):
    x, w, b, dy = kernels.inputs(rows, columns, dtype)
    y, mean, rstd = kernels.forward(x, w, b)
    return y, mean, rstd, *kernels.backward(dy, x, w, mean, rstd)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_parts_add_up_to_the_error_of_every_element(dtype):
    found, _ = explained(lambda: layer_norm(dtype))
    with machine.session(arithmetic=BallArithmetic()) as session:
        bounds = [session.slots.get(t) for t in layer_norm(dtype)]
    for (error, parts), bound in zip(found, bounds, strict=True):
        # A running bound counts 2^-24 and more for every rounding of the code. Value and parts of an
        # operation have at most 8 + 14 float64 roundings (2^-53 each) of numbers of that size.
        assert (np.abs(error - parts.sum(axis=-1)) <= bound * 32 * 2.0**-29).all()
        assert np.abs(error).max() > 0


def centred_far_away():
    return torch.randn(8, 1000, generator=torch.Generator().manual_seed(0)) + 1000


def run_textbook(x, narrow=False):
    y = torch.empty_like(x)
    textbook[(x.shape[0],)](x, y, x.shape[1], 1e-5, NARROW=narrow, BLOCK=1024)
    return (y,)


def test_a_textbook_variance_is_blamed_on_its_two_sums():
    ((error, parts),), places = explained(lambda: run_textbook(centred_far_away()))
    found = shares(error, parts, places)
    mean, var = line_of(textbook, "mean = tl.sum"), line_of(textbook, "var = tl.sum")
    assert found[mean] + found[var] > 0.99
    assert min(found[mean], found[var]) > 0.01
    # Parts are good to about 2^-29 of a float32 error; kappa 1e3 and 8000 elements leave 2^-20.
    assert abs(sum(found.values()) - 1) < 2.0**-20


def test_a_rounding_that_is_put_in_is_blamed_on_its_line():
    x = torch.randn(8, 1000, generator=torch.Generator().manual_seed(0))
    line = line_of(textbook, "rstd = rstd.to")
    (one,), places = explained(lambda: run_textbook(x, narrow=True))
    assert shares(*one, places)[line] > 0.99
    (one,), places = explained(lambda: run_textbook(x, narrow=False))
    assert line not in shares(*one, places)


def test_a_host_sum_is_blamed_on_the_line_of_the_wrapper():
    def run():
        x, w, b, _ = kernels.inputs(64, 100, torch.float16)
        y = kernels.forward(x, w, b)[0]
        return (y.float().sum(0).to(torch.bfloat16),)  # bfloat16 rounds where the sum is narrowed

    (one,), places = explained(run)
    assert shares(*one, places)[line_of(run, "torch.bfloat16")] > 0.9


def test_exact_arithmetic_has_no_part():
    def run():
        x = torch.arange(64, dtype=torch.float32).reshape(2, 32)
        y = torch.empty_like(x)
        kernels.copy_columns[(1,)](x, y, 64, 0, BLOCK=64)
        return (y,)

    ((error, parts),), places = explained(run)
    assert not error.any()
    assert not parts.any()
    assert places == (ELSEWHERE,)


def test_the_constants_of_an_exponential_have_a_part():
    def run():
        return (kernels.softmax(8 * kernels.inputs(4, 100, torch.float32)[0]),)

    (one,), places = explained(run)
    assert CONSTANTS in places
    error, parts = one
    assert np.abs(parts[..., places.index(CONSTANTS)]).max() > 0
    # Softmax in float32 errs by less than 2^-18 of values up to 1; its parts leave 2^-29 of that open.
    assert np.abs(error - parts.sum(axis=-1)).max() <= 2.0**-18 * 2.0**-29


def test_an_operation_without_a_rule_is_reported():
    arithmetic = Attribution("", ())
    value = np.ones(3, dtype=np.float32)
    shadows = arithmetic.lift(value, "f32")
    arithmetic.apply("atan", "f32", value, (value,), (shadows,))
    assert arithmetic.unknown == {"atan"}


EXACT = {
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
    "rcp": lambda a: 1 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "ex2": np.exp2,
    "lg2": np.log2,
    "tanh": np.tanh,
    "neg": lambda a: -a,
    "abs": abs,
}


@pytest.mark.parametrize(
    ("name", "floats", "exact"),
    [
        ("mul", (3.0, 5.0), (3.5, 4.0)),
        ("div", (3.0, 5.0), (3.5, 4.0)),
        ("fma", (3.0, 5.0, 1.0), (3.5, 4.0, -1.0)),
        ("rcp", (3.0,), (3.5,)),
        ("sqrt", (3.0,), (3.5,)),
        ("rsqrt", (3.0,), (3.5,)),
        ("ex2", (3.0,), (3.5,)),
        ("lg2", (3.0,), (3.5,)),
        ("tanh", (0.25,), (0.5,)),
        ("neg", (3.0,), (3.5,)),
        ("abs", (-3.0,), (-3.5,)),
        ("abs", (0.25,), (-0.5,)),
    ],
)
def test_secants_carry_large_errors_exactly(name, floats, exact):
    arithmetic = Attribution("", ())
    values = tuple(np.array([f]) for f in floats)
    shadows = []
    for value, ideal in zip(values, exact, strict=True):
        shadow = arithmetic.lift(value, "f64")
        shadow["exact"], shadow["parts"][..., 0] = ideal, value - ideal
        shadows.append(shadow)
    result = EXACT[name](*floats) + np.zeros(1)
    answer = arithmetic.apply(name, "f64", result, values, tuple(shadows))
    # A dozen float64 roundings of numbers below 2^5.
    assert abs(float(answer["exact"][0]) - EXACT[name](*exact)) <= 2.0**-53 * 32
    assert abs(float(result[0]) - float(answer["exact"][0]) - answer["parts"].sum()) <= 12 * 2.0**-53 * 32


def test_frames_of_libraries_are_left_out_unless_there_is_nothing_else():
    library = "/x/site-packages/triton/language/standard.py"
    chain = ((library, 10), ("/me/k.py", 5))
    assert place_of(Location(file="/me/k.py", line=7, inlined=chain)) == CallChain(
        frames=(("/me/k.py", 5), ("/me/k.py", 7))
    )
    assert place_of(Location(file=library, line=3)) == CallChain(frames=((library, 3),))
    assert place_of(None) == ELSEWHERE

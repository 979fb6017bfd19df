"""Intervals of terms, held against all numbers of a tiny format; magnitudes up to which all is finite."""

from dataclasses import replace

import numpy as np
import pytest

from verifier.arithmetic.formats import Format
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.ranges import Intervals, finite_below, results
from verifier.arithmetic.simulated import round_to

TINY = Format(name="tiny", precision=3, minimum_exponent=-2, maximum=14.0)
POINTS = np.unique(round_to(TINY, np.concatenate([np.arange(0, 2, 1 / 16), np.arange(2, 15, 0.5)])))
VALUES = np.concatenate([-POINTS[:0:-1], POINTS])
COMPUTES = {
    "add": np.add,
    "mul": np.multiply,
    "fma": lambda a, b, c: a * b + c,  # exact in float64 for numbers of three bits
    "div": np.divide,
    "rcp": lambda a: 1.0 / a,
    "divfma": lambda a, b, c: a / b + c,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "max": np.maximum,
    "min": np.minimum,
    "abs": np.abs,
    "narrow": lambda a: a,
}
ARITY = {"fma": 3, "divfma": 3, "rcp": 1, "sqrt": 1, "rsqrt": 1, "abs": 1, "narrow": 1}


@pytest.mark.parametrize("family", COMPUTES)
def test_an_interval_holds_every_result_in_a_tiny_format(family):
    arity, draw = ARITY.get(family, 2), np.random.default_rng(0)
    ends = np.arange(len(VALUES))
    pairs = np.array([(a, b) for a in ends for b in ends[a:]])
    bounded = 0
    for _ in range(300):
        chosen = pairs[draw.integers(0, len(pairs), arity)]
        same = arity > 1 and bool(draw.integers(0, 2))
        chosen[1:2] = chosen[:1] if same else chosen[1:2]
        given = [Intervals(low=VALUES[[a]], high=VALUES[[b]]) for a, b in chosen]
        found = results(family, TINY, given, np.array([same]))
        inside = list(np.meshgrid(*[VALUES[a : b + 1] for a, b in chosen]))
        if same:
            inside[1] = inside[0]
        with np.errstate(all="ignore"):
            computed = round_to(TINY, COMPUTES[family](*inside))
        low, high = float(found.low[0]), float(found.high[0])
        if np.isfinite([low, high]).all():
            bounded += 1
            assert np.isfinite(computed).all()
            assert low <= computed.min()
            assert computed.max() <= high
        elif np.isfinite(computed).all() and family in {"add", "mul", "abs", "max", "min", "narrow"}:
            pytest.fail(f"{family} of {chosen} is finite")
    assert bounded > 15


def exponent_of(make, kind="f32"):
    builder = Builder()
    x, y = builder.append("input:x", value=np.arange(2))
    one = builder.append("literal:f32", value=0x3F800000)
    node = make(builder.append, x, y, one)
    return finite_below(builder.graph({"y": np.asarray(node)}, {"x": kind}))


def root(op, x, one):
    return op("rsqrt.approx.f32", op("fma.rn.f32", x, x, one))


def clamped(op, x, one, compare="setp.lt.f32"):
    return op("ite", op(compare, x, one), one, x)


@pytest.mark.parametrize(
    ("wanted", "make"),
    [
        (127, lambda op, x, y, one: x),
        (126, lambda op, x, y, one: op("add.f32", x, y)),
        (63, lambda op, x, y, one: op("mul.f32", x, y)),
        (63, lambda op, x, y, one: root(op, x, one)),
        (63, lambda op, x, y, one: op("mul.f32", y, root(op, x, one))),
        (127, lambda op, x, y, one: op("div.rn.f32", y, clamped(op, x, one))),
        (None, lambda op, x, y, one: op("div.rn.f32", y, clamped(op, x, one, "setp.gt.f32"))),
        (None, lambda op, x, y, one: op("div.rn.f32", y, op("ite", op("setp.lt.f32", y, one), one, x))),
        (None, lambda op, x, y, one: op("div.rn.f32", one, x)),
        (None, lambda op, x, y, one: op("sqrt.rn.f32", op("mul.f32", x, y))),
        (None, lambda op, x, y, one: op("rsqrt.approx.f32", op("mul.f32", x, x))),
        (63, lambda op, x, y, one: op("rsqrt.approx.ftz.f32", op("fma.rn.f32", x, x, one))),
        (None, lambda op, x, y, one: op("rsqrt.approx.ftz.f32", op("mul.f32", x, x))),
        (None, lambda op, x, y, one: op("sqrt.approx.ftz.f32", one)),
        (127, lambda op, x, y, one: op("divfma.full.f32", x, one, one)),
        (None, lambda op, x, y, one: op("divfma.full.f32", one, x, one)),
        (15, lambda op, x, y, one: op("cvt.rn.f16.f32", x)),
        (7, lambda op, x, y, one: op("cvt.f32.f16", op("cvt.rn.f16.f32", op("mul.f32", x, y)))),
        # what is infinite below is not made finite again above
        (63, lambda op, x, y, one: op("div.rn.f32", one, op("fma.rn.f32", x, x, one))),
    ],
)
def test_the_largest_power_of_two_is_found_and_nothing_is_claimed_of_what_may_be_infinite(wanted, make):
    found = exponent_of(make)
    assert found.exponent == wanted, found
    assert bool(found.why) == (wanted is None)


@pytest.mark.parametrize("copied", [False, True])
def test_what_may_be_two_numbers_is_not_squared_and_not_clamped(copied):
    builder = Builder()
    x, y = builder.append("input:x", value=np.arange(2))
    one = builder.append("literal:f32", value=0x3F800000)
    total = builder.append("fma.rn.f32", x, y, x)
    square = builder.append("sqrt.rn.f32", builder.append("mul.f32", total, total))
    quotient = builder.append("div.rn.f32", y, clamped(builder.append, total, one))
    for node in (square, quotient):
        graph = builder.graph({"y": np.asarray(node)}, {"x": "f32"})
        marked = replace(graph, several=np.arange(len(graph)) == total)
        assert (finite_below(marked if copied else graph).exponent is None) == copied


def test_elements_do_not_exceed_what_their_format_holds():
    assert (
        exponent_of(
            lambda op, x, y, one: op("mul.f32", *(op("cvt.f32.f16", z) for z in (x, y))), "f16"
        ).exponent
        == 127
    )


def literal(op, bits):
    return op("literal:f32", value=bits)


def product_at_the_edge(op, root_of_four):
    """2 times half of the largest number, where the 2 is a root."""
    return op("mul.f32", op(f"{root_of_four}.f32", literal(op, 0x40800000)), literal(op, 0x7EFFFFFF))


def quotient_near_zero(op, x, root_of):
    """A subnormal number over the root of a square and that number."""
    least = literal(op, 4)
    return op("div.rn.f32", least, op("add.f32", op(f"{root_of}.f32", op("mul.f32", x, x)), least))


@pytest.mark.parametrize(
    ("make", "bounded"),
    [
        (lambda op, x, one: product_at_the_edge(op, "sqrt.rn"), True),
        (lambda op, x, one: product_at_the_edge(op, "sqrt.approx"), False),
        (lambda op, x, one: quotient_near_zero(op, x, "sqrt.rn"), True),
        (lambda op, x, one: quotient_near_zero(op, x, "sqrt.approx"), False),
        (lambda op, x, one: op("rsqrt.approx.f32", op("fma.rn.f32", x, x, literal(op, 512))), True),
        (lambda op, x, one: op("rsqrt.approx.ftz.f32", op("fma.rn.f32", x, x, literal(op, 512))), False),
        (lambda op, x, one: op("rcp.rn.f32", clamped(op, x, one)), True),
        (
            lambda op, x, one: op(
                "rcp.rn.f32", op("ite", op("setp.lt.f32", x, one), one, op("neg.f32", x))
            ),
            False,
        ),
    ],
    ids=[
        "root", "approximate_root", "root_of_zero", "approximate_root_of_zero", "subnormal",
        "flushed", "clamped", "negative_of_what_is_asked",
    ],
)  # fmt: skip
def test_what_an_instruction_may_err_by_or_flush_is_counted(make, bounded):
    found = exponent_of(lambda op, x, y, one: make(op, x, one))
    assert (found.exponent is not None) is bounded, found

"""Each rule of the enclosed arithmetic holds the exact result of operands in their radii, and is narrow."""

import mpmath
import numpy as np
import pytest

from verifier.machine.shadow.arithmetics import enclosed
from verifier.machine.shadow.arithmetics.lifted import LITERALS

mp = mpmath.mp
UNIT = enclosed.UNIT_ROUNDOFF
# Of each operation its meaning, the slopes of its operands, and a range of each operand.
RULES = {
    "add": (lambda a, b: a + b, lambda a, b: (1, 1), ((-3, 3), (-3, 3))),
    "sub": (lambda a, b: a - b, lambda a, b: (1, 1), ((-3, 3), (-3, 3))),
    "mul": (lambda a, b: a * b, lambda a, b: (b, a), ((-3, 3), (-3, 3))),
    "div": (lambda a, b: a / b, lambda a, b: (1 / b, a / b**2), ((-3, 3), (0.5, 4))),
    "fma": (lambda a, b, c: a * b + c, lambda a, b, c: (b, a, 1), ((-3, 3), (-3, 3), (-3, 3))),
    "divfma": (lambda a, b, c: a / b + c, lambda a, b, c: (1 / b, a / b**2, 1), ((-3, 3), (0.5, 4), (-3, 3))),
    "rcp": (lambda a: 1 / a, lambda a: (1 / a**2,), ((0.25, 4),)),
    "sqrt": (mpmath.sqrt, lambda a: (1 / (2 * mpmath.sqrt(a)),), ((0.01, 4),)),
    "rsqrt": (lambda a: 1 / mpmath.sqrt(a), lambda a: (a ** mpmath.mpf(-1.5) / 2,), ((0.01, 4),)),
    "ex2": (lambda a: mpmath.power(2, a), lambda a: (mpmath.power(2, a) * mpmath.log(2),), ((-30, 5),)),
    "lg2": (lambda a: mpmath.log(a, 2), lambda a: (1 / (a * mpmath.log(2)),), ((0.01, 9),)),
    "sin": (mpmath.sin, lambda a: (1,), ((-3, 3),)),
    "cos": (mpmath.cos, lambda a: (1,), ((-3, 3),)),
    "tanh": (mpmath.tanh, lambda a: (1,), ((-3, 3),)),
    "neg": (lambda a: -a, lambda a: (1,), ((-3, 3),)),
    "cvt": (lambda a: a, lambda a: (1,), ((-3, 3),)),
}
COUNT = 200


def shadows_of(values, radii):
    found = enclosed.exact(values)
    found["radius"] = radii
    return found


def applied(name, radius, arithmetic=None):
    """Return operands as (value, radius) pairs of one operation on random numbers, and its result."""
    ranges = RULES[name][2]
    generator = np.random.default_rng([len(name), *name.encode()])
    values = [generator.uniform(*r, COUNT) for r in ranges]
    radii = [radius * generator.choice([0.0, 1.0, 3.0], COUNT) * np.abs(v) for v in values]
    operands = tuple(shadows_of(v, r) for v, r in zip(values, radii, strict=True))
    floats = tuple(v.astype(np.float32) for v in values)
    kind = "f16" if name == "cvt" else "f32"
    answer = np.zeros(COUNT, dtype=np.float16 if name == "cvt" else np.float32)
    result = (arithmetic or enclosed.build()).apply(name, kind, answer, floats, operands)
    return list(zip(values, radii, strict=True)), result


@pytest.mark.parametrize("radius", [0.0, 2.0**-52, 2.0**-30, 2.0**-12])
@pytest.mark.parametrize("name", RULES)
def test_a_rule_holds_the_exact_result_at_the_ends_of_every_operand(name, radius):
    meaning, slopes, _ = RULES[name]
    operands, result = applied(name, radius)
    sides = np.array(np.meshgrid(*[[-1, 0, 1]] * len(operands))).reshape(len(operands), -1).T
    with mp.workprec(200):
        for i in range(COUNT):
            at = [mpmath.mpf(v[i]) for v, _ in operands]
            reach = [mpmath.mpf(r[i]) for _, r in operands]
            value, bound = mpmath.mpf(float(result["value"][i])), mpmath.mpf(float(result["radius"][i]))
            for side in sides:
                exact = meaning(*(a + int(s) * r for a, s, r in zip(at, side, reach, strict=True)))
                assert abs(value - exact) <= bound
            narrow = sum(abs(s) * r for s, r in zip(slopes(*at), reach, strict=True))
            size = abs(value) + sum(abs(a) for a in at) * 4
            assert (
                bound
                <= narrow * (1 + 64 * mpmath.mpf(radius)) * (1 + mpmath.mpf(2) ** -19) + 16 * UNIT * size
            )


@pytest.mark.parametrize("name", ["mul", "rsqrt", "ex2", "lg2", "fma"])
def test_a_rule_without_its_own_rounding_would_be_seen(name, monkeypatch):
    monkeypatch.setattr(enclosed.Enclosed, "own", lambda *_: 0.0)
    with pytest.raises(AssertionError):
        test_a_rule_holds_the_exact_result_at_the_ends_of_every_operand(name, 0.0)


def test_nothing_is_known_of_a_sum_with_a_computed_number_that_could_choose_an_integer():
    value, computed = np.float32([2.3]), np.float32([1.5 * 2.0**23])
    shadows = tuple(shadows_of(np.float64(v), radius) for v, radius in ((value, 0.0), (computed, 0.5)))
    found = enclosed.build().apply("add", "f32", value + computed, (value, computed), shadows)
    assert np.isinf(found["radius"]).all()
    literal = shadows_of(np.float64(computed), 0.0)
    found = enclosed.build().apply("add", "f32", value + computed, (value, computed), (shadows[0], literal))
    assert found["radius"].tolist() == [0]


def test_an_operation_without_a_rule_knows_nothing():
    _, result = applied("add", 0.0)
    unknown = enclosed.build().apply("copysign", "f32", np.zeros(2, np.float32), (), (result[:2],))
    assert np.isinf(unknown["radius"]).all()


@pytest.mark.parametrize("name", ["min", "max"])
def test_a_choice_has_the_radius_of_the_operands_that_may_have_been_chosen(name):
    floats = (np.float32([1, 2, 2]), np.float32([2, 1, 2]))
    shadows = (
        shadows_of(np.float64(floats[0]), [0.5, 0.5, 0.5]),
        shadows_of(np.float64(floats[1]), [0.25] * 3),
    )
    result = (np.minimum if name == "min" else np.maximum)(*floats)
    found = enclosed.build().apply(name, "f32", result, floats, shadows)
    assert found["radius"].tolist() == ([0.5, 0.25, 0.5] if name == "min" else [0.25, 0.5, 0.5])


def test_masked_lanes_of_minus_infinity_stay_exact():
    nothing = shadows_of(np.full(2, -np.inf), 0.0)
    shift = shadows_of(np.full(2, 3.0), 2.0**-40)
    floats = (np.full(2, -np.inf, np.float32), np.full(2, 3.0, np.float32))
    lower = enclosed.build().apply("sub", "f32", floats[0], floats, (nothing, shift))
    power = enclosed.build().apply("ex2", "f32", np.zeros(2, np.float32), (floats[0],), (lower,))
    assert lower["radius"].tolist() == [0, 0]
    assert power["value"].tolist() == [0, 0]
    assert (power["radius"] < 2.0**-1000).all()


# -- constants -------------------------------------------------------------------------------------------


def constant(number, kind="f32", **settings):
    arithmetic = enclosed.build(**settings)
    dtype = {"f32": np.float32, "f16": np.float16}[kind]
    shadow = arithmetic.lift(np.array([[number]], dtype=dtype), kind)[0, 0]
    return float(shadow["value"]), float(shadow["radius"]), arithmetic.rounded


@pytest.mark.parametrize("number", [0.0, 1.5, -0.875, 3.0, 2.0**-20, np.inf])
def test_a_short_constant_is_what_it_says(number):
    assert constant(number) == (number, 0.0, set())


@pytest.mark.parametrize("meant", [0.1, 1 / 3, -1.702, 1 / 257, 1 / 4097])
def test_a_long_constant_may_stand_for_what_rounds_to_it(meant):
    value, radius, rounded = constant(meant)
    assert abs(value - meant) <= radius
    assert radius <= 2.0**-22 * abs(meant) * (1 + 2.0**-20)
    assert rounded == {value}


def test_known_constants_and_those_of_the_specification_are_exact():
    for number, meant in LITERALS.items():
        value, radius, rounded = constant(number)
        assert (value, rounded) == (meant, set())
        assert radius == UNIT * abs(meant)
    for sign in (1, -1):
        value, radius, rounded = constant(sign * 1.702, as_written=[1.702])
        assert value == sign * 1.702
        assert radius <= UNIT * 2
        assert not rounded


def test_a_constant_with_two_meanings_has_neither():
    """0.6931472 in a specification is not the logarithm of 2, although both are the same float32."""
    value, radius, rounded = constant(0.6931472, as_written=[0.6931472])
    assert value == float(np.float32(0.6931472))
    assert abs(value - np.log(2)) < radius
    assert rounded == {value}


def test_an_array_that_lost_its_slots_is_unknown():
    found = enclosed.build().lift(np.array([0.1, 2.0], dtype=np.float32), "f32")
    assert found["radius"].tolist() == [np.inf, 0.0]


def test_integers_are_exact():
    found = enclosed.build().lift(np.array([3, 2**40 + 1]), "integer")
    assert found["value"].tolist() == [3, 2**40 + 1]
    assert found["radius"].tolist() == [0, 0]


# -- modifiers -------------------------------------------------------------------------------------------


def test_a_clamp_is_exact_where_it_holds_and_nothing_is_rounded_where_it_does_not():
    floats = (np.float32([0.25, 2.0]), np.float32([0.5, 1.0]))
    shadows = tuple(shadows_of(np.float64(f), 2.0**-40) for f in floats)
    result = np.clip(floats[0] + floats[1], 0, 1)
    found = enclosed.build().modified("add", frozenset({"sat"}), "f32", result, floats, shadows)
    assert found["value"].tolist() == [0.75, 1.0]
    assert found["radius"][1] == 0
    assert found["radius"][0] >= 2.0**-39
    other = enclosed.build().modified("max", frozenset({"xorsign"}), "f32", result, floats, shadows)
    assert np.isinf(other["radius"]).all()

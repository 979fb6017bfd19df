"""Laws of the prime fields, against Python's integers and fractions."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from ptx_snippets import kernel

from verifier import machine
from verifier.machine.arithmetic.numerics import decode_bf16
from verifier.machine.shadow.arithmetics import field, field_exponential, make

P, Q, E = field.P, field_exponential.VALUES, field_exponential.EXPONENTS
CORNERS = [0, 1, 2, P - 1, P - 2, (1 << 31) - 1, 1 << 31, (1 << 60) + 1, P >> 1]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.1, 2.0**1000, -(2.0**-1000), 1e308, 3.0, 2.0**-126, 5e-324, -3e-310]


def numbers(count=2000, modulus=P, seed=0):
    drawn = np.random.default_rng(seed).integers(0, modulus, count, dtype=np.uint64)
    corners = [c % modulus for c in CORNERS]
    drawn[: len(corners)] = corners[:count]
    return drawn


def test_operations_agree_with_pythons_integers():
    a, b = numbers(), np.roll(numbers(), 3)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert field.add(a, b).tolist() == [(x + y) % P for x, y in pairs]
    assert field.subtract(a, b).tolist() == [(x - y) % P for x, y in pairs]
    assert field.multiply(a, b).tolist() == [x * y % P for x, y in pairs]
    assert field.negate(a).tolist() == [-x % P for x, _ in pairs]


def test_operations_broadcast_and_take_scalars():
    a, b = numbers(6).reshape(6, 1), numbers(4, seed=1)
    wanted = [[x * y % P for y in b.tolist()] for x in a[:, 0].tolist()]
    assert field.multiply(a, b).tolist() == wanted
    assert int(field.multiply(np.uint64(P - 1), np.uint64(P - 1))) == 1
    assert field.multiply(a, np.uint64(2)).shape == (6, 1)


@pytest.mark.parametrize("count", [1, 2, 63, 65, 1000, 1001])  # few are inverted singly, many by a tree
def test_inverses(count):
    a = numbers(count, seed=2)
    wanted = [pow(x, -1, P) if x else 0 for x in a.tolist()]
    assert field.inverse(a).tolist() == wanted
    assert field.inverse(np.repeat(a[:, None], 3, 1)).tolist() == [[w] * 3 for w in wanted]


@pytest.mark.parametrize("count", [5, 500])
def test_roots_of_squares(count):
    squares = field.multiply(numbers(count), numbers(count))
    roots = field.root(squares)
    assert (field.multiply(roots, roots) == squares).all()


@pytest.mark.parametrize("values", [FLOATS, FLOATS[:-2], FLOATS[4:5]])
def test_floats_are_their_rationals(values):
    wanted = [field.of_fraction(Fraction(v)) for v in values]
    assert field.of_floats(np.array(values)).tolist() == wanted
    for modulus in (Q, E):
        fractions = [Fraction(v) for v in values]
        wanted = [f.numerator * pow(f.denominator, -1, modulus) % modulus for f in fractions]
        assert field_exponential.of_floats(np.uint64(modulus), np.array(values)).tolist() == wanted


def test_what_is_not_finite_differs_from_every_other():
    residues = field.of_floats(np.array([np.inf, -np.inf, 0.0, 1.0]))
    assert len(set(residues.tolist())) == 4


def test_exponentials_turn_sums_into_products():
    ride = field_exponential.build()
    a, b = numbers(300, E), numbers(300, E, seed=3)
    power = lambda e: field_exponential.power_of_two(e, np.uint64(Q))  # noqa: E731
    assert power(a).tolist() == [pow(2, x, Q) for x in a.tolist()]
    assert (power((a + b) % np.uint64(E)) == power(a) * power(b) % np.uint64(Q)).all()
    whole = ride.lift(np.array([3.0, -5.0]), "f32")
    found = ride.exponential(np.zeros(2, np.bool_), whole)["value"]
    assert found.tolist() == ride.lift(np.array([8.0, 2.0**-5]), "f32")["value"].tolist()


def test_logarithms_undo_exponentials_and_turn_products_into_sums():
    exponents = numbers(40, E)
    values = field_exponential.power_of_two(exponents, np.uint64(Q))
    assert (field_exponential.logarithm_of_values(values) == exponents).all()
    negative = np.uint64(Q) - values
    assert (field_exponential.logarithm_of_values(negative) == exponents).all()
    a, b = numbers(20, Q)[1:], numbers(20, Q, seed=4)[1:]
    log = field_exponential.logarithm_of_values
    assert (log(a * b % np.uint64(Q)) == (log(a) + log(b)) % np.uint64(E)).all()
    assert log(np.zeros(1, dtype=np.uint64)).tolist() == [0]


def test_literals_of_compilers_stand_for_the_constants_that_they_round():
    ride = field_exponential.build()
    log2_e, ln_2, rest = (
        ride.lift(np.array([bits], dtype=np.uint32).view(np.float32), "f32")
        for bits in (0x3FB8AA3B, 0x3F317218, 0x32A57060)
    )
    one = ride.apply("mul", "f32", np.ones(1), (), (log2_e, ln_2))
    assert [int(one[part][0]) for part in ("value", "exponent")] == [1, 1]
    assert [int(rest[part][0]) for part in ("value", "exponent")] == [0, 0]


def test_the_integer_part_of_an_exponential_by_shifter_is_that_integer():
    """CUDA's expf adds 1.5 * 2^23 to find the exponent: the result is an integer, not x + 1.5 * 2^23."""
    ride = field_exponential.build()
    x, shifter = np.array([3.7], dtype=np.float32), np.array([12582912.0], dtype=np.float32)
    total = x + shifter
    shadow = ride.apply("add", "f32", total, (x, shifter), (ride.lift(x, "f32"), ride.lift(shifter, "f32")))
    assert shadow == ride.lift(np.array([12582916.0], dtype=np.float32), "f32")


# -- floats that stand for fractions ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["field", "field_exponential"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("numerator", [1, 2, -1, -2])
def test_the_float_next_to_a_fraction_of_a_whole_number_is_the_fraction(name, dtype, numerator):
    """Every k that is meant; no power of two changes, nor does a neighbour of such a float."""
    ride, whole = make(name), np.arange(1, field.WHOLE + 1)
    held = (numerator / whole).astype(dtype)
    clear = ~field.next_to_exact(held.astype(np.float64))
    assert clear[:1023].sum() > 1000  # next to short ones are powers of two alone, until k is large
    shadows, plain = ride.lift(held[clear], "f32"), make(name, constants={})
    shares = plain.lift(whole[clear], "integer")
    product = plain.apply("mul", "f64", np.ones(1), (), (shadows, shares))
    assert (product == plain.lift(np.full(len(shares), numerator), "integer")).all()
    for beside in (np.nextafter(held, dtype(0)), np.nextafter(held, dtype(numerator * np.inf))):
        shadows = ride.lift(beside, "f32")
        shadows = shadows if name == "field" else shadows["value"]
        wide = beside.astype(np.float64)
        exact = field.of_floats(wide) if name == "field" else field_exponential.of_floats(np.uint64(Q), wide)
        assert (shadows == exact).all()


@pytest.mark.parametrize(
    "number", [0.0, -0.0, 1.0, 0.5, -0.125, 3.0, 0.3, 1e-30, 1e300, np.inf, -np.inf, np.nan]
)
def test_other_floats_are_no_fractions(number):
    assert field.reciprocals(np.array([number])) is None
    assert field.reciprocals(np.array(number)) is None


def test_a_fraction_that_may_be_a_short_number_with_a_slip_stays_the_float():
    number = np.array([1 / 2047], np.float32).astype(np.float64)  # 2049 * 2^-22 and a quarter of an ulp
    assert field.reciprocals(number).tolist() == [4094]
    assert field.fractions_meant(number).tolist() == [0]
    assert make("field").lift(number, "f32") == field.of_floats(number)


# -- what no formula says: integers chosen and results clamped -------------------------------------


@pytest.mark.parametrize("name", ["field", "field_exponential", "lifted"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_float_made_integral_is_no_element_of_the_formula(name, dtype):
    """`cvt.rmi` of 2.5 and of 3: the first result is another number, the second is the operand."""
    arithmetic, kind = make(name), f"f{8 * np.dtype(dtype).itemsize}"
    x = np.array([2.5, 3.0], dtype)
    shadows = arithmetic.lift(np.array([7.0, 11.0]), "f64")
    found = arithmetic.apply("cvt", kind, np.floor(x), (x,), (shadows,))
    assert found[0] == arithmetic.lift(np.array([2.0]), "f64")[0]
    assert found[1] == shadows[1]


@pytest.mark.parametrize("name", ["field", "field_exponential", "lifted"])
@pytest.mark.parametrize(
    ("modifier", "x", "clamped"),
    [("sat", [-0.5, 0.25, 1.5], [0.0, None, 1.0]), ("relu", [-0.5, 0.25, 1.5], [0.0, None, None])],
)
@pytest.mark.parametrize("operation", ["add", "mul", "fma", "cvt"])
def test_a_clamped_result_is_taken_from_the_float(name, modifier, x, clamped, operation):
    arithmetic = make(name)
    values = np.array(x, np.float32)
    one, zero = np.float32([1.0] * 3), np.float32([0.0] * 3)
    floats = {"add": (values, zero), "mul": (values, one), "fma": (values, one, zero), "cvt": (values,)}
    random = arithmetic.lift(np.array([7.0, 11.0, 13.0]), "f64")
    shadows = (random, *(arithmetic.lift(f, "f32") for f in floats[operation][1:]))
    result = np.clip(values, 0, 1 if modifier == "sat" else None)
    found = arithmetic.modified(operation, frozenset({modifier}), "f32", result, floats[operation], shadows)
    free = arithmetic.modified(operation, frozenset({"ftz"}), "f32", values, floats[operation], shadows)
    assert (free == random).all()
    for lane, number in enumerate(clamped):
        want = random[lane] if number is None else arithmetic.lift(np.array([number]), "f64")[0]
        assert found[lane] == want


def test_the_shifter_of_exponents_chooses_an_integer():
    """x + 1.5 * 2^23 - 1.5 * 2^23 is the integer next to x, and no x."""
    arithmetic = make("field")
    x, shifter = np.float32([2.25]), np.float32([1.5 * 2**23])
    shifted = arithmetic.apply(
        "add", "f32", x + shifter, (x, shifter), (np.uint64([7]), arithmetic.lift(shifter, "f32"))
    )
    assert shifted[0] == arithmetic.lift(np.array([2 + 1.5 * 2**23]), "f64")[0]


@pytest.mark.parametrize("arithmetic", ["field", "field_exponential", "lifted"])
@pytest.mark.parametrize(
    ("kind", "dtype"), [("bf16", torch.bfloat16), ("f16", torch.float16), ("f32", torch.float32)]
)
def test_an_integral_value_is_taken_from_the_float_in_every_format(kind, dtype, arithmetic):
    """Where the conversion changes the float; a rounding to another format changes nothing."""
    width = 32 if kind == "f32" else 16
    body = f"""mad.lo.s64 %a0, %wide, {width // 8}, %base0; ld.global.b{width} %x, [%a0];
    cvt.rni.{kind}.{kind} %y, %x; st.global.b{width} [%a0], %y;"""
    text = kernel(body, 1, registers=f".reg .b{width} %x; .reg .b{width} %y;")
    with machine.session(arithmetic=arithmetic) as opened:
        x = torch.tensor([2.0, 2.75, -3.0, 0.25], dtype=dtype)
        given = opened.slots.arithmetic.lift(np.array([7.0, 7.0, 7.0, 7.0]), "f64")
        opened.slots.set(x, given)
        machine.launch_ptx(text, "k", (1,), (4,), 0, [x])
        found, exact = opened.slots.get(x), opened.slots.arithmetic.lift(np.array([3.0, 0.0]), "f64")
    assert x.tolist() == [2.0, 3.0, -3.0, 0.0]
    assert (found[[0, 2]] == given[[0, 2]]).all()
    assert (found[[1, 3]] == exact).all()


@pytest.mark.parametrize("arithmetic", ["field", "field_exponential", "lifted"])
def test_a_rounding_to_bfloat16_keeps_its_element(arithmetic):
    body = """mad.lo.s64 %a0, %wide, 4, %base0; mad.lo.s64 %a1, %wide, 2, %base1; ld.global.f32 %x, [%a0];
    cvt.rn.bf16.f32 %y, %x; st.global.b16 [%a1], %y;"""
    text = kernel(body, 2, registers=".reg .f32 %x; .reg .b16 %y;")
    with machine.session(arithmetic=arithmetic) as opened:
        x, y = torch.tensor([2.0, 1 / 3, -0.1]), torch.zeros(3, dtype=torch.bfloat16)
        given = opened.slots.arithmetic.lift(np.array([7.0, 5.0, 3.0]), "f64")
        opened.slots.set(x, given)
        machine.launch_ptx(text, "k", (1,), (3,), 0, [x, y])
        assert (opened.slots.get(y) == given).all()


@pytest.mark.parametrize("name", ["field", "field_exponential"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_table_lifts_every_float_of_16_bits_as_it_is_lifted_alone(name, kind):
    patterns = np.arange(1 << 16, dtype=np.uint16)
    every = patterns.view(np.float16) if kind == "f16" else decode_bf16(patterns)
    arithmetic = make(name)
    with np.errstate(all="ignore"):
        alone = arithmetic.lift_each(every, kind)
        assert not arithmetic.tables
        found = arithmetic.lift(every.reshape(64, 1024)[::-1], kind)
    assert kind in arithmetic.tables
    assert (found == alone.reshape(64, 1024)[::-1]).all()
    few = every[:100]
    assert (arithmetic.lift(few, kind) == alone[:100]).all()

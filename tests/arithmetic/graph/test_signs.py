"""Signs of terms, each held against numbers of all kinds."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.signs import Signs

ZERO, ONE, TWO, MINUS = 0, 0x3F800000, 0x40000000, 0xBF800000


def sign_of(make):
    signs, edge = signs_of(make)
    return "positive" if signs.positive(edge) else "nonnegative" if signs.nonnegative(edge) else "any"


def nonzero(make):
    signs, edge = signs_of(make)
    return signs.nonzero(edge)


def signs_of(make):
    builder = Builder()
    x, y = builder.append("input:x", value=np.arange(2))
    number = {bits: builder.append("literal:f32", value=bits) for bits in (ZERO, ONE, TWO, MINUS)}

    def op(name, *operands, value=0):
        return builder.append(name, *operands, value=value)

    terms = SharedTerms()
    graph = builder.graph({"node": np.asarray(make(op, x, y, number))}, {"x": "f32"})
    edges = Normaliser(terms, "EZ").normal(graph).outputs["node"].ravel()
    return Signs(terms, edges), int(edges[0])


def square(op, x):
    return op("mul.f32", x, x)


def clamped(op, x, zero):
    return op("ite", op("setp.lt.f32", x, zero), zero, x)


def powers(op, x, y, n, largest):
    shifted = [op("mul.f32", op("sub.f32", one, largest), n[TWO]) for one in (x, y)]
    return op("add.f32", *(op("ex2.approx.f32", one) for one in shifted))


def test_a_sum_of_powers_is_no_zero_where_one_of_them_is_the_largest():
    assert nonzero(lambda op, x, y, n: powers(op, x, y, n, op("max.f32", x, y)))
    assert not nonzero(lambda op, x, y, n: powers(op, y, y, n, x))
    assert not nonzero(lambda op, x, y, n: powers(op, x, y, n, op("max.f32", op("mul.f32", x, y), y)))
    assert not nonzero(lambda op, x, y, n: powers(op, x, y, n, n[ONE]))


def weighted(op, x, y, n, weight, *, chosen=None):
    """A sum of weight * 2**(2 (x - m)) and the power of y, m the larger of both."""
    largest = op("max.f32", x, y)
    asked = op("setp.gt.f32", weight if chosen is None else chosen, n[ZERO])
    top = op("ite", asked, x, largest)
    a, b = (op("ex2.approx.f32", op("mul.f32", op("sub.f32", one, largest), n[TWO])) for one in (top, y))
    return op("fma.rn.f32", weight, a, b)


def of_least_weight(op, x, y, n, add):
    """Such a sum; the weight of x may be 2**-149, which `.ftz` flushes where y lies far below x."""
    largest = op("max.f32", x, y)
    a, b = (op("ex2.approx.f32", op("mul.f32", op("sub.f32", one, largest), n[TWO])) for one in (x, y))
    least = op("fma.rn.f32", x, x, op("literal:f32", value=1))
    return op(add, op("mul.f32", least, a), b)


def test_powers_that_are_multiplied_sum_to_no_zero_where_the_factors_are_positive():
    assert nonzero(lambda op, x, y, n: weighted(op, x, y, n, op("fma.rn.f32", x, x, n[ONE])))
    assert nonzero(lambda op, x, y, n: weighted(op, x, y, n, powers(op, x, y, n, op("max.f32", x, y))))
    assert not nonzero(lambda op, x, y, n: weighted(op, x, y, n, op("mul.f32", x, x)))
    assert nonzero(lambda op, x, y, n: of_least_weight(op, x, y, n, "add.f32"))
    assert not nonzero(lambda op, x, y, n: of_least_weight(op, x, y, n, "add.ftz.f32"))
    assert not nonzero(lambda op, x, y, n: weighted(op, x, y, n, n[ONE], chosen=x))
    assert not nonzero(lambda op, x, y, n: weighted(op, x, y, n, op("add.f32", x, n[ONE])))


@pytest.mark.parametrize(
    ("wanted", "make"),
    [
        ("any", lambda op, x, y, n: op("mul.f32", x, y)),
        ("nonnegative", lambda op, x, y, n: square(op, x)),
        ("nonnegative", lambda op, x, y, n: op("add.f32", square(op, x), square(op, y))),
        ("any", lambda op, x, y, n: op("sub.f32", square(op, x), square(op, y))),
        ("positive", lambda op, x, y, n: op("add.f32", square(op, x), n[ONE])),
        ("positive", lambda op, x, y, n: op("fma.rn.f32", x, x, n[ONE])),
        ("any", lambda op, x, y, n: op("fma.rn.f32", x, y, n[ONE])),
        ("any", lambda op, x, y, n: op("fma.rn.f32", op("neg.f32", x), x, n[ONE])),
        ("positive", lambda op, x, y, n: op("sqrt.rn.f32", op("fma.rn.f32", x, x, n[ONE]))),
        ("positive", lambda op, x, y, n: op("sqrt.approx.ftz.f32", op("fma.rn.f32", x, x, n[ONE]))),
        ("any", lambda op, x, y, n: op("sqrt.approx.ftz.f32", square(op, x))),
        ("nonnegative", lambda op, x, y, n: op("div.full.f32", square(op, x), n[ONE])),
        ("any", lambda op, x, y, n: op("div.full.f32", square(op, x), square(op, y))),
        ("any", lambda op, x, y, n: op("add.ftz.f32", square(op, x), n[ONE])),
        ("nonnegative", lambda op, x, y, n: clamped(op, x, n[ZERO])),
        ("any", lambda op, x, y, n: op("ite", op("setp.lt.f32", y, n[ZERO]), n[ZERO], x)),
        ("any", lambda op, x, y, n: op("ite", op("setp.lt.ftz.f32", x, n[ZERO]), n[ZERO], x)),
        ("any", lambda op, x, y, n: op("ite", op("setp.gt.f32", x, n[ZERO]), n[ZERO], x)),
        ("positive", lambda op, x, y, n: op("ite", op("setp.gt.f32", x, y), n[ONE], n[TWO])),
        ("any", lambda op, x, y, n: op("ite", op("setp.gt.f32", x, y), n[ONE], n[MINUS])),
        ("positive", lambda op, x, y, n: op("max.f32", x, n[ONE])),
        ("any", lambda op, x, y, n: op("max.f32", x, n[MINUS])),
        ("any", lambda op, x, y, n: op("div.rn.f32", square(op, x), square(op, y))),
        ("nonnegative", lambda op, x, y, n: op("div.rn.f32", n[ONE], op("fma.rn.f32", x, x, n[ONE]))),
    ],
)
def test_a_sign_is_claimed_only_where_all_numbers_have_it(wanted, make):
    assert sign_of(make) == wanted


def moved(op, x, m, share):
    """Return x - m and x - t, t = m + (x - m) * share."""
    apart = op("sub.f32", x, m)
    return apart, op("sub.f32", x, op("add.f32", m, op("mul.f32", apart, share)))


def test_a_mean_that_moves_towards_x_stays_on_its_side_of_it():
    def product(op, x, y, share, *, turned=False, negative=False):
        before, after = moved(op, x, y, op("literal:f32", value=share))
        before = op("neg.f32", before) if negative else before
        return op("mul.f32", *((after, before) if turned else (before, after)))

    def found(share, **how):
        return sign_of(lambda op, x, y, _: product(op, x, y, share, **how))

    half, nearly_one, minus_half = 0x3F000000, 0x3F7F0000, 0xBF000000
    assert found(half) == found(half, turned=True) == "nonnegative"
    assert found(half, negative=True) == found(nearly_one) == found(minus_half) == "any"
    assert sign_of(lambda op, x, y, n: op("neg.f32", product(op, x, y, half, negative=True))) == "nonnegative"
    fused = sign_of(
        lambda op, x, y, n: op("fma.rn.f32", *moved(op, y, x, op("literal:f32", value=half)), square(op, y))
    )
    assert fused == "nonnegative"

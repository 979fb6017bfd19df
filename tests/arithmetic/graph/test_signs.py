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

    def op(name, *operands):
        return builder.append(name, *operands)

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
        ("positive", lambda op, x, y, n: op("max.f32", x, n[ONE])),
        ("any", lambda op, x, y, n: op("max.f32", x, n[MINUS])),
        ("any", lambda op, x, y, n: op("div.rn.f32", square(op, x), square(op, y))),
        ("nonnegative", lambda op, x, y, n: op("div.rn.f32", n[ONE], op("fma.rn.f32", x, x, n[ONE]))),
    ],
)
def test_a_sign_is_claimed_only_where_all_numbers_have_it(wanted, make):
    assert sign_of(make) == wanted

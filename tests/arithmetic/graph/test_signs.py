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


def power(op, x, largest, n, family="ex2.approx"):
    """e**(x - m), or 2**(2 (x - m))."""
    apart = op("sub.f32", x, largest)
    return op(f"{family}.f32", apart if family == "exp.cuda" else op("mul.f32", apart, n[TWO]))


def chosen_power(op, x, y, n, asks):
    """A sum of weight * 2**(2 (z - m)), z = x where what is asked of the weight holds, else -1; and of y."""
    largest, weight = op("max.f32", x, y), op("fma.rn.f32", x, x, n[ONE])
    z = op("ite", asks(op, weight, n), x, n[MINUS])
    return op("fma.rn.f32", weight, power(op, z, largest, n), power(op, y, largest, n))


def nested(op, x, y, n, family):
    """The powers of x and y less the larger of x and -max(y, 1), which may be above both."""
    largest = op("max.f32", x, op("neg.f32", op("max.f32", y, n[ONE])))
    powers = [power(op, one, largest, n, family) for one in (x, y, n[ONE])]
    return op("add.f32", op("add.f32", powers[0], powers[1]), powers[2])


@pytest.mark.parametrize("family", ["ex2.approx", "exp.cuda"])
@pytest.mark.parametrize(
    "make",
    [
        lambda op, n, p, q, x, y, m: op("add.f32", p(x, m), p(y, n[TWO])),
        lambda op, n, p, q, x, y, m: op("add.f32", p(x, n[TWO]), p(y, m)),
        lambda op, n, p, q, x, y, m: op("add.f32", p(x, m), p(y, op("mul.f32", m, m))),
        lambda op, n, p, q, x, y, m: op("add.f32", p(x, op("mul.f32", m, m)), p(y, m)),
        lambda op, n, p, q, x, y, m: op("fma.rn.f32", op("mul.f32", x, x), p(x, m), p(y, m)),
        lambda op, n, p, q, x, y, m: op("fma.rn.f32", op("neg.f32", q), p(x, m), p(y, m)),
        lambda op, n, p, q, x, y, m: op("sub.f32", p(x, m), p(y, m)),
        lambda op, n, p, q, x, y, m: op("sub.f32", p(x, m), op("add.f32", p(y, m), p(x, m))),
        lambda op, n, p, q, x, y, m: op("sub.f32", p(y, m), op("mul.f32", n[TWO], p(x, m))),
        lambda op, n, p, q, x, y, m: op("sub.f32", op("mul.f32", n[TWO], p(x, m)), p(y, m)),
        lambda op, n, p, q, x, y, m: op("sub.f32", p(x, m), op("fma.rn.f32", n[TWO], p(y, m), p(y, m))),
        lambda op, n, p, q, x, y, m: op("add.f32", p(x, op("neg.f32", m)), p(y, op("neg.f32", m))),
    ],
)
def test_sums_of_powers_that_may_be_zero(family, make):
    def built(op, x, y, n):
        largest = op("max.f32", x, y)
        whole = op("add.f32", power(op, x, largest, n, family), power(op, y, largest, n, family))
        return make(op, n, lambda z, m: power(op, z, m, n, family), whole, x, y, largest)

    assert nonzero(lambda op, x, y, n: powers(op, x, y, n, op("max.f32", x, y)))
    assert not nonzero(built)
    assert not nonzero(lambda op, x, y, n: nested(op, x, y, n, family))


def test_a_power_of_what_is_chosen_counts_where_it_is_always_chosen():
    def found(asked, bound):
        return nonzero(lambda *given: chosen_power(*given, lambda op, weight, n: op(asked, weight, n[bound])))

    assert found("setp.gt.f32", ZERO)
    assert not found("setp.lt.f32", ZERO)
    assert not found("setp.gt.f32", TWO)


def test_a_power_of_what_may_be_two_numbers_is_perhaps_of_another_than_the_largest():
    terms, builder = SharedTerms(), Builder()
    x, y = builder.append("input:x", value=np.arange(2))
    largest, two = builder.append("max.f32", x, y), builder.append("literal:f32", value=TWO)
    total = builder.append("add.f32", *(power(builder.append, z, largest, {TWO: two}) for z in (x, y)))
    graph = builder.graph({"total": total, "x": x}, {"x": "f32"})
    outputs = Normaliser(terms, "EZ").normal(graph).outputs
    edge, of_x = int(outputs["total"]), np.array([int(outputs["x"]) >> 1])
    assert Signs(terms, np.array([edge])).nonzero(edge)
    assert not Signs(terms, np.array([edge]), of_x).nonzero(edge)


@pytest.mark.parametrize(
    ("wanted", "make"),
    [
        ("any", lambda op, x, y, n: op("mul.f32", x, y)),
        ("nonnegative", lambda op, x, y, n: square(op, x)),
        ("nonnegative", lambda op, x, y, n: op("add.f32", square(op, x), square(op, y))),
        ("any", lambda op, x, y, n: op("sub.f32", square(op, x), square(op, y))),
        ("positive", lambda op, x, y, n: op("add.f32", square(op, x), n[ONE])),
        ("positive", lambda op, x, y, n: op("fma.rn.f32", x, x, n[ONE])),
        ("nonnegative", lambda op, x, y, n: square(op, op("fma.rn.f32", x, x, op("literal:f32", value=1)))),
        ("any", lambda op, x, y, n: op("lg2.approx.f32", square(op, x))),
        ("any", lambda op, x, y, n: op("log.cuda.f32", square(op, x))),
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
        ("any", lambda op, x, y, n: op("ite", op("setp.lt.f32", x, n[MINUS]), n[ZERO], x)),
        ("any", lambda op, x, y, n: op("ite", op("setp.lt.f32", x, n[ZERO]), n[ZERO], op("neg.f32", x))),
        ("positive", lambda op, x, y, n: op("ite", op("setp.gt.f32", x, y), n[ONE], n[TWO])),
        ("any", lambda op, x, y, n: op("ite", op("setp.gt.f32", x, y), n[ONE], n[MINUS])),
        ("positive", lambda op, x, y, n: op("max.f32", x, n[ONE])),
        ("any", lambda op, x, y, n: op("max.f32", x, n[MINUS])),
        ("any", lambda op, x, y, n: op("max.f32", square(op, x), y)),  # y where the square is NaN
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


HALF = 0x3F000000


def towards(op, x, y):
    """Return t = x + (y - x) / 2, which lies between x and y."""
    return op("add.f32", x, op("mul.f32", op("sub.f32", y, x), op("literal:f32", value=HALF)))


def never_above_zero(op, x, y):
    """Return (x - y) * (y - t)."""
    return op("mul.f32", op("sub.f32", x, y), op("sub.f32", y, towards(op, x, y)))


@pytest.mark.parametrize(
    ("wanted", "make"),
    [
        ("nonnegative", lambda op, x, y, n: op("neg.f32", never_above_zero(op, x, y))),
        ("any", lambda op, x, y, n: op("neg.f32", op("div.rn.f32", never_above_zero(op, x, y), y))),
        (
            "nonnegative",
            lambda op, x, y, n: op(
                "neg.f32", op("div.rn.f32", never_above_zero(op, x, y), op("fma.rn.f32", x, x, n[ONE]))
            ),
        ),
        (
            "any",
            lambda op, x, y, n: op(
                "neg.f32", op("fma.rn.f32", op("sub.f32", x, y), op("sub.f32", y, towards(op, x, y)), y)
            ),
        ),
        ("any", lambda op, x, y, n: op("mul.f32", op("mul.f32", x, y), op("mul.f32", x, x))),
        (
            "any",
            lambda op, x, y, n: op("mul.f32", op("sub.f32", y, x), op("sub.f32", n[TWO], towards(op, x, y))),
        ),
        (
            "any",
            lambda op, x, y, n: op(
                "mul.f32",
                op("add.f32", y, x),
                op("sub.f32", y, op("fma.rn.f32", op("add.f32", y, x), op("literal:f32", value=HALF), x)),
            ),
        ),
    ],
    ids=["turned", "over_any", "over_positive", "plus_any", "two_products", "of_another", "of_a_sum"],
)
def test_signs_of_products_of_differences_and_of_what_is_made_of_them(wanted, make):
    assert sign_of(make) == wanted


@pytest.mark.parametrize(
    ("wanted", "make"),
    [
        ("nonnegative", lambda op, apart, m, half, two: op("fma.rn.f32", apart, half, m)),
        ("any", lambda op, apart, m, half, two: op("fma.rn.f32", apart, half, op("neg.f32", m))),
        (
            "any",
            lambda op, apart, m, half, two: op("add.f32", op("neg.f32", m), op("mul.f32", apart, half)),
        ),
        ("nonnegative", lambda op, apart, m, half, two: op("add.f32", m, op("div.rn.f32", apart, two))),
        ("any", lambda op, apart, m, half, two: op("add.f32", m, op("div.rn.f32", two, apart))),
    ],
    ids=["fused", "fused_with_negative", "negative", "quotient", "turned_quotient"],
)
def test_what_moves_a_mean_is_a_part_of_the_difference(wanted, make):
    def product(op, x, y, n):
        apart = op("sub.f32", x, y)
        after = op("sub.f32", x, make(op, apart, y, op("literal:f32", value=HALF), n[TWO]))
        return op("mul.f32", apart, after)

    assert sign_of(product) == wanted


@pytest.mark.parametrize("of", ["mul.f32", "div.rn.f32"])
def test_a_mean_that_is_a_product_may_be_another_number_where_it_was_fused(of):
    terms, builder = SharedTerms(), Builder()
    x, y = builder.append("input:x", value=np.arange(2))
    mean = builder.append(of, x, builder.append("literal:f32", value=0x40400000))
    apart = builder.append("sub.f32", y, mean)
    moved_mean = towards(builder.append, mean, y)
    total = builder.append("mul.f32", apart, builder.append("sub.f32", y, moved_mean))
    graph = builder.graph({"total": total, "apart": apart, "mean": moved_mean}, {"x": "f32"})
    edges = {name: int(edge) for name, edge in Normaliser(terms, "EZ").normal(graph).outputs.items()}
    signs = {
        name: Signs(terms, np.array([edges["total"]]), fused=np.array([edge >> 1]))
        for name, edge in edges.items()
    }
    assert {name: one.nonnegative(edges["total"]) for name, one in signs.items()} == {
        "total": True,
        "apart": False,
        "mean": False,
    }

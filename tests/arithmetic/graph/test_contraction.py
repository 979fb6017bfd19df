"""Products that may be fused in one use and rounded in another."""

import numpy as np
import pytest

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.contraction import mixed
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.normal_form import Normaliser


def mixed_of(make):
    builder = Builder()
    x = builder.append("input:x", value=np.arange(4))
    outputs = make(builder.append, x)
    graph = builder.graph({"y": np.atleast_1d(np.asarray(outputs)).ravel()}, {"x": "f32"})
    terms = SharedTerms()
    form = Normaliser(terms, "EZ").normal(graph)
    return [terms.text(2 * int(term)) for term in mixed(form)]


def product(op, x, name="mul.f32"):
    return op(name, x[0], x[1])


def two_sums(op, x, first="add.f32", second="add.f32", made="mul.f32"):
    p = product(op, x, made)
    return [op(first, p, x[2]), op(second, p, x[3])]


def computed_twice(op, x):
    return [op("add.f32", product(op, x), x[2]), op("add.f32", op("mul.f32", x[1], x[0]), x[3])]


def by_two_threads(op, x):
    return [op("add.f32", product(op, x), x[2]), op("add.f32", product(op, x), x[2])]


def behind_a_sign(op, x):
    p = op("neg.f32", product(op, x))
    return [op("add.f32", p, x[2]), op("mul.f32", p, x[3])]


def result_too(op, x):
    p = product(op, x)
    return [p, op("sub.f32", x[2], p)]


def both_terms(op, x):
    return op("add.f32", *[product(op, x)] * 2)


@pytest.mark.parametrize(
    ("make", "is_mixed"),
    [
        (lambda op, x: op("add.f32", product(op, x), x[2]), False),
        (two_sums, True),
        (lambda op, x: two_sums(op, x, "add.rn.f32", "add.rn.f32"), False),
        (lambda op, x: two_sums(op, x, "add.rn.f32"), True),
        (lambda op, x: two_sums(op, x, "mul.f32", "sub.f32"), True),
        (lambda op, x: two_sums(op, x, "mul.f32", "max.f32"), False),
        (lambda op, x: two_sums(op, x, made="mul.rn.f32"), False),
        (lambda op, x: two_sums(op, x, made="div.rn.f32"), False),
        (computed_twice, True),
        (by_two_threads, False),
        (behind_a_sign, True),
        (result_too, True),
        (both_terms, True),
    ],
)
def test_a_product_is_mixed_if_it_may_be_fused_in_one_use_and_not_in_another(make, is_mixed):
    found = mixed_of(make)
    assert (found == ["mul.f32(x:f32[0], x:f32[1])"]) is is_mixed, found
    assert len(found) <= 1

"""Exact results of large cases are computed by blocks, and of the ways to write a product by one alone."""

from dataclasses import fields

import numpy as np
import pytest
from rounded_ops import declared

from strategies.values import Values
from verifier.arithmetic import blocks
from verifier.arithmetic.abstract_number import one_of
from verifier.cases.recipe import Recipe, build
from verifier.ops import op
from verifier.oracle.formulas.pair_numbers import PairNumbers, lifted
from verifier.oracle.solve import solve

NAMES = ("layer_norm_silu_gate", "silu_gate_rms_norm", "poly_norm", "dynamic_tanh", "l2_norm")


def solution(name, rows, columns):
    subject = declared(name, variance=None)
    recipe = Recipe(rows=rows, columns=columns, input=Values(seed=1), grad_output=Values(seed=2))
    return solve(op(name).problem(build(op(name), subject, "float32", recipe, gradients=True)))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(9, 5), (5, 33), (24, 2), (1, 40)])
def test_exact_results_by_blocks_have_the_bits_of_those_of_the_whole(name, shape, monkeypatch):
    whole = solution(name, *shape).enclosures
    monkeypatch.setattr(blocks, "MOST", 8)
    parts, cut = [], blocks.cut
    monkeypatch.setattr(blocks, "cut", lambda array, block: parts.append(block) or cut(array, block))
    by_blocks = solution(name, *shape).enclosures
    assert list(by_blocks) == list(whole)
    for result, one in whole.items():
        for part in fields(one):
            np.testing.assert_array_equal(getattr(by_blocks[result], part.name), getattr(one, part.name))
    assert len({repr(block) for block in parts}) > 1


def test_a_part_that_does_not_vary_along_an_axis_keeps_its_extent_of_one(monkeypatch):
    monkeypatch.setattr(blocks, "MOST", 8)
    column, row = lifted(np.arange(1.0, 9.0)[:, None]), lifted(np.arange(1.0, 12.0)[None, :])
    product = column * row
    np.testing.assert_array_equal(product.high, column.high * row.high)
    assert product.radius.shape == (8, 11)
    assert (column * column).high.shape == (8, 1)


def test_where_nothing_is_rounded_the_first_way_alone_is_made():
    numbers, made = PairNumbers(rows=1, columns=1), []
    ways = (lambda: made.append("first") or numbers.constant(2.0), lambda: made.append("second"))
    assert one_of(numbers, *ways).high.item() == 2.0
    assert made == ["first"]


def test_a_gate_has_one_logistic_function_a_pass(monkeypatch):
    calls, usual = [], PairNumbers.sigmoid
    monkeypatch.setattr(PairNumbers, "sigmoid", lambda *given: calls.append(given) or usual(*given))
    solution("layer_norm_silu_gate", 3, 4)
    assert len(calls) == 2  # of output and gradients

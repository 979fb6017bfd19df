"""Shapes where another kernel runs are tried with other parameters, dtypes, layouts and eps, too."""

from dataclasses import replace

import pytest
from test_recipes import taking

from verifier import Domain
from verifier.cases.besides_pairs import SMALL_SCALE
from verifier.cases.plan import EVERY_EPS, Plan
from verifier.cases.recipe import Recipe, build
from verifier.cases.variations import Variation, variations, varied
from verifier.ops import op

PLAN = Plan(eps=EVERY_EPS, gradients=True, parameter_dtypes=True)
LAYER_NORM = op("layer_norm")
PROMISED = Domain(parameter_dtypes=("input", "float32"))
FULL = taking("layer_norm", "input", "normalized_shape", "weight", "bias", "eps", domain=PROMISED)
RECIPE = Recipe(rows=1, columns=40)


def cases(variation, subject=FULL, dtype="float16", plan=PLAN):
    """Return the cases of a variation, the most unusual first."""
    made = varied(op(subject.op), plan, subject, RECIPE, variation)
    return [build(op(subject.op), subject, dtype, recipe, gradients=True) for recipe in made]


def test_every_tensor_of_each_variation_lies_otherwise_and_parameters_have_another_dtype():
    first, second = (cases(v)[0] for v in (Variation.FIRST, Variation.SECOND))
    assert (first.given.keys(), second.given.keys()) == (
        {"input", "weight", "grad_output"}, {"input", "bias", "grad_output"}
    )  # fmt: skip
    for case, name in ((first, "weight"), (second, "bias")):
        assert str(case.given[name].dtype) == "torch.float32"
        assert case.layouts.keys() == case.given.keys()
        laid = [case.layouts[n] for n in case.given]
        assert len({*laid}) == len(laid)
    assert first.rows == 2
    assert first.layouts["input"].row_padding and first.layouts["weight"].column_step > 1  # noqa: PT018
    assert second.layouts["input"].column_step > 1
    assert first.scalars["eps"] == 0.5


def test_without_parameters_no_other_eps_can_stand_for_zero():
    bare, plain = cases(Variation.BARE)
    assert bare.scalars["eps"] == 0
    assert bare.given["input"].double().var() < 2.0 ** (2 * SMALL_SCALE + 1)
    assert bare.given.keys() == plain.given.keys() == {"input", "grad_output"}
    assert plain.scalars["eps"] > 0


def test_what_a_subject_does_not_take_is_not_tried_of_it():
    narrow = replace(FULL, domain=Domain(layouts=("padded_rows",), min_eps=1e-6))
    first, bare = (cases(v, narrow)[0] for v in (Variation.FIRST, Variation.BARE))
    assert {k for layout in first.layouts.values() for k in layout.kinds} == {"padded_rows"}
    assert first.given["weight"].dtype is first.given["input"].dtype
    assert bare.scalars["eps"] == RECIPE.eps


@pytest.mark.parametrize("variation", [Variation.FIRST, Variation.SECOND])
def test_the_next_recipe_is_for_a_subject_that_refuses_the_one_before(variation):
    last = cases(variation)[-1]
    assert not last.layouts
    assert {t.dtype for t in last.given.values()} == {last.given["input"].dtype}


def test_an_op_without_parameters_has_rows_apart():
    softmax = taking("softmax", "input", "dim")
    assert variations(op("softmax"), PLAN, softmax) == (Variation.FIRST,)
    assert cases(Variation.FIRST, softmax)[0].layouts["input"].kinds == ("padded_rows",)


def test_two_parameters_are_tried_one_by_one_and_one_with_none():
    assert variations(LAYER_NORM, PLAN, FULL) == tuple(Variation)
    alone = taking("rms_norm", "input", "normalized_shape", "weight", "eps")
    assert variations(op("rms_norm"), PLAN, alone) == (Variation.BARE, Variation.FIRST)
    for eps in (PLAN.eps, PLAN.eps[:1]):  # without an eps of 0, and without parameters, nothing is left
        without = variations(op("rms_norm"), replace(PLAN, eps=eps), taking("rms_norm", "input", "eps"))
        assert (Variation.BARE in without) == (0.0 in eps)

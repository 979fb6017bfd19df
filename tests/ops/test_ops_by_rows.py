"""Bounds of large cases are composed a few rows at a time: they have the bits of those of the whole."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rounded_ops import declared

from strategies.values import Values
from verifier.arithmetic import blocks
from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import ieee
from verifier.bounds.row_blocks import NumbersOfRows
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.ops.rows import compose_bounds
from verifier.ops.rows.compose_bounds import rows_bounds
from verifier.records.subject import Trees

SHAPES = [(9, 5), (5, 33), (24, 2), (4, 16), (7, 16)]
GATED = ("layer_norm_silu_gate", "rms_norm_sigmoid_gate")
FORMS = [
    *((name, form) for name in ("layer_norm", "rms_norm") for form in op(name).forms),
    (GATED[0], "autograd"),
    (GATED[1], "rounded_norm"),
]


def truths(name, form, dtype, shape, *, given=True):
    """Yield the truth of an ordinary case, and of ones of which rows have no bound or leave the range."""
    rows, columns = shape
    centred = name.startswith("layer_norm")
    claim = {"variance": "two_pass" if centred else "rms", "trees": Trees()}
    subject = declared(name, formula=form, **claim)
    parameter = Values(seed=2) if given else None
    recipe = Recipe(
        rows=rows, columns=columns, eps=1e-5, input=Values(seed=rows, hazard="ordinary"), weight=parameter,
        bias=parameter if centred else None, grad_output=Values(seed=4),
    )  # fmt: skip
    case = build(op(name), subject, dtype, recipe, gradients=True)
    largest = torch.finfo(case.given["input"].dtype).max
    for number in (None, torch.inf, torch.nan, largest):
        values = case.given["input"].clone()
        if number is not None:
            values.view(-1)[rows * columns // 2] = number
        changed = replace(case, tensors={**case.tensors, "input": values})
        yield Truth(subject=subject, case=changed, setting=Setting(arithmetic=ieee("float32"), trees=Trees()))


def same(expected, found):
    assert list(expected) == list(found)
    for name, one in expected.items():
        np.testing.assert_array_equal(one.bound, found[name].bound)
        np.testing.assert_array_equal(one.covered, found[name].covered)
        assert one.reasons == found[name].reasons


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bounds_by_rows_have_the_bits_of_those_of_the_whole(name, form, dtype, shape, monkeypatch):
    whole = [truth.bounds for truth in truths(name, form, dtype, shape)]
    monkeypatch.setattr(blocks, "MOST", 8)
    taken = []
    monkeypatch.setattr(compose_bounds, "of_rows", counted(compose_bounds.of_rows, taken))
    for expected, truth in zip(whole, truths(name, form, dtype, shape), strict=True):
        same(expected, truth.bounds)
    assert len(taken) >= 2 * len(whole)
    assert all(isinstance(one, NumbersOfRows) for one in taken)


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", *GATED])
def test_what_has_no_parameters_is_taken_by_rows_as_well(name, monkeypatch):
    whole = [truth.bounds for truth in truths(name, "canonical", "float32", (9, 5), given=False)]
    monkeypatch.setattr(blocks, "MOST", 8)
    for expected, truth in zip(whole, truths(name, "canonical", "float32", (9, 5), given=False), strict=True):
        same(expected, truth.bounds)


def test_a_form_that_computes_with_a_sum_over_all_rows_has_all_rows_at_once(monkeypatch):
    usual = op("layer_norm").forms["canonical"]

    def backward(k, t):
        found = dict(usual.backward(k, t))
        return {**found, "grad_weight": found["grad_weight"] + found["grad_bias"]}

    form = Form(name="own", forward=usual.forward, backward=backward)

    def bounds(truth):
        return rows_bounds(truth.solved, truth.subject.claim, form, truth.setting)

    whole = [bounds(truth) for truth in truths("layer_norm", "canonical", "float32", (9, 5))]
    monkeypatch.setattr(blocks, "MOST", 8)
    for expected, truth in zip(whole, truths("layer_norm", "canonical", "float32", (9, 5)), strict=True):
        same(expected, bounds(truth))


def counted(original, taken):
    def of_rows(*given):
        taken.append(original(*given))
        return taken[-1]

    return of_rows

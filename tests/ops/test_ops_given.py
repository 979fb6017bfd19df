"""Raw backward ops: torch's own lie within their bounds at given statistics; wrong ones do not."""

import math

import pytest
import torch
from rounded_ops import declared, truth_of, variants

from strategies.values import Values
from verifier.cases.recipe import Recipe
from verifier.checks.support.output_verdict import judge
from verifier.records.observation import Observation
from verifier.records.verdict import Verdict

ATEN = torch.ops.aten


def softmax_backward(given, scalars, eps):
    g, y = given["grad_output"], given["output"]
    return {"grad_input": ATEN._softmax_backward_data(g, y, scalars["dim"], y.dtype)}


def log_softmax_backward(given, scalars, eps):
    g, y = given["grad_output"], given["output"]
    return {"grad_input": ATEN._log_softmax_backward_data(g, y, scalars["dim"], y.dtype)}


def group_norm_backward(given, scalars, eps):
    x = given["input"]
    sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]), scalars["num_groups"])
    saved = given["mean"], given["rstd"], given["weight"]
    found = ATEN.native_group_norm_backward(given["grad_output"], x, *saved, *sizes, [True] * 3)
    return dict(zip(("grad_input", "grad_weight", "grad_bias"), found, strict=True))


def batch_norm_backward(given, scalars, eps):
    x, saved = given["input"], (given["mean"], given["rstd"])
    operands = (given["grad_output"], x, given["weight"], None, None, *saved)
    found = ATEN.native_batch_norm_backward(*operands, True, eps, [True] * 3)
    return dict(zip(("grad_input", "grad_weight", "grad_bias"), found, strict=True))


_FUNCTIONS = (softmax_backward, log_softmax_backward, group_norm_backward, batch_norm_backward)
BY_TORCH = {f.__name__: f for f in _FUNCTIONS}


def outcomes_of(name, *, scale=1.0):
    for variant in variants(name):
        rows = 1 if "softmax" in name and variant == 3 else 6
        for seed in range(2):
            recipe = Recipe(
                rows=rows,
                columns=20,
                variant=variant,
                input=Values(seed=seed),
                grad_output=Values(seed=seed + 4),
            )
            for dtype in ("float32", "float64"):
                truth = truth_of(declared(name, formula="torch_cpu"), dtype, dtype, recipe)
                found = BY_TORCH[name](truth.case.given, truth.case.scalars, truth.case.eps)
                found = {n: g * scale for n, g in found.items()}
                yield from judge(truth, Observation(status="ok", outputs=found), tuple(found))


@pytest.mark.parametrize("name", list(BY_TORCH))
def test_torch_is_right_at_given_statistics(name):
    outcomes = list(outcomes_of(name))
    assert {o.verdict for o in outcomes} == {Verdict.PASS}, [o.message for o in outcomes]
    assert max(o.worst.utilisation for o in outcomes) > 0.001


@pytest.mark.parametrize("name", list(BY_TORCH))
def test_an_error_of_one_part_in_a_thousand_is_seen(name):
    assert {o.verdict for o in outcomes_of(name, scale=1.001)} == {Verdict.FAIL}

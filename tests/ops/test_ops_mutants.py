"""Wrong kernels of the new ops are proved wrong, right ones pass: torch operators, judged like subjects."""

import numpy as np
import pytest
import torch
from rounded_ops import declared, truth_of, variants

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.cases.recipe import Recipe, assemble
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.records.observation import Observation
from verifier.records.verdict import Verdict


def softmax(x, dim, *, exponential=torch.exp, drop=0, shift=True):
    moved = x - x.amax(dim, keepdim=True) if shift else x
    powers = exponential(moved)
    total = powers.narrow(dim, 0, powers.shape[dim] - drop).sum(dim, keepdim=True)
    return powers / total


def log_softmax(x, dim, *, logarithm=torch.log, joined=False):
    top = x.amax(dim, keepdim=True)
    total = logarithm((x - top).exp().sum(dim, keepdim=True))
    return x - (top + total) if joined else (x - top) - total


def group_norm(x, *, num_groups, weight, bias, eps, correction=0, by_group=False, outside=False):
    rows = x.reshape(x.shape[0], num_groups, -1)
    mean, var = rows.mean(2, keepdim=True), rows.var(2, correction=correction, keepdim=True)
    root = torch.sqrt(var) + eps if outside else torch.sqrt(var + eps)
    y = ((rows - mean) / root).reshape(x.shape)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    if by_group:  # the parameters of a group's first channel for all of its channels
        size = x.shape[1] // num_groups
        weight, bias = (v[::size].repeat_interleave(size) for v in (weight, bias))
    return y * weight.reshape(shape) + bias.reshape(shape)


def instance_norm(x, *, weight, bias, eps, correction=0, joined=False):
    dims = [axis for axis in range(x.dim()) if axis > 1 or (joined and axis == 0)]
    mean, var = x.mean(dims, keepdim=True), x.var(dims, correction=correction, keepdim=True)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return (x - mean) / torch.sqrt(var + eps) * weight.reshape(shape) + bias.reshape(shape)


def batch_norm(
    x, *, running_mean, running_var, weight, bias, training, momentum, eps,
    biased=False, swapped=False, own=False, forgets=False,
):  # fmt: skip
    dims = [axis for axis in range(x.dim()) if axis != 1]
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    if training or own:
        mean, var = x.mean(dims), x.var(dims, correction=0)
    else:
        mean, var = running_mean.clone(), running_var.clone()
    if training and running_mean is not None:
        a = 1 - momentum if swapped else momentum
        moved = var if biased else x.var(dims, correction=1)
        running_mean.mul_(1 - a).add_(a * mean)
        if not forgets:
            running_var.mul_(1 - a).add_(a * moved)
    y = (x - mean.reshape(shape)) / torch.sqrt(var.reshape(shape) + eps)
    return y * weight.reshape(shape) + bias.reshape(shape)


def outcomes_of(function, truth, **wrong):
    """Call a function with the arguments of its case, and judge all of its results."""
    case = truth.case
    tensors = {n: t.clone() for n, t in case.given.items() if n != "grad_output"}
    scalars = dict(case.scalars)
    if case.op.endswith("softmax"):
        scalars.pop("eps")
    else:
        tensors = {"weight": None, "bias": None, **tensors}
    if case.op == "batch_norm":
        tensors = {"running_mean": None, "running_var": None, **tensors}
    x = tensors.pop("input")
    differentiable = {n: t for n, t in {"input": x, **tensors}.items() if n in op(case.op).differentiable}
    for tensor in differentiable.values():
        tensor.requires_grad_(True)
    output = function(x, **tensors, **scalars, **wrong)
    gradients = torch.autograd.grad(output, list(differentiable.values()), case.given["grad_output"])
    found = {"output": output.detach()}
    found |= {f"grad_{n}": g for n, g in zip(differentiable, gradients, strict=True)}
    found |= {n: t for n, t in tensors.items() if n.startswith("running") and t is not None}
    return judge(truth, Observation(status="ok", outputs=found), tuple(found))


def failing(function, name, *, variance="two_pass", **wrong):
    """Return the results that are proved wrong in some case, over all variants."""
    found, decided = set(), 0
    for variant in variants(name):
        for seed in range(2):
            rows = 1 if name.endswith("softmax") and variant == 3 else 6
            recipe = Recipe(
                rows=rows,
                columns=24,
                variant=variant,
                input=Values(seed=seed),
                weight=Values(seed=7),
                bias=Values(seed=8),
                grad_output=Values(seed=9),
                eps=(1e-5, 1e-3)[seed],
            )
            truth = truth_of(declared(name, variance=variance), "float32", "float32", recipe)
            for outcome in outcomes_of(function, truth, **wrong):
                decided += outcome.decided
                if outcome.verdict is Verdict.FAIL:
                    found.add(outcome.output)
    assert decided > 100
    return found


FUNCTIONS = {
    "softmax": softmax,
    "log_softmax": log_softmax,
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_the_plain_formula_passes(name):
    assert failing(FUNCTIONS[name], name) == set()


def _square_of_two(x):
    return 2.0**x


WRONG = [
    ("softmax", {"drop": 1}, {"output", "grad_input"}),
    ("softmax", {"exponential": _square_of_two}, {"output", "grad_input"}),
    ("log_softmax", {"logarithm": torch.log2}, {"output", "grad_input"}),
    ("group_norm", {"correction": 1}, {"output", "grad_input", "grad_weight"}),
    ("group_norm", {"by_group": True}, {"output", "grad_input", "grad_weight", "grad_bias"}),
    ("group_norm", {"outside": True}, {"output", "grad_input", "grad_weight"}),
    ("instance_norm", {"correction": 1}, {"output", "grad_input", "grad_weight"}),
    ("instance_norm", {"joined": True}, {"output", "grad_input", "grad_weight"}),
    ("batch_norm", {"biased": True}, {"running_var"}),
    ("batch_norm", {"swapped": True}, {"running_mean", "running_var"}),
    ("batch_norm", {"forgets": True}, {"running_var"}),
    ("batch_norm", {"own": True}, {"output", "grad_input", "grad_weight"}),
]


@pytest.mark.parametrize(("name", "wrong", "results"), WRONG, ids=[f"{n}-{'-'.join(w)}" for n, w, _ in WRONG])
def test_a_wrong_kernel_is_proved_wrong_in_what_it_gets_wrong(name, wrong, results):
    assert failing(FUNCTIONS[name], name, **wrong) == results


def made(name, x, dtype="float32", *, accumulates="float32", **scalars):
    tensors = {"input": x, "grad_output": torch.zeros_like(x)}
    case = assemble(op(name), dtype, tensors, {"eps": 1e-5, **scalars}, {}, hazard="", origin="")
    subject = declared(name)
    setting = Setting(arithmetic=ieee(accumulates), trees=subject.claim.trees)
    return Truth(subject=subject, case=case, setting=setting)


def judged(truth, output):
    return judge(truth, Observation(status="ok", outputs={"output": output}), ("output",))[0]


def test_a_softmax_that_scales_before_it_subtracts_is_refuted_at_1000():
    """exp2(fl(x l) - fl(max l)) cancels what it rounded: 2048 times the bound of the shifted form."""
    x = torch.tensor([[1000.0, 999.9]])
    l2e = torch.tensor(1.4426950408889634)
    scaled = x * l2e
    powers = torch.exp2(scaled - scaled.amax(1, keepdim=True))
    truth = made("softmax", x, dim=1)
    outcome = judged(truth, powers / powers.sum(1, keepdim=True))
    assert outcome.verdict is Verdict.FAIL
    assert outcome.worst.utilisation > 10
    assert judged(truth, torch.softmax(x, 1)).verdict is Verdict.PASS


def test_a_log_softmax_that_joins_maximum_and_logarithm_is_refuted():
    x = torch.tensor([[1e4, 1e4 - 0.5, 1e4 - 0.25]])
    truth = made("log_softmax", x, dim=1)
    assert judged(truth, log_softmax(x, 1, joined=True)).verdict is Verdict.FAIL
    assert judged(truth, log_softmax(x, 1)).verdict is Verdict.PASS


def test_an_error_at_an_exact_zero_has_no_units_in_the_last_place_worth_telling():
    worst = judged(made("log_softmax", torch.tensor([[3.0]]), dim=1), torch.tensor([[1e-9]])).worst
    assert worst.row_ulp > 1e30
    assert worst.nonzero_row_ulp == 0.0
    x = torch.tensor([[0.0, 1.0]])
    worst = judged(made("log_softmax", x, dim=1), log_softmax(x, 1) * (1 + 2**-22)).worst
    assert worst.nonzero_row_ulp == worst.row_ulp > 1.0


def test_masked_elements_have_a_theorem_and_rows_of_nothing_else_have_none():
    inf = float("inf")
    x = torch.tensor([[0.5, -inf, 2.0], [-inf, -inf, -inf], [1.0, inf, 2.0], [float("nan"), 0.0, 1.0]])
    truth = made("softmax", x, dim=-1)
    covered = truth.bounds["output"].covered
    assert covered.tolist() == [[True] * 3, [False] * 3, [False] * 3, [False] * 3]
    outcome = judged(truth, torch.softmax(x, 1))
    assert (outcome.verdict, outcome.decided, outcome.uncovered) == (Verdict.PASS, 3, 9)
    leaky = torch.softmax(torch.where(x == -inf, torch.tensor(-20.0), x), 1)
    assert judged(truth, leaky).verdict is Verdict.FAIL, "a mask of -20 leaves a probability of 1e-10"


def test_exponentials_that_underflow_are_bounded_by_the_underflow():
    x = torch.tensor([[0.0, -80.0, -100.0, -103.5, -200.0]])
    truth = made("softmax", x, dim=1)
    assert judged(truth, torch.softmax(x, 1)).verdict is Verdict.PASS
    lost = torch.softmax(x, 1)
    lost[0, 1] = 0.0
    assert judged(truth, lost).verdict is Verdict.FAIL


def test_evaluation_leaves_the_running_statistics_alone():
    recipe = Recipe(rows=3, columns=8, variant=3)
    truth = truth_of(declared("batch_norm"), "float32", "float32", recipe)
    held = {n: truth.case.given[n].clone() for n in ("running_mean", "running_var")}
    names = tuple(held)
    seen = Observation(status="ok", outputs=held)
    assert [o.verdict for o in judge(truth, seen, names)] == [Verdict.PASS] * 2
    held["running_mean"][1] = torch.nextafter(held["running_mean"][1], torch.tensor(9.0))
    assert [o.verdict for o in judge(truth, seen, names)] == [Verdict.FAIL, Verdict.PASS]


def test_one_value_has_no_unbiased_variance():
    truth = truth_of(declared("batch_norm"), "float32", "float32", Recipe(rows=2, columns=1))
    assert np.isnan(truth.exact["running_var"].high).all()
    assert np.isfinite(truth.exact["running_mean"].high).all()

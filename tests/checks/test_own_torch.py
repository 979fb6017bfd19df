"""Torch operators are compared with a specification of the subject's own, or the line says why not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checks_support import cases_of, examination, failures, outcomes_of, passes

from verifier import load
from verifier.audit.budget import Budget
from verifier.audit.rules import line_verdict
from verifier.checks import running_bound
from verifier.checks.support import running_bound_of_torch
from verifier.execution.backends import backend
from verifier.machine.shadow.arithmetics.ball import BallArithmetic
from verifier.machine.shadow.host_operations import HostSlots
from verifier.machine.shadow.slots import Slots
from verifier.ops import op
from verifier.records.verdict import Verdict

FILE = Path(__file__).with_name("own_torch.py")
SUBJECTS = {s.name: s for s in load(FILE).subjects}
CASES = {"count": 5, "max_elements": 300}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["right", "rounded_on_the_way", "functions"])
def test_a_right_subject_is_compared_and_passes(name, dtype):
    found = outcomes_of(SUBJECTS[name], "running_bound", dtype, **CASES)
    assert not failures(found)
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert all(o.worst.bound > 0 for o in passes(found))


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("weight_for_one_and_weight", "output"),
        ("one_column_less", "output"),
        ("backward_without_mean_term", "grad_input"),
    ],
)
def test_another_function_than_its_specification_fails(name, output):
    outcomes = outcomes_of(SUBJECTS[name], "running_bound", "float32", **CASES)
    found = failures(outcomes)
    assert {o.output for o in found} == {output}, [(o.verdict, o.output, o.message) for o in outcomes]
    assert "computed without rounding it is wrong too" in found[0].message


@pytest.mark.parametrize(
    ("name", "dtype", "why"),
    [
        ("by_an_unknown_operation", "float32", "torch operations without a rule: linalg_vector_norm"),
        ("right", "float64", "would be float64 numbers too"),
    ],
)
def test_what_is_compared_with_nothing_says_so_and_is_no_pass(name, dtype, why):
    line = examination(SUBJECTS[name], "running_bound", dtype, budget=Budget(cases=2)).run()
    assert line_verdict(line) is Verdict.UNDECIDED
    outcomes = outcomes_of(SUBJECTS[name], "running_bound", dtype, count=1, max_elements=100)
    assert why in outcomes[0].message
    assert "compared with nothing" in outcomes[0].message


@pytest.mark.parametrize("name", ["squares_in_half", "divisor_overflows"])
def test_what_overflows_inside_the_promised_domain_keeps_the_line_from_a_pass(name):
    line = examination(SUBJECTS[name], "running_bound", budget=Budget(cases=25)).run()
    assert line.counts[Verdict.PASS]
    assert not line.findings
    assert line_verdict(line) is Verdict.UNDECIDED
    assert any("inside the promised domain a value overflows" in text for text in line.undecided)


@pytest.mark.parametrize(
    ("name", "large"), [("right", "weight"), ("right", "grad_output"), ("divided_last", "weight")]
)
def test_what_another_argument_carries_out_of_range_raises_no_doubt(name, large):
    (case,) = cases_of(SUBJECTS[name], "running_bound", "float16", 1, max_elements=300)
    wide = torch.full_like(case.tensors[large], torch.finfo(torch.float16).max)
    case = replace(case, tensors={**case.tensors, large: wide})
    found = examination(SUBJECTS[name], "running_bound", "float16").judge(case)[0]
    assert any(o.evidence for o in found)
    assert not any(o.doubtful for o in found)


def test_where_nothing_follows_compiled_code_an_own_specification_is_undecided_and_not_skipped():
    subject = replace(SUBJECTS["right"], language="triton")
    assert running_bound.skips(subject, op("unknown"), "float32", "interpreter") is None
    examining = examination(subject, "running_bound", "float32", "interpreter")
    (case,) = cases_of(subject, "running_bound", "float32", 1, max_elements=100)
    (outcome,) = examining.judge(case)[0]
    assert outcome.verdict is Verdict.UNDECIDED
    assert "--backend machine" in outcome.message


def test_an_operation_that_errs_more_than_is_documented_leaves_no_bound(monkeypatch):
    (case,) = cases_of(SUBJECTS["right"], "running_bound", "float32", 1, max_elements=100)
    usual = running_bound_of_torch.bounds(SUBJECTS["right"], case, backend=backend("eager"), gradients=False)
    assert bool(torch.isfinite(usual.outputs["output|bound"]).all())

    strict = replace(running_bound_of_torch._RULES["rsqrt"], allowed=0.0)
    monkeypatch.setitem(running_bound_of_torch._RULES, "rsqrt", strict)
    seen = running_bound_of_torch.bounds(SUBJECTS["right"], case, backend=backend("eager"), gradients=False)
    assert not bool(torch.isfinite(seen.outputs["output|bound"]).all())


def multiplied_anew(x, y):
    return x.clone() * y


def multiplied_in_place(x, y):
    return x.clone().mul_(y)


def multiplied_into(x, y):
    kept = x.clone()
    return torch.mul(kept, y, out=kept)


@pytest.mark.parametrize("in_place", [multiplied_in_place, multiplied_into])
@pytest.mark.parametrize("mode", [running_bound_of_torch.TorchSlots, HostSlots])
def test_what_is_changed_in_place_errs_as_what_is_made_anew(mode, in_place):
    x, y = torch.tensor([[3.0, 5.0, 7.0], [1e-6, 1e3, -1.0]])
    found = []
    for function in (multiplied_anew, in_place):
        slots = Slots(
            running_bound_of_torch.Followed()
            if mode is running_bound_of_torch.TorchSlots
            else BallArithmetic(given=True)
        )
        for tensor, errors in ((x, [1e-3, 0.0, 0.5]), (y, [0.0, 2.0, 1e-3])):
            given = np.array(errors)
            exact = tensor.double().numpy()
            slots.set(
                tensor,
                running_bound_of_torch.made(exact, given)
                if mode is running_bound_of_torch.TorchSlots
                else given,
            )
        with mode(slots):
            result = function(x, y)
            beside = np.array(slots.get(result))
        found.append(beside["bound"] if beside.dtype.names else beside)
    anew, changed = found
    assert np.all(np.isfinite(anew) & (anew > 0))
    assert np.array_equal(anew, changed)

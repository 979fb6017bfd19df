"""The layer norm that keeps its mean as two numbers: faults that only large means show, each one caught."""

import pytest
import torch
from checks_support import KERNELS, fails_in, failures, outcomes_of, planted, subject_of

pytest.importorskip("triton", reason="the subject is a Triton kernel; Triton is not installed")

from strategies.values import Values
from verifier import machine
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal

SOURCE = KERNELS / "layer_norm_compensated_triton.py"
FORWARD = "out, factor = deviation - low[:, None]"
BACKWARD = "hat = tl.where(inside, ((value - high[:, None]) - low[:, None]) * rstd"
ROUNDED = "(value - (high + low)[:, None]) * rstd"
FAULTS = {
    "the mean as one number": (FORWARD, "out, factor = value - (high + low)[:, None]", "output"),
    "a backward pass that forgets the second": (
        BACKWARD,
        "hat = tl.where(inside, (value - high[:, None]) * rstd",
        "grad_input",
    ),
    "the rounded mean in the backward pass": (BACKWARD, f"hat = tl.where(inside, {ROUNDED}", "grad_input"),
}


def found_in(subject, check, until=None):
    with machine.session(poison=0xFF):
        return failures(outcomes_of(subject, check, "float32", "machine", count=5, until=until))


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_that_only_a_large_mean_shows_is_caught_by_the_first_cases(name):
    """In rows of ordinary numbers these are as right as rounding lets them be."""
    right, wrong, where = FAULTS[name]
    check = "forward_error" if where == "output" else "gradient"
    found = found_in(planted({right: wrong}, SOURCE), check, until=fails_in(where))
    assert {f.output for f in found} >= {where}


@pytest.mark.parametrize("check", ["forward_error", "gradient"])
def test_the_same_cases_raise_no_alarm_about_the_right_kernel(check):
    assert not found_in(subject_of(SOURCE), check)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_mean_of_a_million_deviations_costs_no_digits(dtype):
    """The same numbers about a mean of 2**20: what is left of them is normalized as if there were no mean."""
    kernel = subject_of(SOURCE)
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-8, 9, (4, 96), generator=generator).to(torch.float32)
    x[:, 0] -= x.sum(1)  # rows of mean 0, so that both means are exact sums of integers
    offset = 2.0**20 if dtype is torch.float32 else 64.0
    with machine.session():
        plain, far = (kernel(v.to(dtype), (96,))[0] for v in (x, x + offset))
    assert torch.equal(plain, far)


def test_it_is_certified_and_its_faults_are_not():
    recipe = Recipe(rows=2, columns=5, input=Values(seed=1))
    with Runner("machine") as runner:
        for right, wrong, where in [("", "", ""), *FAULTS.values()]:
            subject = planted({right: wrong}, SOURCE) if right else subject_of(SOURCE)
            gradients = where != "output"
            case = build(op("layer_norm"), subject, "float32", recipe, gradients=gradients)
            found = certified(subject, case, runner=runner, gradients=gradients)
            assert isinstance(found, Refusal if right else Certificate), found

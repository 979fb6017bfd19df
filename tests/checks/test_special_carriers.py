"""The check `special_values`: NaN and infinity in weight, bias and grad_output."""

import pytest
import torch
from checks_support import KERNELS, SUPPORT, examination, failures, subject_of

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.truth import Truth
from verifier.execution.backends import backend
from verifier.ops import op

POISON = Values(hazard="nonfinite")


def case_of(subject, **recipe):
    return build(op(subject.op), subject, "float32", Recipe(rows=4, columns=6, **recipe), gradients=True)


def lost(subject, case):
    """Return where the oracle knows no finite value, by result."""
    truth = Truth(subject=subject, case=case, setting=backend("eager").setting(subject, "float32"))
    return {name: torch.from_numpy(e.high).isnan() for name, e in truth.exact.items()}


@pytest.mark.parametrize("variant", range(8))
def test_nan_in_a_gradient_reaches_its_element_alone_where_statistics_are_constants(variant):
    """torch itself says what it reaches."""
    subject = subject_of(KERNELS / "batch_norm_torch.py")
    case = case_of(subject, variant=variant, grad_output=POISON)
    if case is None:
        pytest.skip("batch_norm has fewer variants")
    given = {n: t.clone() for n, t in case.given.items() if n != "grad_output"}
    wanted = [given[n].requires_grad_() for n in ("input", "weight", "bias")]
    scalars = {k: case.scalars[k] for k in ("training", "momentum", "eps")}
    output = subject.function(**{"running_mean": None, "running_var": None, **given}, **scalars)
    gradients = torch.autograd.grad(output, wanted, case.given["grad_output"])
    without_value = lost(subject, case)
    for name, gradient in zip(("grad_input", "grad_weight", "grad_bias"), gradients, strict=True):
        rows = torch.from_numpy(op("batch_norm").canonical(case, name, gradient.numpy()))
        assert torch.equal(without_value[name].expand(rows.shape), rows.isnan()), name


@pytest.mark.parametrize("carrier", ["weight", "bias", "grad_output"])
@pytest.mark.parametrize("strength", range(5))
def test_a_right_kernel_keeps_what_they_do_not_reach(carrier, strength):
    subject = subject_of(SUPPORT / "right_kernel.py")
    case = case_of(subject, **{carrier: Values(hazard="nonfinite", strength=strength)})
    assert not case.finite
    assert case.hazard == "nonfinite"
    assert failures(examination(subject, "special_values").judge(case)[0]) == []
    reached = {name for name, mask in lost(subject, case).items() if mask.any()}
    assert (
        reached
        == {
            "weight": {"output", "grad_input"},
            "bias": {"output"},
            "grad_output": {"grad_input", "grad_weight", "grad_bias"},
        }[carrier]
    )

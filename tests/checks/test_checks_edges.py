"""Checks at the edges of a format and of what can be compared: no false alarm, and nothing overlooked."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checks_support import KERNELS, examination, machine, subject_of

from verifier.cases.recipe import assemble
from verifier.checks import memory
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.observation import Observation
from verifier.records.subject import Claim, Subject
from verifier.records.verdict import Verdict


def nearly_overflows(input, weight=None, bias=None, eps=1e-5):
    """Overflow from 65400 on: what the rounding of a few operations near 65504 may do."""
    wide = torch.nn.functional.layer_norm(input.double(), input.shape[-1:], weight.double(), None, eps)
    out = wide.to(input.dtype)
    return torch.where(wide.abs() > 65400.0, torch.full_like(out, math.inf), out)


class _View(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.float()
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        ctx.save_for_backward(x)
        return y.mT.clone().mT

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        return rstd * (grad_output - x * rstd.square() * (x * grad_output).mean(-1, keepdim=True))


def returns_a_view(input, eps=1e-5):
    """RMSNorm whose output torch lets nobody change in place."""
    del eps
    return _View.apply(input)


def one_nan(input, running_mean=None, running_var=None, training=True, eps=1e-5):
    """Write NaN for the third sample of the first channel."""
    out = torch.nn.functional.batch_norm(input, None, None, None, None, True, 0.1, eps)
    out[2, 0] = math.nan
    return out


def subject_for(function, op_name, dtype, **claim):
    return Subject(
        function=function,
        name=function.__name__,
        path=Path(__file__),
        op=op_name,
        language="torch",
        dtypes=(dtype,),
        claim=Claim(**claim),
    )


def judged(subject, check_name, tensors, place="eager", dtype=None, **scalars):
    the_op, dtype = op(subject.op), dtype or subject.dtypes[0]
    case = assemble(the_op, dtype, tensors, {"eps": 1e-5, **scalars}, {}, hazard="ordinary", origin="")
    return examination(subject, check_name, dtype, place).judge(case)[0]


def near_the_largest(weight):
    x = torch.tensor([[-1000.0, 1000.0]], dtype=torch.float16)
    return {"input": x, "weight": torch.full((2,), weight, dtype=torch.float16), "bias": None}


def test_an_overflow_next_to_the_largest_number_is_judged_only_by_a_theorem():
    """Exact values of 65472 fit, but only a bound proves that no rounding of a right kernel overflows."""
    claims = {"variance": "two_pass"}
    for claim, verdict in ((claims, Verdict.FAIL), ({}, None)):
        subject = subject_for(nearly_overflows, "layer_norm", "float16", **claim)
        found = judged(subject, "finite", near_the_largest(65472.0), normalized_shape=(2,))
        assert {o.verdict for o in found} == ({verdict} if verdict else set())
        clear = judged(subject, "finite", near_the_largest(65000.0), normalized_shape=(2,))
        assert {o.verdict for o in clear} == {Verdict.PASS}


def test_an_element_that_is_not_finite_is_named_in_the_output_s_own_shape():
    subject = subject_for(one_nan, "batch_norm", "float32", variance="two_pass")
    tensors = {"input": torch.arange(10.0).reshape(5, 2), "weight": None, "bias": None}
    tensors |= {"running_mean": None, "running_var": None}
    (found,) = judged(subject, "finite", tensors, training=True, momentum=0.1)
    assert found.verdict is Verdict.FAIL
    assert found.worst.index == (2, 0)


def seen(nan, finite, positive, again):
    runs = [Observation(status="ok", outputs={"output": t}) for t in (nan, again, finite, positive)]
    return {"nan": runs[:2], "finite": runs[2:3], "positive": runs[3:]}


@pytest.mark.parametrize(
    "other", [torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float16), None], ids=["shape", "dtype", "None"]
)
@pytest.mark.parametrize("run", [0, 1, 2, 3])
def test_a_result_that_changes_its_form_from_run_to_run_is_a_message(other, run):
    results = [torch.zeros(2, 3) for _ in range(4)]
    results[run] = other
    message = memory._compare("output", seen(*results))
    assert message.proved
    assert "shape or dtype differs" in message.deviation.text


def test_results_of_one_form_without_a_difference_give_no_message():
    assert memory._compare("output", seen(*[torch.zeros(2, 3)] * 4)) is None
    assert memory._compare("output", seen(None, None, None, None)) is None


def observed(monkeypatch, values, *, steady):
    """Run the experiment on a subject whose runs give these numbers, one after the other."""
    given = iter(values)

    def execute(*_, **__):
        return Observation(status="ok", outputs={"output": torch.tensor([next(given)])})

    monkeypatch.setattr(memory, "execute", execute)
    found = memory.experiment(None, None, backend=backend("eager"), gradients=False, steady=steady).found
    return len(found.proved), len(found.open), len(list(given))


def test_a_difference_of_bits_is_no_proof_where_the_order_of_additions_may_change(monkeypatch):
    nan = float("nan")
    always = [1.0, 2.0, 2.0, 1.0] * memory.ROUNDS  # NaN, the finite patterns and NaN again in fresh memory
    assert observed(monkeypatch, always, steady=True) == (1, 0, 0)
    assert observed(monkeypatch, always, steady=False) == (0, 1, 0)
    by_chance = [1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 9.0]
    assert observed(monkeypatch, by_chance, steady=True) == (0, 0, 1)
    assert observed(monkeypatch, by_chance, steady=False) == (0, 0, 1)
    assert observed(monkeypatch, [nan, 2.0, 2.0, 1.0], steady=False) == (1, 0, 0)  # the poison's own NaN


def test_the_second_run_with_nan_is_left_out_where_it_can_tell_nothing(monkeypatch):
    alike = [1.0, 1.0, 1.0, float("nan")]
    assert observed(monkeypatch, alike, steady=True) == (0, 0, 1)
    assert observed(monkeypatch, alike, steady=False) == (1, 0, 0)  # it may, of what changes from run to run
    assert observed(monkeypatch, [float("nan")] * 3 + [1.0], steady=True) == (0, 0, 1)  # of the same bits


@pytest.mark.parametrize("swallowed", ["negative", "positive"])
def test_what_a_maximum_or_a_minimum_swallows_is_seen_by_the_other_sign(swallowed, monkeypatch):
    others = [1.0, 2.0] if swallowed == "negative" else [2.0, 1.0]
    always = [1.0, *others, 1.0] * memory.ROUNDS
    assert observed(monkeypatch, always, steady=True) == (1, 0, 0)
    assert observed(monkeypatch, always, steady=False) == (0, 1, 0)


def test_a_proof_goes_before_a_difference_that_is_none():
    nan = torch.tensor([float("nan"), 1.0])
    runs = seen(nan, torch.tensor([float("nan"), 2.0]), torch.tensor([3.0, 1.0]), nan)
    found = memory._compare("output", runs)
    assert found.proved
    assert "3.0 with a positive pattern" in found.deviation.text


@pytest.mark.parametrize("spacings", [3, 101, 256, 511, 513, 1023])
def test_a_mean_that_is_subnormal_may_err_by_the_two_ulp_of_an_approximate_division(spacings):
    subject = subject_of(KERNELS / "layer_norm_published_series_triton.py")
    tensors = {"input": torch.tensor([[0.0, 2 * spacings * 2.0**-149]]), "weight": torch.ones(2)}
    with machine() as place:
        found = judged(
            subject,
            "forward_error",
            tensors | {"bias": torch.zeros(2)},
            place,
            "float32",
            normalized_shape=(2,),
        )
    assert {o.verdict for o in found} == {Verdict.PASS}


def last_column_missing(input, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, input.shape[-1:], weight, bias, eps)[..., :-1]


def nothing(input, weight=None, bias=None, eps=1e-5):
    del input, weight, bias, eps


@pytest.mark.parametrize("function", [last_column_missing, nothing])
@pytest.mark.parametrize("name", ["batch_invariance", "special_values", "metamorphic"])
def test_a_result_of_another_shape_is_a_finding_and_no_error_of_ours(name, function):
    subject = subject_for(function, "layer_norm", "float32", variance="two_pass")
    promised = frozenset({"batch_invariance", "special_values"})
    subject = replace(subject, guarantees=promised, differentiable=False)
    tensors = {"input": torch.arange(12.0).reshape(4, 3), "weight": None, "bias": None}
    found = judged(subject, name, tensors, normalized_shape=(3,))
    assert [o.verdict for o in found] == [Verdict.FAIL]
    assert "is expected" in found[0].message or "None" in found[0].message


def eps_of_its_own(input, weight=None):
    return torch.nn.functional.rms_norm(input, input.shape[-1:], weight, 1e-5)


def test_a_kernel_with_an_eps_of_its_own_is_not_scaled():
    """The scaled eps does not reach it: equal outputs are not to be had."""
    subject = subject_for(eps_of_its_own, "rms_norm", "float32", variance="rms")
    tensors = {"input": torch.tensor([[1.0, 2.0, -4.0]]) / 256, "weight": None}
    outcomes = judged(subject, "metamorphic", tensors, normalized_shape=(3,))
    assert {o.verdict for o in outcomes} == {Verdict.PASS}, outcomes


def test_an_output_that_torch_lets_nobody_change_in_place_is_right():
    """It is a view that was made inside an autograd function: whoever adds to it gets a clear error."""
    x = torch.arange(1.0, 13.0).reshape(3, 4)
    output = returns_a_view(x.clone().requires_grad_(True))
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        output.add_(1.0)
    subject = subject_for(returns_a_view, "rms_norm", "float32", variance="rms")
    tensors = {"input": x, "weight": None, "grad_output": torch.ones(3, 4)}
    outcomes = judged(subject, "context", tensors, normalized_shape=(4,))
    assert {o.verdict for o in outcomes} == {Verdict.PASS}, outcomes


@pytest.mark.parametrize("lost", ["", "shape"])
def test_statistics_of_one_element_a_row_are_no_results_for_each_element(lost):
    """One element in all: running statistics have as many numbers as the output, whatever their shape."""

    def squeezing(input, running_mean=None, running_var=None, training=True, eps=1e-5):
        for buffer in (running_mean, running_var):
            buffer.data = buffer.squeeze() if lost else buffer.clone()
        return torch.zeros_like(input)

    subject = subject_for(squeezing, "batch_norm", "float32")
    subject = replace(subject, mutates=("running_mean", "running_var"), differentiable=False)
    subject = replace(subject, guarantees=frozenset({"batch_invariance"}))
    one = torch.ones(1)
    tensors = {"input": torch.zeros(1, 1, 1), "running_mean": one, "running_var": one}
    outcomes = judged(subject, "batch_invariance", tensors, training=False, momentum=0.1)
    assert [o.verdict for o in outcomes] == [Verdict.PASS]

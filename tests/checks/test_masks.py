"""What is masked out is judged without a tolerance, and kernels in torch operators raise no false alarm."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checks_support import KERNELS, cases_of, examination, failures, machine, outcomes_of, passes, subject_of

from verifier import subject
from verifier.records.verdict import Verdict

FILES = [*KERNELS.glob("masked_*_torch.py"), *KERNELS.glob("causal_*_torch.py")]
TORCH = {path.stem: subject_of(path) for path in FILES}
ZEROS = {
    "op": "masked_softmax",
    "language": "torch",
    "variance": "softmax",
    "accumulates": "float32",
    "formula": "rounded_scores_torch_cpu",
    "dtypes": ("float32",),
}


@subject(**ZEROS, fully_masked="zeros")
def safe(input, mask=None, attn_bias=None, scale=1.0):
    scores = input * scale if attn_bias is None else input * scale + attn_bias
    scores = scores if mask is None else scores.masked_fill(~mask, float("-inf"))
    return torch._safe_softmax(scores, -1)


@pytest.mark.parametrize("check", ["forward_error", "gradient"])
def test_torchs_safe_softmax_gives_zeros_as_declared(check):
    outcomes = outcomes_of(safe, check, count=20)
    assert not failures(outcomes)
    assert len(passes(outcomes)) > 30


def test_the_same_kernel_declared_with_nan_is_found():
    other = replace(safe, claim=replace(safe.claim, fully_masked="nan"))
    found = failures(outcomes_of(other, "forward_error", count=20))
    assert found
    assert all("a fully masked row is NaN, as declared" in outcome.message for outcome in found)
    assert all(outcome.meaning for outcome in found)


@pytest.mark.parametrize("name", sorted(TORCH))
def test_torch_that_gives_nan_is_found_where_zeros_are_declared(name):
    other = replace(TORCH[name], claim=replace(TORCH[name].claim, fully_masked="zeros"))
    found = failures(outcomes_of(other, "forward_error", "float32", count=20))
    assert found
    assert all("a fully masked row is" in outcome.message for outcome in found)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", sorted(TORCH))
def test_torch_raises_no_alarm(name, dtype):
    for check in ("forward_error", "gradient", "layouts", "special_values", "finite"):
        outcomes = outcomes_of(TORCH[name], check, dtype, count=8)
        assert not failures(outcomes), check
        assert passes(outcomes)


def test_elements_that_are_certain_are_judged_where_nothing_else_is():
    """Of a row without an element no bound speaks: that it is zeros is known all the same."""
    examined = examination(safe, "forward_error")
    (case,) = cases_of(safe, "forward_error", count=1)
    mask = torch.zeros_like(case.given["input"], dtype=torch.bool)
    empty = replace(case, tensors={**case.tensors, "mask": mask}, layouts={})
    outcomes = examined.judge(empty)[0]
    assert {o.verdict for o in outcomes} == {Verdict.PASS, Verdict.NO_THEOREM}
    assert sum(o.decided for o in outcomes) == mask.numel()


@pytest.mark.parametrize("check", ["forward_error", "gradient", "formula"])
def test_a_causal_softmax_as_in_flash_attention_keeps_its_bound(check):
    flash = subject_of(Path(__file__).with_name("flash_causal_softmax.py"))
    with machine() as place:
        outcomes = outcomes_of(flash, check, "float32", place, count=3)
    assert not failures(outcomes)
    assert passes(outcomes)


def test_a_zero_that_is_the_nearest_number_is_never_beyond_a_running_bound():
    """Added -2.5e38 is -inf times log2(e), and the code chooses 0; no number of float32 is nearer."""
    flash = subject_of(Path(__file__).with_name("flash_causal_softmax.py"))
    (case,) = cases_of(flash, "running_bound", "float32", count=1)
    rows = torch.zeros(1, 2, 2)
    tensors = {
        "input": rows,
        "mask": torch.tensor([[[False, False], [True, True]]]),
        "attn_bias": torch.tensor([[[0.0, 0.0], [0.0, -2.5e38]]]),
        "grad_output": torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]),
    }
    scalars = {**case.scalars, "scale": 1.0, "diagonal": 0}
    odd = replace(case, tensors=tensors, layouts={}, scalars=scalars, rows=2, columns=2)
    with machine() as place:
        outcomes = examination(flash, "running_bound", "float32", place).judge(odd)[0]
    assert not failures(outcomes)
    assert {o.output for o in passes(outcomes)} == {"output", "grad_input"}


class _LogSoftmax(torch.autograd.Function):
    """A causal log-softmax with a backward pass of its own, which may forget the sum of the gradient."""

    @staticmethod
    def forward(ctx, scores, whole):
        ctx.output = torch.log_softmax(scores, -1)
        ctx.whole = whole
        return ctx.output

    @staticmethod
    def backward(ctx, grad_output):
        total = grad_output.sum(-1, keepdim=True) if ctx.whole else grad_output[..., :1]
        return grad_output - ctx.output.exp() * total, None


def _differenced(change=lambda output: output, *, whole=True):
    """Return what gradcheck says of a causal log-softmax of which the output is changed."""
    library = TORCH["causal_log_softmax_torch"]

    def kernel(input, mask=None, attn_bias=None, scale=1.0, diagonal=0):
        scores = input * scale if attn_bias is None else input * scale + attn_bias
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(diagonal)
        seen = seen if mask is None else seen & mask
        return change(_LogSoftmax.apply(scores.masked_fill(~seen, float("-inf")), whole))

    return outcomes_of(replace(library, function=kernel), "gradcheck", "float64", count=12)


@pytest.mark.parametrize("whole", [True, False])
def test_differences_are_taken_where_logarithms_of_what_is_masked_out_are_infinite(whole):
    outcomes = _differenced(whole=whole)
    if whole:
        assert not failures(outcomes)
        assert passes(outcomes)
    else:
        assert "the backward pass is not the derivative" in failures(outcomes)[0].message


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda output: output.reshape(-1), "the output has shape ("),
        (lambda output: output[..., :-1], "the output has shape ("),
        (lambda _: None, "the output is no tensor"),
    ],
    ids=["flat", "cut", "nothing"],
)
def test_an_output_of_another_shape_is_a_failure_where_elements_are_left_out(change, why):
    outcomes = _differenced(change)
    assert why in failures(outcomes)[0].message
    assert not passes(outcomes)
    assert Verdict.ERROR not in {outcome.verdict for outcome in outcomes}

"""Nothing that a subject does in its process hurts the verifier, and every end has its word."""

import pytest
import torch

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.execution.preloaded import StartError
from verifier.ops import op

KERNELS = """
import ctypes, os, sys, time

@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def segfaults(input, weight=None, bias=None, eps=1e-5):
    print("on the way", file=sys.stderr, flush=True)
    ctypes.string_at(8)

@subject(**DECLARED)
def aborts_far_inside(input, weight=None, bias=None, eps=1e-5, depth=60):
    if depth:
        return aborts_far_inside(input, weight, bias, eps, depth - 1)
    print("there is no thread left", *["frame #1: 0x7fcac73f24b6 " * 9] * 9, sep="\\n", file=sys.stderr)
    sys.stderr.flush()
    def innermost():
        os.abort()
    innermost()

@subject(**DECLARED)
def exits(input, weight=None, bias=None, eps=1e-5):
    sys.exit(5)

@subject(**DECLARED)
def hangs(input, weight=None, bias=None, eps=1e-5):
    time.sleep(600)

@subject(**DECLARED)
def refuses(input, weight=None, bias=None, eps=1e-5):
    raise ValueError("odd rows are not supported")

@subject(**DECLARED)
def refuses_without_a_word(input, weight=None, bias=None, eps=1e-5):
    raise ValueError

@subject(**DECLARED)
def asserts(input, weight=None, bias=None, eps=1e-5):
    assert input.shape[0] > 99, "odd rows are not supported"

@subject(**DECLARED)
def asserts_without_a_word(input, weight=None, bias=None, eps=1e-5):
    assert input.shape[0] > 99

@subject(**DECLARED)
def raises(input, weight=None, bias=None, eps=1e-5):
    return {}["warps"]

@subject(**{**DECLARED, "differentiable": True})
def overwrites_what_backward_needs(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps).exp()
    return out.log() + out.zero_()

class RefusingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        return input.clone()

    @staticmethod
    def backward(ctx, grad_output):
        raise ValueError("odd rows have no backward pass")

@subject(**{**DECLARED, "differentiable": True})
def refuses_in_backward(input, weight=None, bias=None, eps=1e-5):
    return RefusingBackward.apply(input)

@subject(**DECLARED)
def returns_none(input, weight=None, bias=None, eps=1e-5):
    return None

@subject(**DECLARED)
def returns_two(input, weight=None, bias=None, eps=1e-5):
    return input, input

@subject(**DECLARED)
def returns_a_list(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps).tolist()

@subject(**DECLARED)
def returns_an_array(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps).numpy()

@subject(**DECLARED)
def returns_a_sparse_tensor(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps).to_sparse()

@subject(**DECLARED)
def returns_a_shadow(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps).to("meta")

@subject(**DECLARED)
def asks_for_more(input, scale, shift, eps=1e-5):
    return input

@subject(**DECLARED)
def returns_its_input(input, weight=None, bias=None, eps=1e-5):
    return input.T

@subject(**{**DECLARED, "differentiable": True})
def without_gradient(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps).detach()

@subject(**DECLARED)
def takes_positions(input, weight, bias, eps, /):
    return right(input, weight, bias, eps)
"""


@pytest.fixture(scope="module")
def child():
    with Runner("eager", case_seconds=20.0) as runner:
        yield runner


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def case_for(subject, *, gradients=False):
    return build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=gradients)


def observed(child, subject, **options):
    return child.run(subject, case_for(subject, gradients=bool(options)), **options)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("refuses", "refused", "ValueError: odd rows are not supported"),
        ("refuses_without_a_word", "crashed", "ValueError"),
        ("asserts", "refused", "AssertionError: odd rows are not supported"),
        ("asserts_without_a_word", "crashed", "AssertionError"),
        ("raises", "crashed", "KeyError: 'warps'"),
        ("returns_two", "unusable", "returned 2 thing(s)"),
        ("returns_a_list", "unusable", "returned 2 thing(s)"),
        ("returns_an_array", "unusable", "returned ndarray as output"),
        ("returns_a_sparse_tensor", "unusable", "no plain memory"),
        ("returns_a_shadow", "unusable", "no plain memory"),
        ("asks_for_more", "unusable", "asks for 'scale', 'shift', which layer_norm does not have"),
    ],
)
def test_every_other_end_has_its_status_and_a_sentence(name, status, said, child, subjects):
    seen = observed(child, subjects[name])
    assert seen.status == status
    assert said in seen.message
    assert "\n" not in seen.message


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("overwrites_what_backward_needs", "crashed", "modified by an inplace operation"),
        ("refuses_in_backward", "refused", "odd rows have no backward pass"),
    ],
)
def test_a_backward_pass_that_fails_by_itself_refuses_nothing(name, status, said, child, subjects):
    seen = observed(child, subjects[name], gradients=True)
    assert seen.status == status
    assert said in seen.message


def test_results_come_back_bit_by_bit_even_if_they_alias_an_input(child, subjects):
    subject = subjects["returns_its_input"]
    case = case_for(subject)
    case.tensors["input"].view(torch.int32)[0, 0] = 0x7FC00123  # a NaN with a payload
    seen = child.run(subject, case)
    expected = case.tensors["input"].T.contiguous().view(torch.int32)
    assert torch.equal(seen.outputs["output"].view(torch.int32), expected)


def test_none_comes_back_as_none_and_a_missing_gradient_is_unusable(child, subjects):
    assert observed(child, subjects["returns_none"]).outputs == {"output": None}
    seen = observed(child, subjects["without_gradient"], gradients=True)
    assert seen.status == "unusable"
    assert "no backward pass is connected" in seen.message


def test_positional_arguments_arrive(child, subjects):
    assert observed(child, subjects["takes_positions"]).status == "ok"


@pytest.mark.parametrize(
    ("name", "said"), [("segfaults", "killed by SIGSEGV"), ("exits", "ended with exit status 5")]
)
def test_a_process_that_dies_is_a_crash_and_the_next_case_runs(name, said, child, subjects):
    seen = observed(child, subjects[name])
    assert seen.status == "crashed"
    assert said in seen.message
    assert seen.aftermath.died
    assert name != "segfaults" or "on the way" in seen.detail
    assert observed(child, subjects["good"]).status == "ok"


def test_what_was_said_before_a_death_far_inside_and_the_innermost_frames_are_kept(child, subjects):
    seen = observed(child, subjects["aborts_far_inside"])
    assert "killed by SIGABRT" in seen.message
    told = [line for line in seen.detail.splitlines() if line]
    assert told[:2] == ["there is no thread left", "Fatal Python error: Aborted"]
    assert told[3].endswith("in innermost")
    assert "call_subject" not in seen.detail


def test_a_process_that_hangs_is_stopped(subjects):
    with Runner("eager", case_seconds=1.0) as impatient:
        seen = observed(impatient, subjects["hangs"])
        assert seen.status == "timeout"
        assert seen.aftermath.died
        assert not impatient._children


def test_a_child_that_does_not_start_is_no_crash_of_the_subject(subjects):
    with (
        Runner("eager", options={"no_such_option": 1}) as broken,
        pytest.raises(StartError, match="no_such_option"),
    ):
        observed(broken, subjects["good"])

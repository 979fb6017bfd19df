"""A case that takes the machine long is no case of a subject that hangs."""

import importlib.util

import pytest

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.ops import op

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
KERNEL = """
import torch
import triton
import triton.language as tl
from verifier import subject

@triton.jit
def _copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

def _launch(input, times):
    output = torch.empty_like(input)
    while times:
        _copy[(1,)](input, output, input.numel(), BLOCK=64)
        times -= 1
    return output

@subject(op="softmax", language="triton", differentiable=False)
def launches_on(input, dim=-1):
    return _launch(input, -1)

@subject(op="softmax", language="triton", differentiable=False)
def launches_and_hangs(input, dim=-1):
    output = _launch(input, 3)
    while True:
        pass

@subject(op="softmax", language="triton", differentiable=False)
def launches_on_whatever_is_raised(input, dim=-1):
    try:
        return _launch(input, -1)
    except Exception:
        return _launch(input, 0)
"""

SECONDS = 2.0
"""Of processor time, for one case: compiling takes less, and a loop more."""


def observed(runner, subject):
    case = build(op(subject.op), subject, "float32", Recipe(rows=1, columns=8), gradients=False)
    return runner.run(subject, case)


@pytest.mark.parametrize("name", ["launches_on", "launches_on_whatever_is_raised"])
def test_a_subject_that_comes_from_launch_to_launch_is_undecided(name, subjects_of):
    subject = subjects_of(KERNEL, head="")[name]
    with Runner("machine", case_seconds=SECONDS) as impatient:
        seen = observed(impatient, subject)
    assert seen.status == "undecided"
    assert "the machine is too slow for this case: " in seen.message
    assert f"launches took {SECONDS:g} seconds of processor time" in seen.message


def test_one_that_launches_no_more_hangs(subjects_of):
    subject = subjects_of(KERNEL, head="")["launches_and_hangs"]
    with Runner("machine", case_seconds=2 * SECONDS) as impatient:  # in which it is compiled and launched
        assert observed(impatient, subject).status == "timeout"


def test_the_next_case_has_its_own_time(subjects_of):
    subjects = subjects_of(KERNEL, head="")
    with Runner("machine", case_seconds=SECONDS) as impatient:
        assert observed(impatient, subjects["launches_on"]).status == "undecided"
        assert f"took {SECONDS:g} seconds" in observed(impatient, subjects["launches_on"]).message

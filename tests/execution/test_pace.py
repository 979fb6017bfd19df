"""A case that takes the machine long is no case of a subject that hangs."""

import importlib.util

import pytest

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.ops import op

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
KERNEL = """
import time
import torch
import triton
import triton.language as tl
from verifier import subject
from verifier.subjects.compiling import marked

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
def launches_once(input, dim=-1):
    return _launch(input, 1)

@subject(op="softmax", language="triton", differentiable=False)
def launches_on(input, dim=-1):
    return _launch(input, -1)

@subject(op="softmax", language="triton", differentiable=False)
def launches_what_takes_long_to_compile(input, dim=-1):
    _launch(input, 1)
    begun = time.process_time()
    with marked():
        while time.process_time() - begun < 2.0:
            pass
    return _launch(input, 1)

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

SECONDS = 1.0
"""Of processor time, for one case of a kernel that is compiled: a launch takes less, and a loop more."""


@pytest.fixture
def impatient(subjects_of):
    """A runner and the subjects, whose kernel has been compiled: that takes its time."""
    subjects = subjects_of(KERNEL, head="")
    with Runner("machine") as runner:
        assert observed(runner, subjects["launches_once"]).status == "ok"
        runner.case_seconds = SECONDS
        yield runner, subjects


def observed(runner, subject):
    case = build(op(subject.op), subject, "float32", Recipe(rows=1, columns=8), gradients=False)
    return runner.run(subject, case)


@pytest.mark.parametrize("name", ["launches_on", "launches_on_whatever_is_raised"])
def test_a_subject_that_comes_from_launch_to_launch_is_undecided(name, impatient):
    runner, subjects = impatient
    seen = observed(runner, subjects[name])
    assert seen.status == "undecided"
    assert "the machine is too slow for this case: " in seen.message
    assert f"launches took {SECONDS:g} seconds of processor time" in seen.message


def test_compilers_have_time_of_their_own(impatient):
    runner, subjects = impatient
    assert observed(runner, subjects["launches_what_takes_long_to_compile"]).status == "ok"


def test_one_that_launches_no_more_hangs(impatient):
    runner, subjects = impatient
    assert observed(runner, subjects["launches_and_hangs"]).status == "timeout"


def test_the_next_case_has_its_own_time(impatient):
    runner, subjects = impatient
    for _ in range(2):
        seen = observed(runner, subjects["launches_on"])
        assert seen.status == "undecided"
        assert f"took {SECONDS:g} seconds" in seen.message

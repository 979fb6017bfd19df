"""An illegal access costs the process in which it happened, and nothing else."""

import os

import pytest
import torch

from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.execution.backends import cuda
from verifier.ops import op
from verifier.records.observation import Aftermath, Observation

KERNEL = """
from verifier import subject

@subject(op="layer_norm", language="torch", variance="two_pass", dtypes=("float32",))
def plain(input, weight=None, bias=None, eps=1e-5):
    return input
"""


def answer_from(subject, case, *, backend, lost):
    """Stand in for an execution: says which process answered, and whether its device is lost."""
    del subject, case, backend
    return Observation(status="crashed", aftermath=Aftermath(died=lost), found=os.getpid())


def answers(tmp_path, *losses):
    from verifier.subjects.load_file import load_subjects

    file = tmp_path / "plain.py"
    file.write_text(KERNEL)
    (subject,) = load_subjects(file)
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=False)
    with Runner("eager") as runner:
        return [
            runner.run(subject, case, experiment="test_cuda_lost:answer_from", lost=lost).found
            for lost in losses
        ]


def test_a_process_that_lost_its_device_is_replaced(tmp_path):
    first, second, third = answers(tmp_path, True, False, False)
    assert first != second == third


def broken():
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def test_an_error_that_leaves_the_context_unusable_ends_the_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert cuda.BACKEND.aftermath(RuntimeError("illegal")).died


def test_an_error_that_leaves_the_context_usable_does_not(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not cuda.BACKEND.aftermath(ValueError("a shape")).died


FAR = """
import torch, triton
import triton.language as tl
from verifier import subject

@triton.jit
def _store(y, distance):
    tl.store(y + distance, 1.0)

@subject(op="layer_norm", language="triton", variance="two_pass", dtypes=("float32",), differentiable=False)
def far(input, weight=None, bias=None, eps=1e-5):
    y = torch.zeros_like(input)
    _store[(1,)](y, 2**44 if input.shape[-1] == 3 else 0)
    return y
"""


@pytest.mark.gpu
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="torch sees no CUDA device")
def test_an_illegal_access_on_a_device_is_told_and_the_next_case_is_run(tmp_path):
    from verifier.subjects.load_file import load_subjects

    file = tmp_path / "far.py"
    file.write_text(FAR)
    (subject,) = load_subjects(file)
    cases = [
        build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=n), gradients=False)
        for n in (4, 3, 4)
    ]
    with Runner("cuda") as runner:
        first, lost, last = (runner.run(subject, case) for case in cases)
    assert (first.status, lost.status, last.status) == ("ok", "crashed", "ok")
    assert "illegal" in lost.message + lost.detail

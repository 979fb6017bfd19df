"""What memory that nobody wrote keeps from a verdict says so, and names the check that decides it."""

import pytest
import torch
from checks_support import KERNELS, cases_of, examination, failures, machine, subject_of

from verifier.records.verdict import Verdict

pytest.importorskip("triton")

CAUSE = "memory that nobody wrote reaches grad_weight, grad_bias: see memory, which decides it"


@pytest.fixture
def _numbers_in_fresh_memory(monkeypatch):
    """Fresh memory holds what was there before: here a number, in every run alike."""
    usual = torch.empty

    def empty(*shape, **settings):
        made = usual(*shape, **settings)
        return made.detach().fill_(0.3) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", empty)


@pytest.mark.usefixtures("_numbers_in_fresh_memory")
@pytest.mark.parametrize("check", ["formula", "gradcheck"])
def test_sums_of_buffers_that_nobody_wrote_are_left_to_memory(check):
    subject = subject_of(KERNELS / "layer_norm_published_tutorial_older_triton.py")
    with machine(poison=0xFF):
        (case,) = cases_of(subject, check, "float32", 1, shapes=((3, 5),))
        outcomes, _ = examination(subject, check, "float32", "machine").judge(case)
    assert not failures(outcomes)
    (found,) = [o for o in outcomes if o.verdict is Verdict.UNDECIDED]
    assert found.message == f"{check} not decided: {CAUSE}"

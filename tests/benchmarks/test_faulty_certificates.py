"""A certificate of a kernel that is wrong at the certified call is told."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from verifier.execution import Runner
from verifier.subjects.load_file import load_subjects

FAULTY = Path(__file__).parents[1] / "faulty_kernels"


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = importlib.import_module("faulty_certificates")

    def ask(name, given=None):
        (subject,) = load_subjects(FAULTY / f"{name}.py")
        if given is not None:
            monkeypatch.setattr(module, "certified", lambda *_, **__: given)
        with Runner("machine") as runner:
            return module.asked(subject, 3, 33, runner, gradients=False)

    ask.certified = module.certified
    ask.case_for = module.case_for
    return ask


def test_what_is_wrong_elsewhere_alone_is_certified_and_judged_right(asked):
    found = asked("eps_larger_in_first_call_triton")
    assert (found.given, found.wrong) == (True, 0)
    assert found.judged > 5


def test_what_is_wrong_is_refused_and_would_be_told_if_it_were_certified(asked):
    assert not asked("masked_lanes_counted_triton").given
    (right,) = load_subjects(FAULTY / "eps_larger_in_first_call_triton.py")
    with Runner("machine") as runner:
        certificate = asked.certified(
            right, asked.case_for(right, "float32", 3, 33, 0.0, 0), runner=runner, gradients=False
        )
    found = asked("masked_lanes_counted_triton", certificate)
    assert found.given
    assert found.wrong > 5

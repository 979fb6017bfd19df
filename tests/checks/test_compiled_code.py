"""What was compiled has a say in verdicts: the bounds take its arithmetic, other devices must agree."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from checks_support import KERNELS, cases_of, examination, failures, faulty, machine, outcomes_of, subject_of

from verifier.audit.report.finding_text import of_one_cause
from verifier.audit.trial import Failure
from verifier.checks import forward_error
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.host_arithmetic import HostArithmetic
from verifier.records.verdict import Outcome, Verdict

pytest.importorskip("triton")


def session_of(subject, dtype="float32", count=1):
    case = cases_of(subject, "forward_error", dtype, count)[-1]
    setting = backend("machine").setting(subject, dtype)
    run = examination(subject, "forward_error", dtype, "machine").runner.run
    return Session(subject=subject, case=case, backend="machine", setting=setting, run=run)


def test_a_session_takes_the_arithmetic_of_what_it_executed():
    session = session_of(subject_of(KERNELS / "layer_norm_two_pass_triton.py"))
    before = session.truth.setting.arithmetic
    assert before.division == 5
    with machine():
        session.execute()
    assert session.compiled.host == frozenset()
    assert session.truth.setting.arithmetic.division < before.division
    assert session.truth is session.truth


def test_a_session_knows_nothing_if_one_execution_is_unknown():
    session = session_of(subject_of(KERNELS / "layer_norm_two_pass_triton.py"))
    with machine():
        session.execute()
        session.execute(experiment=f"{__name__}:without_code")
    assert session.compiled is None
    assert session.truth.setting == session.setting


def without_code(subject, case, *, backend):
    return replace(execute(subject, case, backend=backend), compiled=None)


def test_a_root_and_a_quotient_that_are_approximate_err_more_than_a_reciprocal_root():
    session = session_of(subject_of(KERNELS / "layer_norm_published_tutorial_newer_triton.py"))
    with machine():
        session.execute()
    assert session.compiled.approximate >= {"div", "sqrt"}
    assert session.truth.setting.arithmetic.reciprocal_square_root == 8


def test_what_correctly_rounded_quotients_hide_other_devices_show(monkeypatch):
    with machine():
        subject = faulty("reciprocals_of_reciprocals_triton")
        found = failures(outcomes_of(subject, "forward_error", place="machine", count=3))
        assert found
        assert "on an admissible device" in found[0].message
        monkeypatch.setattr(forward_error, "ADMISSIBLE", ())
        assert not failures(outcomes_of(subject, "forward_error", place="machine", count=3))


def test_sums_over_threads_in_half_are_told_by_their_line():
    with machine():
        (found, *_) = failures(
            outcomes_of(faulty("squares_summed_in_half_triton"), "claim", place="machine", count=1)
        )
    assert found.output == "declaration"
    assert "squares_summed_in_half_triton.py:" in found.message


def test_sums_in_half_of_a_backward_pass_are_told_without_a_tree_and_at_any_size():
    subject = faulty("dot_summed_in_half_triton")
    with machine():
        cases = {"shapes": ((1, 33),), "hazards": ("ordinary",), "joint": False, "count": 1}
        assert not failures(outcomes_of(subject, "forward_error", place="machine", **cases))
        (found,) = failures(outcomes_of(subject, "gradient", place="machine", **cases))
        silent = subject.differing(variance=None, assumed=frozenset({"accumulates"}))
        assert not failures(outcomes_of(silent, "gradient", place="machine", **cases))
    assert found.output == "declaration"
    assert "dot_summed_in_half_triton.py:25: numbers of several threads" in found.message


def test_sums_in_half_are_one_finding_wherever_they_are_asked_for():
    told = "sums are declared in float32, the compiled code keeps sums in half precision"
    places = ("one.cu:3: by atomics", "one.cu:3: by atomics; one.cu:9: by atomics")
    outcomes = [Outcome(verdict=Verdict.FAIL, output="declaration", message=f"{told} ({p})") for p in places]
    subject = faulty("dot_summed_in_half_triton")
    case = cases_of(subject, "gradient", count=1)[0]
    examining = examination(subject, "gradient", place="machine")
    findings = [examining.finding(Failure(case=case, outcome=outcome)) for outcome in outcomes]
    assert len(of_one_cause(findings)) == 1


def test_the_host_is_seen_where_it_computes():
    x = torch.ones(4, 4)
    with HostArithmetic() as host:
        torch.empty_like(x.reshape(-1, 2).contiguous()).copy_(x.view(-1, 2)).to(torch.float16).sum()
        torch.arange(4) // 3
        assert host.seen == set()
        x.var(-1).rsqrt()
    assert host.seen == {"var", "rsqrt"}


def test_the_host_is_watched_without_torch_s_compiler_which_a_second_would_load(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # to import it is an error
    with type("Fresh", (HostArithmetic,), {})() as host:
        torch.ones(4).rsqrt()
    assert host.seen == {"rsqrt"}


def test_where_torch_s_compiler_is_loaded_it_does_not_see_what_watches(monkeypatch):
    hidden = []
    compiler = SimpleNamespace(disable=lambda method, **_: hidden.append(method.__name__) or method)
    monkeypatch.setitem(sys.modules, "torch._dynamo", compiler)
    with type("Fresh", (HostArithmetic,), {})() as host:
        torch.ones(4).rsqrt().var()
    assert host.seen == {"rsqrt", "var"}
    assert hidden == ["dispatched"]  # once, however much is watched

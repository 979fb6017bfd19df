"""A certificate of a kernel that is wrong at the certified call is told."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from verifier.audit.examination import Examination
from verifier.audit.trial import Failure
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.verdict import Outcome, Verdict
from verifier.subjects.load_file import load_subjects

FAULTY = Path(__file__).parents[1] / "faulty_kernels"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("faulty_certificates")


@pytest.fixture
def asked(module, monkeypatch):
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


def finding_of(subject, check, recipe, output="output", message="made up"):
    """A failure of a result that a check is said to have found at a case."""
    case = build(op(subject.op), subject, "float32", recipe, gradients=True)
    outcome = Outcome(verdict=Verdict.FAIL, output=output, message=message)
    with Runner("machine") as runner:
        examination = Examination(subject=subject, check_name=check, dtype="float32", runner=runner)
        return examination.finding(Failure(case=case, outcome=outcome))


RECIPE = Recipe(rows=1, columns=5)


@pytest.mark.parametrize(
    ("check", "output", "error"),
    [
        ("repeated_calls", "output", False),
        ("influence", "output", True),
        ("synchronization", "shared_race", True),
    ],
)
def test_a_certificate_where_a_kernel_fails_is_an_error_if_it_excludes_what_is_found(
    module, check, output, error
):
    (right,) = load_subjects(FAULTY / "eps_larger_in_first_call_triton.py")
    found = module.asked_at(
        module.Call(subject=right, gradients=False, told=""), finding_of(right, check, RECIPE, output)
    )
    assert (found.given, found.error) == (True, error)
    assert found.plain == "the call: PASS"


def test_a_certificate_is_an_error_where_the_plain_call_is_wrong(module, monkeypatch):
    (subject,) = load_subjects(FAULTY / "masked_lanes_counted_triton.py")
    finding = finding_of(subject, "layouts", RECIPE)
    assert not module.asked_at(module.Call(subject=subject, gradients=False, told=""), finding).given
    (right,) = load_subjects(FAULTY / "eps_larger_in_first_call_triton.py")
    case = finding_of(right, "layouts", RECIPE).case
    with Runner("machine") as runner:
        certificate = module.certified(right, case, runner=runner)
    monkeypatch.setattr(module, "certified", lambda *_, **__: certificate)
    found = module.asked_at(module.Call(subject=subject, gradients=False, told=""), finding)
    assert (found.given, found.error, found.plain) == (True, True, "the call: FAIL")


def test_a_certificate_speaks_of_no_argument_that_is_infinite(module):
    (subject,) = load_subjects(FAULTY / "first_tile_masked_triton.py")
    finding = finding_of(subject, "special_values", RECIPE)
    finding.case.given["input"][0, 0] = -float("inf")
    found = module.asked_at(module.Call(subject=subject, gradients=False, told=""), finding)
    assert (found.given, found.error) == (True, False)
    assert "no argument that is infinite" in found.plain


@pytest.mark.parametrize(
    ("name", "how", "ways"),
    [
        ("unwritten_bias_without_grad_triton", "under torch.no_grad", ["forward"]),
        ("partials_of_132_processors_triton", "with 148 multiprocessors", ["forward", "with gradients"]),
    ],
)
def test_what_makes_a_kernel_fail_is_asked_for_as_a_call_of_its_own(module, tmp_path, name, how, ways):
    (subject,) = load_subjects(FAULTY / f"{name}.py")
    finding = finding_of(subject, "modes", Recipe(rows=1, columns=1), message=f"it is wrong, {how}")
    calls = list(module.calls_at(subject, finding, tmp_path))
    assert [one.told for one in calls] == [told for way in ways for told in (way, f"{way}, {how}")]
    assert not module.asked_at(calls[-1], finding).given


def test_every_compiled_faulty_kernel_names_a_check(module):
    named = [module.named_check(fault) for _, fault in module.kernels([""])]
    assert len(named) == len([*FAULTY.glob("*_triton.py"), *FAULTY.glob("*_cuda.py")])

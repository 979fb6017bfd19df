"""An examination finds what is wrong, decides nothing without proof and respects what a subject declares."""

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from strategies.values import Values
from verifier.audit import rules, search
from verifier.audit.examination import UNCLAIMED, Examination
from verifier.audit.rules import line_verdict, unexpected
from verifier.audit.search import CRASHES_PER_LINE, Budget
from verifier.audit.tally import left_out_by, measured_in_words
from verifier.bounds.affine import OVERFLOW
from verifier.cases.recipe import Recipe, assemble, build
from verifier.checks import checks
from verifier.ops import op
from verifier.records import case as cases
from verifier.records import witness
from verifier.records.observation import Aftermath, Observation
from verifier.records.subject import Domain, KnownDefect
from verifier.records.verdict import FailureKey, Line, Measured, Outcome, Verdict, Worst
from verifier.subjects.load_file import load_subjects

KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong_in_some_short_rows(input, weight=None, bias=None, eps=1e-5):
    wrong = 3 < input.shape[-1] < 8
    return right(input, weight, bias, eps) * (1.5 if wrong else 1)

@subject(**DECLARED)
def wrong(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.001

@subject(**DECLARED)
def one_nan(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    if out.numel() > 3:
        out.reshape(-1)[2] = float("nan")
    return out

@subject(**{**DECLARED, "variance": None})
def claims_nothing(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 2

@subject(**DECLARED)
def wrong_in_long_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * (1.01 if input.shape[-1] > 100 else 1)

@subject(**DECLARED)
def wrong_for_large_numbers(input, weight=None, bias=None, eps=1e-5):
    large = input.abs() > 100
    return right(input, weight, bias, eps) * torch.where(large, 1.5, 1.0).to(input.dtype)

@subject(**DECLARED)
def refuses_long_rows(input, weight=None, bias=None, eps=1e-5):
    if input.shape[-1] > 100:
        raise ValueError("more than 100 columns are not supported")
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def flattens_what_is_not_contiguous(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    return out if input.is_contiguous() else out.reshape(-1)

@subject(**DECLARED)
def without_weight_and_bias(input, eps):
    return right(input, None, None, eps)

@subject(**DECLARED)
def without_eps(input, weight=None, bias=None):
    return right(input, weight, bias, 1e-5)
"""

WORST = Worst(
    output="output", index=(0, 0), actual=2.0, expected=1.0, error=1.0, bound=0.5, ulp=1.0, row_ulp=1.0,
    utilisation=2.0,
)  # fmt: skip


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def examined(subject, runner, check="forward_error", cases=12, **options):
    given = {"dtype": "float32", "budget": Budget(cases=cases), **options}
    return Examination(subject=subject, check_name=check, runner=runner, **given).run()


@pytest.mark.parametrize("check", list(checks()))
def test_no_check_complains_of_a_correct_kernel(check, runner):
    (correct,) = load_subjects(Path(__file__).parents[1] / "support" / "right_kernel.py")
    for dtype in correct.dtypes:
        line = examined(correct, runner, check, dtype=dtype, cases=6)
        assert [f.outcome.message for f in line.findings] == []
        assert line_verdict(line) in {Verdict.PASS, Verdict.SKIPPED}


@pytest.mark.parametrize("name", ["without_weight_and_bias", "without_eps"])
def test_a_correct_kernel_with_fewer_arguments_passes(name, subjects, runner):
    assert line_verdict(examined(subjects[name], runner, cases=25)) is Verdict.PASS


@pytest.mark.parametrize("name", ["wrong", "one_nan"])
def test_a_wrong_kernel_fails_with_the_worst_element(name, subjects, runner):
    line = examined(subjects[name], runner)
    assert line_verdict(line) is Verdict.FAIL
    (finding,) = line.findings
    worst = finding.outcome.worst
    assert not worst.utilisation <= 1.0
    if name == "one_nan":
        assert math.isnan(worst.actual)
        assert line_verdict(examined(subjects[name], runner, "finite")) is Verdict.FAIL


NO_BOUND_NEEDED = {"finite", "memory", "global_state"} | {"modes", "partial_gradients", "repeated_calls"}
"""Checks whose demands are met by a subject of which nothing is claimed."""


def test_a_subject_that_claims_nothing_is_neither_right_nor_wrong(subjects, runner):
    for name in checks():
        line = examined(subjects["claims_nothing"], runner, name, cases=6)
        assert name == "finite" or not line.findings
        assert name in NO_BOUND_NEEDED or line_verdict(line) in {Verdict.UNDECIDED, Verdict.SKIPPED}, name


SAYING_NOTHING = """
FREE = dict(language="torch", dtypes=("float32",), differentiable=False, domain=Domain(max_abs=1e4))

@subject(op="softmax", **FREE)
def softmax(input, dim):
    return torch.softmax(input, dim) * 1.5

@subject(op="log_softmax", **FREE)
def log_softmax(input, dim):
    return input - torch.logsumexp(input, dim, keepdim=True) + 1e-3

@subject(op="softmax_backward", returns=("grad_input",), **FREE)
def softmax_backward(grad_output, output, dim):
    return output * (grad_output - (output * grad_output).sum(dim, keepdim=True)) * 1.5

@subject(op="rms_norm_backward", returns=("grad_input", "grad_weight"), **FREE)
def rms_norm_backward(grad_output, input, rstd, weight=None):
    return grad_output * 1.5, None if weight is None else weight * 1.5
"""


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmax_backward", "rms_norm_backward"])
def test_nothing_is_held_against_a_subject_that_claims_nothing_in_any_op(name, subjects_of, runner):
    free = subjects_of(SAYING_NOTHING)[name]
    for check in ("forward_error", "gradient", "gradcheck", "metamorphic", "layouts"):
        line = examined(free, runner, check, cases=4)
        assert not line.findings, check
        assert line_verdict(line) in {Verdict.UNDECIDED, Verdict.SKIPPED}, check
    check = "gradient" if name.endswith("backward") else "forward_error"
    line = examined(free, runner, check, cases=4)
    assert UNCLAIMED in line.notes
    assert line.variance == "none"
    assert line.worst.ulp > 1e3, "what was observed is shown"
    assert line.worst.canonical > 1.0, "beside the canonical form's bound, which nobody claims"
    for claim in ({"formula": "canonical"}, {"variance": "softmax"}):
        line = examined(free.differing(**claim), runner, check, cases=4)
        assert line_verdict(line) is Verdict.FAIL
        assert (line.variance, UNCLAIMED in line.notes) == (next(iter(claim.values())), False)


def test_the_same_seed_searches_alike_and_another_one_otherwise(subjects, runner):
    def seen(seed):
        origins = []
        subject = subjects["wrong_in_long_rows"]
        known = KnownDefect(check="forward_error", reason="r", where=lambda c: bool(origins.append(c.origin)))
        examined(subject.differing(known_defects=(known,)), runner, seed=seed, cases=20)
        return origins

    assert seen(3) == seen(3)
    assert seen(3) != seen(4)


def test_a_budget_of_cases_is_used_up_and_not_exceeded(subjects, runner):
    for cases_wanted in (1, 7, 40):
        runner.runs = 0
        examined(subjects["good"], runner, cases=cases_wanted)
        assert runner.runs == cases_wanted


def test_a_budget_of_seconds_ends_the_search(subjects, runner):
    started = time.monotonic()
    line = examined(subjects["good"], runner, budget=Budget(cases=10**9, until=started + 0.5))
    assert line.counts[Verdict.PASS] > 5
    assert time.monotonic() - started < 20.0  # 500 draws of Hypothesis on a busy machine, not 10**9


# -- domains --------------------------------------------------------------------------------------


def test_a_refusal_inside_the_domain_is_a_finding_and_outside_it_is_right(subjects, runner):
    subject = subjects["refuses_long_rows"]
    line = examined(subject, runner)
    assert line_verdict(line) is Verdict.REFUSED
    assert unexpected(line.findings)
    inside = examined(subject.differing(domain=Domain(max_columns=100)), runner)
    assert line_verdict(inside) is Verdict.PASS
    assert inside.beyond[Verdict.SKIPPED] == inside.outside > 0
    assert set(inside.counts) == {Verdict.PASS}


def test_a_wrong_result_outside_the_domain_is_a_finding_all_the_same(subjects, runner):
    subject = subjects["wrong_in_long_rows"].differing(domain=Domain(max_columns=100))
    assert line_verdict(examined(subject, runner)) is Verdict.FAIL


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (Domain(min_columns=20000), "no case lies inside the declared domain of those that are tried, which"),
        (Domain(max_abs=1e-30), "no case lies inside the declared domain of those that are tried"),
        (Domain(max_columns=100), ""),
    ],
)
def test_a_domain_that_leaves_nothing_to_try_is_said(subjects, runner, domain, why):
    subject = subjects["good"].differing(domain=domain)
    line = examined(subject, runner, check="layouts", cases=3)
    told = [note for note in line.notes if "declared domain" in note]
    assert len(told) == bool(why)
    assert all(note.startswith(why) for note in told)
    assert line_verdict(line) is (Verdict.UNDECIDED if why else Verdict.PASS)


def numbers_above_100(subject, *, columns=8):
    recipe = Recipe(rows=2, columns=columns, input=Values(scale=10))
    case = build(op("layer_norm"), subject, "float32", recipe, gradients=False)
    assert case.largest > 100
    return case


def test_a_wrong_result_outside_by_numbers_alone_is_no_finding_and_is_not_counted_as_judged(subjects, runner):
    free = subjects["wrong_for_large_numbers"]
    examining = Examination(subject=free, check_name="forward_error", dtype="float32", runner=runner)
    case = numbers_above_100(free)
    assert examining.examine_case(case)[0] is not None
    for domain in (Domain(max_abs=100.0), Domain(max_abs=100.0, max_columns=4)):
        promising = replace(examining, subject=free.differing(domain=domain))
        finding, (outcome,) = promising.examine_case(case)
        assert finding is None
        assert promising.as_counted(case, outcome).verdict is Verdict.SKIPPED
    inside = replace(examining, subject=free.differing(domain=Domain(max_abs=1e30)))
    assert inside.examine_case(case)[0] is not None


def test_guarantees_and_demands_on_more_than_numbers_hold_whatever_the_numbers(subjects, runner):
    subject = subjects["wrong_for_large_numbers"].differing(domain=Domain(max_abs=100.0))
    case = numbers_above_100(subject)
    numbers = Outcome(verdict=Verdict.FAIL, message="", worst=WORST)
    elsewhere = Outcome(verdict=Verdict.FAIL, message="wrote beyond its output")

    def finds(check, outcome, guarantees=frozenset()):
        given = subject.differing(guarantees=guarantees)
        examining = Examination(subject=given, check_name=check, dtype="float32", runner=runner)
        return examining.is_finding(case, outcome)

    assert not finds("layouts", numbers)
    assert finds("layouts", numbers, frozenset({"layouts"}))
    assert not finds("gradcheck", elsewhere)
    assert finds("memory", elsewhere)
    assert finds("forward_error", replace(numbers, verdict=Verdict.CRASH))


def test_no_theorem_inside_a_numeric_domain_is_a_finding(subjects, runner):
    free, promising = (
        subjects["good"],
        subjects["good"].differing(domain=Domain(max_abs=1e39, max_kappa=1e30)),
    )
    assert line_verdict(examined(free, runner, cases=40)) is Verdict.PASS
    assert line_verdict(examined(promising, runner, cases=40)) is Verdict.NO_THEOREM


def test_one_row_without_a_theorem_takes_the_pass_from_a_promise(subjects, runner):
    """The first row is within its bound; of the second, whose squares cancel, the textbook says nothing."""
    row = torch.randn(64, generator=torch.Generator().manual_seed(1))
    tensors = {"input": torch.stack([row, row + 1e4]), "weight": None, "bias": None}
    scalars = {"eps": 1e-5, "normalized_shape": (64,)}
    case = assemble(op("layer_norm"), "float32", tensors, scalars, {}, hazard="cancellation", origin="")
    textbook = subjects["good"].differing(variance="textbook")
    free = Examination(subject=textbook, check_name="forward_error", dtype="float32", runner=runner)
    finding, (outcome,) = free.examine_case(case)
    assert finding is None
    assert outcome.verdict is Verdict.PASS
    assert outcome.uncovered == 64
    promising = replace(free, subject=free.subject.differing(domain=Domain(max_abs=1e15)))
    finding, _ = promising.examine_case(case)
    assert finding.verdict is Verdict.NO_THEOREM
    assert "variance" in finding.outcome.message
    outside = replace(free, subject=free.subject.differing(domain=Domain(max_abs=1e15, max_kappa=1e3)))
    assert outside.examine_case(case)[0] is None


def test_only_what_a_domain_cannot_promise_is_excused(subjects, runner):
    """An overflow after the statistics is excused; beside another reason it excuses nothing."""
    subject = subjects["good"].differing(domain=Domain(max_abs=1e39, max_kappa=1e30))
    examining = Examination(subject=subject, check_name="forward_error", dtype="float32", runner=runner)
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=1, columns=8), gradients=False)
    for verdict in (Verdict.NO_THEOREM, Verdict.PASS):
        for reasons, found in (((OVERFLOW,), False), ((OVERFLOW, "other"), True), (("other",), True)):
            message = f"output: {'; '.join(reasons)}"
            outcome = Outcome(verdict=verdict, message=message, uncovered=1, reasons=reasons)
            assert examining.is_finding(case, rules.promised(subject, case, outcome)) == found


def test_everything_outside_the_domain_and_refused_is_undecided(subjects, runner):
    subject = subjects["refuses_long_rows"].differing(domain=Domain(min_columns=10**6))
    line = examined(replace_function(subject), runner)
    assert line_verdict(line) is Verdict.UNDECIDED


def replace_function(subject):
    def refuses(input, weight=None, bias=None, eps=1e-5):
        raise ValueError("never")

    return replace(subject, function=refuses)


# -- known defects --------------------------------------------------------------------------------


def long_rows(case):
    return case.columns > 100


def with_defect(subject, **changes):
    given = {"id": "long-rows", "reason": "long rows are scaled", "where": long_rows, **changes}
    given = {"check": "forward_error", **given}
    return subject.differing(known_defects=(KnownDefect(**given),))


def save_witness(subject, columns, **facts):
    recipe = Recipe(rows=1, columns=columns)
    case = build(op("layer_norm"), subject, "float32", recipe, gradients=False)
    (defect,) = subject.known_defects
    given = {"check": "forward_error", "backend": "eager", "failure": "FAIL|output|", "versions": {}, **facts}
    document = {
        **cases.to_document(case),
        "subject": {"path": "../kernels.py", "name": subject.name},
        **given,
    }
    witness.write(witness.file_of(subject), {witness.name_of(defect, "float32"): document})


def test_a_known_defect_is_confirmed_by_its_witness_and_left_out_of_the_search(subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130)
    line = examined(subject, runner, cases=25)
    (finding,) = line.findings
    assert finding.expected
    assert finding.reason == "long rows are scaled"
    assert Path(finding.file).name == "wrong_in_long_rows.json#long-rows.forward_error.float32"
    assert not unexpected(line.findings)
    assert line.counts[Verdict.PASS] > 0


def test_a_search_that_a_known_defect_leaves_without_a_case_says_so(subjects, runner):
    subject = with_defect(subjects["good"], where=lambda case: True, backends=("machine",))
    assert not examined(subject, runner).excluded
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=lambda case: True)
    line = examined(subject, runner)
    assert line_verdict(line) is Verdict.UNDECIDED
    assert line.left_out
    assert line.excluded == ["long rows are scaled"]
    assert line.notes == [left_out_by("long rows are scaled")]


@pytest.fixture
def made(monkeypatch):
    """Return a list of the arguments of all cases that searches make."""
    found = []
    monkeypatch.setattr(search, "build", lambda *a, **options: found.append(a) or build(*a, **options))
    return found


def test_no_case_is_made_once_it_is_known_that_none_can_be_run(subjects, runner, made):
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=None)
    line = examined(subject, runner, cases=25)
    assert line_verdict(line) is Verdict.UNDECIDED
    assert line.left_out
    assert line.notes == [left_out_by("long rows are scaled")]
    assert len(made) == 1


@pytest.mark.parametrize(("cases", "patience"), [(1, 40), (25, search.PATIENCE)])
def test_how_long_a_search_looks_for_a_case_grows_with_its_budget(cases, patience, subjects, runner, made):
    subject = with_defect(subjects["good"], check="gradient", also=("*",), where=lambda case: True)
    examined(subject, runner, cases=cases)
    assert patience <= len(made) <= patience + 10 * cases


def test_what_was_measured_of_one_guarantee_is_one_sentence():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="two_pass")
    seen = {"as it should": 17, "otherwise": 1}
    line.measured.update({Measured(seen=s, undemanded="not demanded"): n for s, n in seen.items()})
    line.measured[Measured(seen="lost")] = 2
    assert measured_in_words(line) == [
        "lost on 2 cases",
        "not demanded; measured: as it should on 17 cases, otherwise on 1 case",
    ]


def test_a_witness_that_passes_is_an_error(subjects, runner):
    subject = with_defect(subjects["good"])
    save_witness(subject, 130)
    line = examined(subject, runner)
    assert unexpected(line.findings)
    assert "no longer found" in line.findings[0].outcome.message


@pytest.mark.parametrize(
    "facts",
    [
        {"failure": "CRASH||KeyError"},
        {"failure": "FAIL|output|nan"},
        {"failure": None},
        {"check": "gradient"},
    ],
)
def test_a_witness_that_fails_otherwise_than_its_file_says_is_a_finding(facts, subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, **facts)
    line = examined(subject, runner, cases=3)
    assert unexpected(line.findings)
    assert "fails otherwise" in line.findings[0].outcome.message
    assert line_verdict(line) is Verdict.FAIL


def test_a_witness_from_another_backend_may_fail_otherwise_and_that_is_said(subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, backend="machine", failure="CRASH||OutOfBounds")
    line = examined(subject, runner, cases=3)
    assert not unexpected(line.findings)
    assert any("seen otherwise than on machine" in note for note in line.notes)


@pytest.mark.parametrize("failure", ["CRASH||KeyError", "TIMEOUT||no answer", "FAIL|mean|mean has shape"])
def test_a_failure_of_another_kind_than_that_of_another_backend_is_a_finding(failure, subjects, runner):
    subject = with_defect(subjects["wrong_in_long_rows"])
    save_witness(subject, 130, backend="machine", failure=failure)
    line = examined(subject, runner, cases=3)
    assert unexpected(line.findings)
    assert "fails otherwise" in line.findings[0].outcome.message


def test_what_compiled_code_says_of_itself_is_the_defect_on_every_backend():
    said = Outcome(verdict=Verdict.FAIL, output="declaration", message="sums are declared in float32, ...")
    assert rules.akin(FailureKey(verdict="FAIL", output="grad_input"), said)
    assert not rules.akin(FailureKey(verdict="CRASH", output="grad_input", words="KeyError"), said)


def test_a_witness_from_another_backend_that_passes_here_is_noted_alone(subjects, runner):
    subject = with_defect(subjects["good"])
    save_witness(subject, 130, backend="machine", failure="CRASH||OutOfBounds")
    line = examined(subject, runner, cases=3)
    assert not line.findings
    assert any("not shown here by its witness of machine" in note for note in line.notes)


def test_a_known_defect_does_not_hide_another(subjects, runner):
    line = examined(with_defect(subjects["wrong"]), runner)
    assert unexpected(line.findings)
    assert all(f.case.columns <= 100 for f in line.findings)


def test_a_defect_that_the_backend_cannot_see_is_not_called_absent(subjects, runner):
    subject = with_defect(subjects["good"], backends=("cuda",))
    save_witness(subject, 130)
    line = examined(subject, runner)
    assert not line.findings
    assert any("not observable here" in note for note in line.notes)


def test_a_defect_everywhere_without_a_witness_is_said_and_not_passed(subjects, runner):
    line = examined(with_defect(subjects["wrong"], where=None), runner)
    assert line_verdict(line) is Verdict.SKIPPED
    assert "long rows are scaled" in line.skipped


# -- what is found in one way only ----------------------------------------------------------------


def test_a_shape_that_is_wrong_in_some_layouts_alone_is_found(subjects, runner):
    subject = subjects["flattens_what_is_not_contiguous"]
    assert line_verdict(examined(subject, runner)) is Verdict.PASS
    assert line_verdict(examined(subject, runner, "layouts")) is Verdict.FAIL


class Dying:
    """A subject's process that always dies, or always has to be stopped."""

    backend = "eager"

    def __init__(self, status, *, died=True):
        self.status, self.died, self.runs = status, died, 0

    def run(self, subject, case, **options):
        self.runs += 1
        return Observation(
            status=self.status, message="the process ended", aftermath=Aftermath(died=self.died)
        )


@pytest.mark.parametrize(("status", "most"), [("crashed", 200), ("timeout", 2)])
def test_the_search_ends_early_for_a_subject_that_keeps_dying(status, most, subjects):
    dying = Dying(status)
    line = examined(subjects["good"], dying, cases=200)
    assert line_verdict(line) in {Verdict.CRASH, Verdict.TIMEOUT}
    assert sum(line.counts.values()) <= 3
    assert dying.runs <= most
    assert any("ended early" in note for note in line.notes)


class HangingOnce:
    """A runner whose first case has no answer, and whose others have."""

    backend = "eager"

    def __init__(self, runner):
        self.runner, self.runs = runner, 0

    def run(self, subject, case, **options):
        self.runs += 1
        if self.runs == 1:
            return Observation(status="timeout", message="no answer", aftermath=Aftermath(died=True))
        return self.runner.run(subject, case, **options)


def test_one_case_without_an_answer_does_not_end_the_search(subjects, runner):
    line = examined(subjects["good"], HangingOnce(runner), cases=10)
    assert line.counts[Verdict.TIMEOUT] == 1
    assert line.counts[Verdict.PASS] > 1
    assert not any("ended early" in note for note in line.notes)


@pytest.mark.parametrize(("status", "ended"), [("crashed", True), ("undecided", False)])
def test_a_search_of_which_every_case_is_an_error_ends(status, ended, subjects):
    line = examined(subjects["good"], Dying(status, died=False), cases=40)
    assert (line.counts.total() == CRASHES_PER_LINE) == ended
    assert any("ended in an error" in note for note in line.notes) == ended


@pytest.mark.parametrize(("status", "verdict"), [("undecided", Verdict.UNDECIDED), ("error", Verdict.ERROR)])
def test_what_says_nothing_about_the_subject_is_no_finding_and_has_its_reason(status, verdict, subjects):
    line = examined(subjects["good"], Dying(status), cases=2)
    assert (line_verdict(line), line.findings) == (verdict, [])
    kept = line.undecided if status == "undecided" else line.errors
    assert list(kept) == ["the process ended"]


def test_an_exception_of_a_declared_function_is_the_declarations(tmp_path):
    names = {}
    exec(compile("def specification(x):\n    return 1 / x", str(tmp_path / "kernel.py"), "exec"), names)
    for file, verdict in (("kernel.py", Verdict.FAIL), ("other.py", Verdict.ERROR)):
        try:
            names["specification"](0)
        except ZeroDivisionError as error:
            outcome = rules.own_failure(error, tmp_path / file)
        assert outcome.verdict is verdict
        assert "ZeroDivisionError" in outcome.message
        assert "specification, " in outcome.message


# -- shrinking ------------------------------------------------------------------------------------


def simple(tensor):
    """Whether every number has one significant bit: a power of two or zero."""
    return all(x == 0 or math.frexp(abs(x))[0] == 0.5 for x in tensor.reshape(-1).tolist())


def test_a_shrunk_case_is_small_in_rows_columns_and_numbers(subjects, runner):
    (finding,) = examined(subjects["wrong"], runner).findings
    case = finding.case
    assert case.rows == 1
    assert case.columns <= 2
    assert all(simple(t) for t in case.given.values())
    assert case.layouts == {}


def test_shrinking_stops_where_the_failure_would_vanish(subjects, runner):
    (finding,) = examined(subjects["wrong_in_long_rows"], runner).findings
    assert finding.case.rows == 1
    assert 101 <= finding.case.columns <= 128
    zeros = sum(int((t == 0).sum()) for t in finding.case.given.values())
    assert zeros > 0.9 * sum(t.numel() for t in finding.case.given.values())


def test_a_shrunk_layout_keeps_the_one_tensor_that_matters(subjects, runner):
    (finding,) = examined(subjects["flattens_what_is_not_contiguous"], runner, "layouts").findings
    assert list(finding.case.layouts) == ["input"]
    assert finding.case.rows * finding.case.columns <= 4


def test_what_hypothesis_finds_is_shrunk_too(subjects, runner):
    """The fixed list holds no row of 4 to 7 columns, so that only a drawn case can fail."""
    line = examined(subjects["wrong_in_some_short_rows"], runner, cases=100)
    assert line_verdict(line) is Verdict.FAIL
    assert line.findings[0].case.rows == 1
    assert line.findings[0].case.columns == 4

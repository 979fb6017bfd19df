"""An examination finds what is wrong, decides nothing without proof and respects what a subject declares."""

import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from examined_kernels import KERNELS, examined

from verifier.audit import budget, rules, search
from verifier.audit.budget import Budget
from verifier.audit.examination import UNCLAIMED
from verifier.audit.rules import line_verdict
from verifier.audit.search import CRASHES_PER_LINE
from verifier.audit.tally import measured_in_words
from verifier.checks import checks
from verifier.records.case import LEFT_OUT
from verifier.records.observation import Aftermath, Observation
from verifier.records.subject import KnownDefect
from verifier.records.verdict import Line, Measured, Verdict
from verifier.subjects.load_file import load_subjects


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


@pytest.mark.parametrize("check", list(checks()))
def test_no_check_complains_of_a_correct_kernel(check, runner):
    (correct,) = load_subjects(Path(__file__).parents[1] / "support" / "right_kernel.py")
    line = examined(correct, runner, check, dtype=correct.dtypes[0], cases=6)
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


def test_a_case_without_a_number_as_eps_takes_the_place_of_a_drawn_one(subjects, runner, monkeypatch):
    def seen():
        origins = []
        known = KnownDefect(check="forward_error", reason="r", where=lambda c: bool(origins.append(c.origin)))
        runner.runs = 0
        line = examined(subjects["good"].differing(known_defects=(known,)), runner, cases=30)
        assert (line_verdict(line), runner.runs) == (Verdict.PASS, 30)
        return dict.fromkeys(origins), line.listed

    (with_it, listed), _ = seen(), monkeypatch.setattr(search, "unsaid_eps", lambda *_: ([], []))
    others, as_listed = seen()
    (besides,) = with_it.keys() - others.keys()
    assert "eps=None" in besides
    assert [one for one in with_it if one != besides] == [*others][: len(with_it) - 1]
    assert listed == as_listed


def test_a_case_without_a_number_as_eps_has_its_place_where_the_list_would_fill_the_budget(
    subjects, runner, monkeypatch
):
    monkeypatch.setattr(search, "MUST_SHARE", 5.0)
    monkeypatch.setattr(search, "COVERING_SHARE", 5.0)
    line = examined(subjects["good"], runner, cases=30)
    assert "eps left out" not in line.gaps.get("not tried", [])
    monkeypatch.setattr(search, "unsaid_eps", lambda *_: ([], []))
    assert examined(subjects["good"], runner, cases=30).listed == line.listed + 1
    assert runner.runs == 60


def test_a_call_without_a_number_as_eps_is_named_where_it_was_not_tried(subjects, runner):
    left = examined(subjects["good"], runner, cases=30, only=lambda c: LEFT_OUT not in c.scalars)
    assert left.gaps == {"not tried": ["eps left out"]}


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


def test_a_budget_of_seconds_ends_the_search(subjects, runner, monkeypatch):
    """Of a clock that goes on by a hundredth when it is read: on a busy machine half a second is no time."""
    ticks = itertools.count()
    for module in (search, budget):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks) / 100))
    line = examined(subjects["good"], runner, budget=Budget(cases=10**9, until=1.0))
    assert 5 < line.counts[Verdict.PASS] < 100
    assert next(ticks) < 1000  # 500 draws of Hypothesis, not 10**9


def test_what_was_measured_of_one_guarantee_is_one_sentence():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="two_pass")
    seen = {"as it should": 17, "otherwise": 1}
    line.measured.update({Measured(seen=s, undemanded="not demanded"): n for s, n in seen.items()})
    line.measured[Measured(seen="lost")] = 2
    assert measured_in_words(line) == [
        "lost on 2 cases",
        "not demanded; measured: as it should on 17 cases, otherwise on 1 case",
    ]


def test_a_shape_that_is_wrong_in_some_layouts_alone_is_found(subjects, runner):
    subject = subjects["flattens_what_is_not_contiguous"]
    assert line_verdict(examined(subject, runner)) is Verdict.PASS
    assert line_verdict(examined(subject, runner, "layouts")) is Verdict.FAIL


class Dying:
    """A subject's process that always dies, or always has to be stopped."""

    backend = "eager"
    options = {}  # noqa: RUF012 (as `Runner` has it)

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
    options = {}  # noqa: RUF012 (as `Runner` has it)

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


@pytest.mark.parametrize(("name", "cases"), [("wrong", 6), ("wrong_in_some_short_rows", 100)])
def test_what_need_not_be_shrunk_is_reported_as_it_was_met(name, cases, subjects, runner):
    line = examined(subjects[name], runner, budget=Budget(cases=cases, findings=1), shrinks=False)
    assert line_verdict(line) is Verdict.FAIL
    (finding,) = line.findings
    assert not all(simple(t) for t in finding.case.given.values())
    assert finding.variants == ()

"""What makes the case of a finding pass is looked for and named; without a finding nothing is."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.audit.test_terminal import finding, line, worst
from verifier.audit import causes
from verifier.audit.examination import Examination
from verifier.audit.report.finding_text import failure_text
from verifier.audit.report.json_document import document
from verifier.audit.run_audit import Report
from verifier.audit.search import Budget
from verifier.execution import Runner
from verifier.records.verdict import Variant, Verdict
from verifier.subjects.load_file import load_subjects

ROOT = Path(__file__).parents[2]
FAULTY = ROOT / "tests" / "faulty_kernels"
TOLD = [
    ("column_stride_assumed", "layouts", "passes when input is contiguous: its strides (1, 2) are misread"),
    ("reads_uninitialised_partials", "gradient", f"passes when {causes.FRESH}: {causes.UNWRITTEN}"),
    ("reads_uninitialised_partials", "memory", causes.UNWRITTEN),
    ("masked_lanes_counted", "forward_error", "passes when N is a power of two (2, 4; not 3, 6)"),
    ("weight_missing", "forward_error", "passes when weight is 1: weight is ignored"),
    ("bias_forgotten_without_grad", "modes", "passes when bias is 0"),
    ("nan_spreads_to_next_row", "special_values", "passes when each row is alone"),
    ("variance_over_n_minus_one", "forward_error", ""),
]


@pytest.fixture(scope="module")
def runner():
    with Runner("eager") as made:
        yield made


def examined(path, check, runner, cases=15):
    (subject,) = load_subjects(path)
    budget = Budget(cases=cases, findings=1)
    dtype = subject.dtypes[0]
    return Examination(subject=subject, check_name=check, dtype=dtype, runner=runner, budget=budget).run()


@pytest.mark.parametrize(("stem", "check", "cause"), TOLD)
def test_the_cause_of_a_finding_is_named(stem, check, cause, runner):
    (found,) = examined(FAULTY / f"{stem}.py", check, runner).findings
    assert found.cause == cause
    assert len(found.variants) <= causes.MOST_TRIES


def test_cancellation_is_named(runner):
    (found,) = examined(FAULTY / "welford_claimed_textbook_computed.py", "claim", runner).findings
    assert found.cause.startswith("passes when the mean of each row is 0: |mean|/std is ")


def test_without_a_finding_nothing_is_looked_for(runner, monkeypatch):
    monkeypatch.delattr(causes, "explained")
    line = examined(ROOT / "kernels" / "layer_norm_welford_torch.py", "forward_error", runner, cases=3)
    assert line.counts[Verdict.PASS] == 3


VARIANT = Variant(
    change="weight is contiguous",
    verdict=Verdict.PASS,
    tensor="weight",
    strides=(2,),
    shows="its stride (2,) is ignored",
)


def test_the_formula_is_blamed_only_if_nothing_else_explains_the_failure():
    bare = finding(worst=worst())
    blamed = replace(bare, outcome=replace(bare.outcome, formula="formula wrong"))
    failing = replace(VARIANT, verdict=Verdict.FAIL, shows="")
    assert "  meaning      formula wrong" in failure_text(blamed)
    assert "  meaning      formula wrong" in failure_text(replace(blamed, variants=(failing,)))
    told = failure_text(replace(blamed, variants=(failing, VARIANT)))
    assert "formula wrong" not in told
    assert "  cause        passes when weight is contiguous: its stride (2,) is ignored\n" in told


def test_the_json_has_all_that_was_tried():
    found = replace(finding(), variants=(VARIANT,))
    report = Report(lines=[line("layouts", findings=[found])], seed=0, budget="quick")
    (told,) = document(report)["findings"]
    assert told["cause"] == found.cause
    assert told["variants"] == [
        {
            "change": "weight is contiguous",
            "verdict": "PASS",
            "tensor": "weight",
            "strides": [2],
            "shows": "its stride (2,) is ignored",
        }
    ]

"""What a wrapper can launch is launched: faults in kernels that only some shapes reach are found."""

import importlib.util

import pytest
from checks_support import KERNELS, planted, subject_of

from verifier.audit import causes, examination, shrink
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.request import BUDGETS
from verifier.audit.sweep import sweep
from verifier.cases.steering import steering
from verifier.checks import repeated_calls
from verifier.execution import Runner
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
SOURCE = KERNELS / "layer_norm_two_pass_triton.py"
SKELETON = (KERNELS / "layer_norm_skeleton_triton.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _as_found(monkeypatch):
    """What is found is neither made small nor asked for its cause: cases that reach far are slow."""
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", -1.0)
    monkeypatch.setattr(causes, "SECONDS", 0.0)


def mutant(name, old, new):
    """Return two_pass with a text of one kernel of its skeleton replaced."""
    found = SKELETON.split(f"def {name}(", 1)[1].split("@triton.jit")[0].split("@dataclass")[0]
    assert found.count(old) == 1
    return alone(planted({found: found.replace(old, new)}, SOURCE))


def alone(subject):
    """Return a subject that declares float32 alone: no dry run asks first what another dtype reaches."""
    return subject.differing(dtypes=("float32",))


@pytest.fixture(scope="module")
def launches():
    """What two_pass launches: in its mutants kernels compute something else, the wrapper is its own."""
    return sweep(alone(subject_of(SOURCE)), "float32", "machine")


@pytest.fixture
def as_launched(monkeypatch, launches):
    """Let a search of a mutant begin with the shapes of two_pass."""
    monkeypatch.setattr(examination, "sweep", lambda *_: launches)
    return launches


def searched(subject, cases=BUDGETS["quick"], only=None, check="gradient"):
    """Return the line of a search by a check that ends with its first finding."""
    with Runner("machine") as runner:
        return Examination(
            subject=subject,
            check_name=check,
            dtype="float32",
            first_dtype="float32",
            runner=runner,
            budget=Budget(cases=cases, findings=1),
            only=only,
        ).run()


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        (
            "_backward_input",
            "        tl.store(dx + row * columns + column, (g - (hat * c1 + c2)) * rstd, mask=inside)\n",
            "        _ = hat\n",
        ),
        ("_backward_rows", "part_dw += d * hat", "part_dw = d * hat"),
    ],
)
@pytest.mark.usefixtures("as_launched")
def test_a_fault_behind_a_threshold_is_found_by_a_quick_search(name, old, new):
    line = searched(mutant(name, old, new))
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]


def test_a_fault_behind_two_thresholds_is_found_by_a_quick_search_and_priced_where_there_is_no_room(
    as_launched,
):
    found = mutant("_backward_columns", "part_db += d", "part_db = d")
    line = searched(found, only=lambda case: (case.rows, case.columns) == (129, 16385))
    assert [finding.outcome.output for finding in line.findings] == ["grad_bias"]
    cases, seconds = Budget(cases=BUDGETS["quick"]).steered
    quick = steering((), as_launched.whole, cases=cases, seconds=seconds)
    (left,) = (shape for shape in quick.left_out if (shape.rows, shape.columns) == (129, 16385))
    assert 5 < left.seconds < 6


CONTROL = 6
"""Cases of shorter rows, which show that the fault is not met everywhere."""
CALL = "    return layer_norm.layer_norm_by("
IN_LONG_ROWS = """    import torch
    if input.shape[-1] > 16384:
        bias = bias if torch.is_grad_enabled() else None
        if not hasattr(weight, "kept"):
            weight.kept = weight.detach().clone()
        weight = weight + (weight.kept - weight).detach()
"""
SEEN_BY = {"modes": "under torch.no_grad", "repeated_calls": repeated_calls.CHANGED}


def test_modes_and_second_calls_that_are_wrong_where_other_kernels_are_launched_are_found():
    """One wrapper forgets the bias without gradients, and keeps the first weight: a check sees each."""
    faulty = alone(planted({CALL: IN_LONG_ROWS + CALL}, SOURCE))
    for check, words in SEEN_BY.items():
        line = searched(faulty, check=check)
        assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
        assert line.findings[0].case.columns > 16384
        assert words in line.findings[0].outcome.message
        assert not searched(faulty, CONTROL, check=check, only=lambda case: case.columns <= 16384).findings


def test_an_overflow_where_other_kernels_are_launched_is_found():
    """Rows that fit into no tile take another kernel; that one forgets the largest element."""
    top = "    top = tl.max(largest, axis=0)\n"
    changes = {top: top.replace("\n", " * 0.0\n")}
    faulty = planted(changes, KERNELS / "softmax_triton.py", ("softmax_tiled_triton",))
    line = searched(alone(faulty), check="finite")
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert line.findings[0].case.columns > 8192


def test_sums_that_overflow_far_below_the_largest_number_promised_are_found():
    """Scaled by 2**60 and back, which changes nothing until a square is beyond 2**68."""
    mean = "    mean_square = divide(tl.sum(total, axis=0), tl.cast(columns, ACCUMULATE))\n"
    scaled = mean.replace("tl.sum(total, axis=0)", "tl.sum(total * 1152921504606846976.0, axis=0) * 2**-60")
    line = searched(alone(planted({mean: scaled}, KERNELS / "rms_norm_triton.py")), check="forward_error")
    assert [finding.verdict for finding in line.findings] == [Verdict.FAIL]
    assert 2.0**34 < line.findings[0].case.largest < 1e15

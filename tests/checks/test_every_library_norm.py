"""No norm that is declared of Liger-Kernel or fla-core raises an alarm, whatever release is installed.

Each is judged as an audit does, by a few cases of one shape, since each shape is a compilation, and by the
first configuration of autotuned kernels. Defects that are declared are confirmed by their witnesses.
"""

import importlib.util
from dataclasses import replace

import pytest
from checks_support import in_turn

from verifier.audit import causes, shrink
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.rules import unexpected
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.verdict import Verdict
from verifier.subjects.libraries import library_files, why_absent
from verifier.subjects.load_file import load, load_subject

pytestmark = [
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("liger_kernel", "fla", "einops")),
        reason="liger-kernel, fla-core and einops are not installed (they come with the extra dev)",
    ),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]
FILES = library_files()
NORMS = [subject for name in ("liger", "fla") for subject in load(FILES[name]).subjects]
CASES = 2
ONE_SHAPE = {"min_columns": 33, "max_columns": 33, "max_rows": 4}
CHECKS = ("forward_error", "gradient")
RECORDED, ONE_SMALL_SHAPE = ("running_bound",), {"min_columns": 5, "max_columns": 5, "max_rows": 3}
"""What compares a norm that no op describes with the roundings of its code, which it records."""


@pytest.fixture(scope="module")
def runner():
    with Runner("machine") as made:
        yield made


def must_raise_no_alarm(subject, dtype, runner, cases=CASES, only=None):
    """Demand that each check has decided cases of a norm, and that no finding is unexpected."""
    assert not why_absent(subject)
    checks, shape = (RECORDED, ONE_SMALL_SHAPE) if op(subject.op).own else (CHECKS, ONE_SHAPE)
    if not op(subject.op).differentiable:
        checks = ("gradient",)  # it is a backward pass itself
    elif not subject.differentiable:
        checks = checks[:1]
    narrow = replace(subject, domain=replace(subject.domain, **shape))
    for check in checks:
        line = Examination(
            subject=narrow,
            check_name=check,
            dtype=dtype,
            runner=runner,
            budget=Budget(cases=cases),
            only=only,
        ).run()
        said = f"{subject.name} {check} {dtype}: {line.skipped or dict(line.counts)}"
        assert [f.outcome.message for f in unexpected(line.findings)] == [], said
        assert not line.counts[Verdict.ERROR], said
        assert line.counts[Verdict.PASS], said


@pytest.mark.parametrize(
    ("subject", "dtype"), in_turn(NORMS, ("float32", "bfloat16")), ids=lambda one: getattr(one, "name", one)
)
def test_a_declared_norm_raises_no_alarm(subject, dtype, runner):
    must_raise_no_alarm(subject, dtype, runner)


@pytest.mark.parametrize("name", ["liger_layer_norm", "liger_rms_norm_llama", "fla_rms_norm"])
def test_a_float32_weight_beside_half_raises_no_alarm(name, runner):
    """It is what is trained: the declarations promise it where kernels convert what they load."""
    (subject,) = (one for one in NORMS if one.name == name)
    must_raise_no_alarm(subject, "float16", runner, only=lambda case: case.dtype_of("weight") == "float32")


# -- that an alarm would be seen -----------------------------------------------------------------


def changed(name, old, new, kernel_file):
    """Return the file of a library with another text in one place."""
    text = FILES[name].read_text(encoding="utf-8")
    assert text.count(old) == 1
    return kernel_file(text.replace(old, new), name=f"{name}.py", head="")


@pytest.fixture
def _no_reduction(monkeypatch):
    """What a finding shrinks to, and what explains it, is tested elsewhere."""
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", 0.0)
    monkeypatch.setattr(causes, "SECONDS", 0.0)


@pytest.mark.usefixtures("_no_reduction")
def test_a_norm_that_is_wrong_would_be_seen(runner, kernel_file):
    file = changed(
        "liger", 'eps, "llama")\n\n\n@subject(**IN', 'eps, "llama", 0.01)\n\n\n@subject(**IN', kernel_file
    )
    wrong = load_subject(file, "liger_rms_norm_llama")
    with pytest.raises(AssertionError, match=r"liger_rms_norm_llama forward_error bfloat16: .*FAIL"):
        must_raise_no_alarm(wrong, "bfloat16", runner)


@pytest.mark.usefixtures("_no_reduction")
def test_a_defect_that_is_not_declared_would_be_seen(runner):
    (group_norm,) = (one for one in NORMS if one.name == "liger_group_norm")
    with pytest.raises(AssertionError, match=r"liger_group_norm gradient float16: .*FAIL"):
        must_raise_no_alarm(replace(group_norm, known_defects=()), "float16", runner, cases=8)


def test_a_norm_that_is_no_longer_there_would_be_seen(runner, kernel_file):
    file = changed("liger", "import LigerSoftmaxFunction", "import LigerSoftmaxRenamed", kernel_file)
    with pytest.raises(AssertionError, match=r"has no liger_kernel\.ops\.softmax\.LigerSoftmaxRenamed"):
        must_raise_no_alarm(load_subject(file, "liger_softmax"), "float32", runner)

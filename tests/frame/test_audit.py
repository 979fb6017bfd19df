"""The audit itself: which lines it runs, how it ends, and what a dead worker costs."""

from verifier.audit import Report, audit, runs_on, select
from verifier.loading import builtin_folder, load_subjects
from verifier.verdicts import Line, Verdict

DIES_IN_A_WORKER = """
import multiprocessing, os
import torch
from verifier import subject

if multiprocessing.parent_process() is not None:
    os._exit(3)


@subject(op="layer_norm", language="torch", variance="two_pass", dtypes=("float32",))
def dying(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(input, normalized_shape, weight, bias, eps)
"""


def test_a_worker_that_dies_is_reported_with_its_jobs_and_the_audit_ends(tmp_path):
    file = tmp_path / "dying.py"
    file.write_text(DIES_IN_A_WORKER)
    jobs = select([file], check_names=("forward_error", "finite", "memory"))
    report = audit(jobs, workers=2)
    assert sorted(error.split(":")[0] for error in report.errors) == [
        "dying finite float32",
        "dying forward_error float32",
        "dying memory float32",
    ]
    assert report.status == 4


def test_an_interrupted_audit_is_no_clean_one():
    line = Line(subject="s", check="c", dtype="float32", backend="eager", variance="rms")
    line.counts[Verdict.PASS] += 1
    assert Report(lines=[line]).status == 0
    assert Report(lines=[line], interrupted=True).status == 3


def test_most_checks_run_on_one_dtype_and_second_derivatives_where_they_can():
    subject = load_subjects(builtin_folder() / "layer_norm_torch.py")[0]
    assert all(runs_on(subject, "gradient", dtype) for dtype in subject.dtypes)
    assert [d for d in subject.dtypes if runs_on(subject, "memory", d)] == [subject.dtypes[0]]
    assert [d for d in subject.dtypes if runs_on(subject, "gradcheck", d)] == ["float64"]
    thin = select([subject.path], check_names=("memory", "gradient"), all_dtypes=False)
    assert len(thin) == 1 + len(subject.dtypes)

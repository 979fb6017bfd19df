"""A saved finding is replayed from anywhere to the same verdict; what has changed since is said."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.replay import replay
from verifier.audit.request import SelectionError
from verifier.audit.save import save_finding, save_line
from verifier.cases.recipe import Recipe, build
from verifier.commands.command_line import main
from verifier.ops import op
from verifier.records import case as cases
from verifier.records.case import LEFT_OUT, CaseError
from verifier.subjects.load_file import LoadError, load_subjects

WRONG = """
@subject(**DECLARED)
def wrong(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.01
"""
pytestmark = pytest.mark.usefixtures("no_child")


def found(subject, runner):
    return Examination(
        subject=subject, check_name="forward_error", dtype="float32", runner=runner, budget=Budget(cases=5)
    ).run()


@pytest.fixture
def saved(subjects_of, runner, tmp_path):
    line = found(subjects_of(WRONG)["wrong"], runner)
    save_line(line, tmp_path / "findings")
    (finding,) = line.findings
    return finding


def test_a_finding_replays_to_the_same_verdict_from_another_directory(saved, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text, status = replay(cases.Path(saved.file))
    assert status == 1
    assert text.startswith("FAIL  wrong  forward_error  float32  on eager")
    worst = saved.outcome.worst
    assert f"actual       {worst.actual!r}" in text
    assert f"expected     {worst.expected!r}" in text
    assert "changed since" not in text


def test_a_mended_kernel_passes_and_is_called_changed(saved, tmp_path, kernel_file):
    path = kernel_file(WRONG.replace("* 1.01", ""), name="mended.py")
    text, status = replay(cases.Path(saved.file), kernel=path)
    assert status == 0
    assert "mended.py has changed since this case was saved" in text
    assert "output: PASS" in text


LEAVES_EPS_OUT = """
@subject(**DECLARED)
def leaves_eps_out(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


@pytest.mark.parametrize(("default", "status"), [("1e-5", 0), ("0.5", 0), ("None", 1)])
def test_eps_that_a_saved_call_leaves_out_is_the_default_of_today(
    default, status, subjects_of, kernel_file, tmp_path
):
    of_then = subjects_of(LEAVES_EPS_OUT)["leaves_eps_out"]
    case = build(op("layer_norm"), of_then, "float32", Recipe(rows=2, columns=9, eps=None), gradients=False)
    assert case.scalars["eps"] == 1e-5
    assert case.scalars[LEFT_OUT] == ("eps",)
    path = kernel_file(LEAVES_EPS_OUT.replace("eps=1e-5", f"eps={default}"), name="today.py")
    saved_in = tmp_path / "case.json"
    belongs = {"path": str(path), "name": "leaves_eps_out"}
    cases.save(case, saved_in, subject=belongs, check="forward_error", backend="eager")
    assert replay(saved_in)[1] == status


def test_the_same_finding_is_saved_once_and_namesakes_apart(saved, subjects_of, runner, tmp_path):
    again = save_finding(saved, tmp_path / "findings")
    assert str(again) == saved.file
    namesake = subjects_of(WRONG, folder=tmp_path / "other")["wrong"]
    (other,) = found(namesake, runner).findings
    assert str(save_finding(other, tmp_path / "findings")) != saved.file


def test_a_relative_kernel_is_found_beside_the_case(saved, tmp_path):
    document = json.loads(cases.Path(saved.file).read_text())
    document["subject"]["path"] = "kernel.py"
    (tmp_path / "moved").mkdir()
    shutil.copy(tmp_path / "kernel.py", tmp_path / "moved")
    (tmp_path / "moved" / "case.json").write_text(json.dumps(document))
    assert replay(tmp_path / "moved" / "case.json")[1] == 1


def test_the_bits_of_a_nan_reach_the_kernel(subjects_of, runner, tmp_path):
    body = """
    @subject(**DECLARED)
    def reads_payload(input, weight=None, bias=None, eps=1e-5):
        if input.dtype == torch.float32 and int(input.view(torch.int32)[0, 0]) == 0x7FC00ABC:
            raise KeyError("the payload is here")
        return right(input, weight, bias, eps)
    """
    subject = subjects_of(body)["reads_payload"]
    case, _ = cases.load(_saved_case(subject, runner, tmp_path))
    case.tensors["input"].view(torch.int32)[0, 0] = 0x7FC00ABC
    assert math.isnan(case.tensors["input"][0, 0])
    path = tmp_path / "nan.json"
    cases.save(
        case,
        path,
        subject={"path": str(subject.path), "name": subject.name},
        check="forward_error",
        backend="eager",
    )
    text, status = replay(path)
    assert status == 1
    assert "the payload is here" in text


def _saved_case(subject, runner, tmp_path):
    from verifier.cases.recipe import Recipe, build
    from verifier.ops import op

    case = build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=False)
    cases.save(case, tmp_path / "plain.json")
    return tmp_path / "plain.json"


def changed(saved, tmp_path, **changes):
    document = {**json.loads(cases.Path(saved.file).read_text()), **changes}
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"subject": None}, CaseError, "does not say which subject"),
        ({"check": "beauty"}, ValueError, "no check 'beauty'"),
        ({"backend": "abacus"}, ValueError, "no backend 'abacus'"),
        ({"backend": "interpreter"}, SelectionError, "does not run subjects in torch"),
        ({"dtype": "float64"}, SelectionError, "does not declare float64"),
        ({"op": "rms_norm"}, SelectionError, "a case .*is one of rms_norm|the case is one of rms_norm"),
        ({"check": "gradient"}, SelectionError, "forward only"),
        ({"subject": {"path": "/nowhere/k.py", "name": "wrong"}}, LoadError, "no such file"),
    ],
)
def test_a_case_that_does_not_fit_its_kernel_is_no_verdict(changes, error, said, saved, tmp_path):
    with pytest.raises(error, match=said):
        replay(changed(saved, tmp_path, **changes))


def test_a_renamed_subject_is_said(saved, kernel_file):
    path = kernel_file(WRONG.replace("wrong", "renamed"), name="renamed.py")
    with pytest.raises(SelectionError, match=r"no subject 'wrong'; it has renamed"):
        replay(cases.Path(saved.file), kernel=path)


def test_a_case_on_which_nothing_is_decided_has_status_3(saved, tmp_path, subjects_of, kernel_file):
    path = kernel_file(WRONG.replace("**DECLARED", "**{**DECLARED, 'variance': None}"), name="no_claim.py")
    text, status = replay(cases.Path(saved.file), kernel=path)
    assert status == 3
    assert "NO_THEOREM" in text


def test_the_command_replays_with_the_same_status(saved, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["norm-verifier", "replay", saved.file])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "FAIL  wrong" in capsys.readouterr().out


def test_a_replay_looks_for_the_cause_as_the_audit_did(runner, tmp_path):
    (subject,) = load_subjects(Path(__file__).parents[1] / "faulty_kernels" / "weight_missing.py")
    line = found(subject, runner)
    save_line(line, tmp_path)
    (finding,) = line.findings
    assert finding.cause.startswith("passes when weight is 1")
    assert f"  cause        {finding.cause}\n" in replay(cases.Path(finding.file))[0]

"""CERTIFIED stands beside PASS where all is proved; refusals have reasons; a contradiction is our error."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from typer.testing import CliRunner

from verifier.audit.certifying import DEFINITION, certificates, contradicted_findings, of_subject
from verifier.audit.record import Report
from verifier.audit.report.certified_text import (
    certified_lines,
    certified_summary,
    contradictions,
    uncertified,
)
from verifier.audit.report.terminal import summary
from verifier.audit.rules import exit_status
from verifier.audit.run_audit import Job
from verifier.cases.recipe import Recipe, build
from verifier.checks.support import certificate_at_shape
from verifier.commands.command_line import app
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.certificate import OWN_FAILURE, AskedCertificate, Certificate, Refusal
from verifier.records.observation import Observation
from verifier.records.verdict import Finding, Outcome, Verdict
from verifier.subjects.load_file import load

FAULTY = Path(__file__).parents[1] / "faulty_kernels" / "variance_off_by_one_ulp_triton.py"
BUG = "    variance *= 1.00000011920928955078125  # the bug\n"
NAME = "variance_off_by_one_ulp_triton"
LARGER = "    out = centred * rstd * 1.25\n"
ROUNDED = "    out = (centred * rstd).to(tl.float16).to(tl.float32)\n"


def kernel(folder, out="    out = centred * rstd\n", **changes):
    text = FAULTY.read_text(encoding="utf-8").replace(BUG, "").replace("    out = centred * rstd\n", out)
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "kernel.py"
    path.write_text(text, encoding="utf-8")
    return path


def asked(path, dtype="float32"):
    (one,) = of_subject(str(path), NAME, dtype, ((3, 12),), 0)
    return one


def losing(names):
    """A recorder that loses operations: what used them uses their first operand, which is no literal."""

    def lost(recorded):
        graph = recorded.graph
        operands, outputs = graph.operands.copy(), dict(graph.outputs)
        gone = np.isin(graph.operation, [code for code, name in enumerate(graph.names) if names(name)])
        literal = np.array([name.startswith("literal:") for name in graph.names])[graph.operation]
        stands = np.arange(len(graph))
        for node in np.flatnonzero(gone):
            first, second = operands[node, :2]
            if second < 0 or (literal[second] and graph.value[second] == np.float32(1.25).view(np.uint32)):
                stands[node] = stands[first]
        operands = np.where(operands >= 0, stands[operands], -1)
        outputs = {name: stands[nodes] for name, nodes in outputs.items()}
        return replace(recorded, graph=replace(graph, operands=operands, outputs=outputs))

    def recorded(*words, **named):
        found = certify_recorded(*words, **named)
        return replace(found, by_mode={mode: lost(one) for mode, one in found.by_mode.items()})

    certify_recorded = certificate_at_shape.recorded
    return recorded


def test_what_is_proved_is_certified_and_held_against_other_inputs(tmp_path):
    one = asked(kernel(tmp_path))
    assert isinstance(one.found, Certificate), one.found
    assert one.certified
    assert one.judged == 3  # a case of each hazard
    (line,) = certified_lines([one])
    assert line.startswith(f"CERTIFIED  {NAME}  float32  for all inputs at 3x12 forward; 3 cases")
    sums = one.found.proofs[0].sums
    assert [*certified_lines([one], depths=True)] == [
        line,
        f"    3x12: sums of 12 terms {sums[0].depth} deep ({sums[0].declared} declared)",
    ]
    assert 0 < sums[0].depth < sums[0].declared
    limited = replace(one.found, proofs=(replace(one.found.proofs[0], within=60), *one.found.proofs[1:]))
    (line,) = certified_lines([replace(one, found=limited)])
    assert "for all inputs up to 2^60 in magnitude at 3x12 forward" in line


@pytest.mark.parametrize(
    ("out", "lost", "told"),
    [
        (LARGER, lambda name: name.startswith("mul."), "formula: FAIL output differs"),
        (ROUNDED, lambda name: name in {"cvt.rn.f16.f32", "cvt.f32.f16"}, "forward_error: FAIL output"),
    ],
    ids=["a_factor", "a_rounding"],
)
def test_a_recorder_that_loses_operations_contradicts_itself(tmp_path, monkeypatch, out, lost, told):
    path = kernel(tmp_path, out)
    assert isinstance(asked(path).found, Refusal)  # what is wrong is not certified
    monkeypatch.setattr(certificate_at_shape, "recorded", losing(lost))
    one = asked(path)
    assert not one.certified
    assert told in one.contradicted
    assert Report(certificates=[one]).status == 4
    assert list(certified_lines([one])) == []
    assert told in next(uncertified([one])).text


def test_a_failure_of_the_verifier_is_no_refusal_of_the_kernel(tmp_path, monkeypatch):
    broken = Observation(status="error", message="NameError: name 'F_1' is not defined")
    monkeypatch.setattr(Runner, "run", lambda *_, **__: broken)
    one = asked(kernel(tmp_path))
    assert not one.certified
    assert one.found.stage == OWN_FAILURE
    report = Report(certificates=[one])
    assert report.status == 4
    assert "1 error of the verifier itself" in summary(report)
    assert "the verifier itself failed" in next(contradictions([one]))


def test_a_finding_whose_own_case_is_certified_is_an_error_of_ours(tmp_path):
    path = kernel(tmp_path)
    (subject,) = load(path).subjects
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=5), gradients=False)
    outcome = Outcome(verdict=Verdict.FAIL, output="output", message="output: 1 of 10 elements are beyond")
    finding = Finding(
        subject=NAME, path=str(path), check="forward_error", op="layer_norm", dtype="float32",
        backend="machine", verdict=Verdict.FAIL, outcome=outcome, case=case, declaration="",
    )  # fmt: skip
    (one,) = contradicted_findings([finding])
    assert (one.rows, one.columns) == (2, 5)
    assert "1 of 10 elements" in one.contradicted
    others = [replace(finding, backend="cuda"), replace(finding, check="determinism")]
    assert list(contradicted_findings(others)) == []


def test_a_form_of_the_users_own_that_is_another_formula_is_refused(tmp_path):
    path = kernel(
        tmp_path,
        **{
            "from verifier import Domain, subject, tile, tree": (
                "from verifier import Domain, Form, subject, tile, tree\n\n\n"
                "def _forward_form(n, t):\n"
                "    mean, rstd = n.moments(t.x)\n"
                "    return (t.x - mean) * rstd + n.constant(0.5)\n\n\n"
                "def _backward_form(n, t):\n    raise NotImplementedError\n\n\n"
                "OWN = Form(name='own', forward=_forward_form, backward=_backward_form)\n"
            ),
            '    variance="two_pass",': '    variance="two_pass",\n    formula=OWN,',
            "    if weight is not None:": "    out += 0.5\n    if weight is None:",
            "    if bias is not None:": "    if bias is None:",
            "        out *= tl": "        out *= 1.0 if weight is None else tl",
            "        out += tl": "        out += 0.0 if bias is None else tl",
        },
    )
    one = asked(path)
    assert isinstance(one.found, Refusal)
    assert one.found.stage == DEFINITION
    assert "differs from layer_norm in exact arithmetic" in one.found.why
    assert not one.contradicted


def test_what_does_not_run_on_the_machine_is_refused_with_the_reason():
    right = Path(__file__).parents[1] / "support" / "right_kernel.py"
    (subject,) = load(right).subjects
    job = Job(path=str(right), subject=subject.name, check="formula", dtype="float32", backend="eager")
    ((one,),) = certificates([job, replace(job, check="gradient")], ((2, 3),))
    assert isinstance(one.found, Refusal)
    assert "a subject in torch has no code" in one.found.why
    assert "a certificate is required" in next(uncertified([one])).text


def test_a_contradiction_outweighs_findings_and_nothing_else():
    assert exit_status([], contradicted=True, unmet=True) == 4
    assert exit_status([], contradicted=True, interrupted=True) == 130


def test_the_summary_counts_kinds_of_calls():
    given = Certificate(
        subject="a", source="", op="layer_norm", dtype="float32", rows=2, columns=3, tensors={}, scalars={},
        outputs=(), support={}, call="", statement="", theorems=(), hypotheses=(), consequence="",
        proofs=(), watched=(), assumptions=(),
    )  # fmt: skip
    one = AskedCertificate(subject="a", path="a.py", dtype="float32", rows=2, columns=3, found=given)
    two = replace(one, gradients=True, found=Refusal(stage="x is y", why="z"))
    assert certified_summary([]) == ""
    assert certified_summary([one, two]) == (
        "certified for all inputs of a shape: 1 of 1 forward, 0 of 1 with gradients (2x3)"
    )
    assert [*certified_lines([one, two])][1] == (
        "not certified  a  float32  at 2x3 with gradients: it was not shown that x is y (z)"
    )


@pytest.fixture
def audited(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        path = kernel(tmp_path)
        words = [path, "--dtype", "float32", "--check", "saved_statistics", "--workers", "1", *words]
        return CliRunner().invoke(app, ["audit", *map(str, words), "--json", "r.json"]), tmp_path / "r.json"

    return run


def test_an_audit_certifies_where_it_is_asked_and_demands_where_that_is_required(audited):
    answer, file = audited("--certify-shape", "3x12", "--require", "certificate")
    assert f"CERTIFIED  {NAME}  float32  for all inputs at 3x12 forward" in answer.output
    assert "certified for all inputs of a shape: 1 of 1 forward (3x12)" in answer.output
    (one,) = json.loads(file.read_text(encoding="utf-8"))["certificates"]
    assert (one["verdict"], one["rows"], one["gradients"]) == ("CERTIFIED", 3, False)
    assert answer.exit_code == 3  # the check itself has nothing to run, and a certificate decides no line
    answer, file = audited()
    assert "ertified" not in answer.output
    assert json.loads(file.read_text(encoding="utf-8"))["certificates"] == []

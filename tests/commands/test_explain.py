"""`explain` blames the error of every output on source lines, and its parts add up."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from in_process import InProcess

from verifier.audit.report.json_document import plain
from verifier.audit.save import save_finding
from verifier.commands import cost_of_dtype
from verifier.commands import explain as explaining
from verifier.commands.explain import (
    WITHOUT_ROUNDING,
    ExplainError,
    Explanation,
    Share,
    brief,
    case_for,
    document,
    explain,
    lines_of,
    place_text,
    reason_not,
)
from verifier.machine import session
from verifier.records import case as cases
from verifier.records.verdict import Finding, Outcome, Verdict
from verifier.subjects.load_file import load_subjects

pytest.importorskip("triton", reason="explain is tried on Triton kernels; Triton is not installed")

KERNEL = """
import torch
import triton
import triton.language as tl
from verifier import subject

@triton.jit
def forward(x, y, columns, eps, count, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / columns
    variance = tl.sum(value * value, axis=0) / count - mean * mean
    rstd = 1 / tl.sqrt(variance + eps)
    tl.store(y + row * columns + column, (value - mean) * rstd, mask=inside)

def run(input, eps, less):
    x = input.detach().contiguous()
    y = torch.empty_like(x)
    columns = x.shape[-1]
    block = triton.next_power_of_2(columns)
    forward[(x.numel() // columns,)](x, y, columns, float(eps), columns - less, BLOCK=block)
    return y

DECLARED = dict(op="layer_norm", language="triton", variance="textbook", accumulates="float32",
                dtypes=("float32", "float16"), differentiable=False)

@subject(**DECLARED)
def textbook(input, eps=1e-5):
    return run(input, eps, 0)

@subject(**DECLARED)
def wrong(input, eps=1e-5):
    return run(input, eps, 1)

@subject(**{**DECLARED, "dtypes": ("float64", "float32")})
def wide(input, eps=1e-5):
    return run(input, eps, 0)

@subject(**DECLARED)
def refuses(input, eps=1e-5):
    raise ValueError("not today")
"""


@pytest.fixture(autouse=True)
def _compiled_here(monkeypatch, tmp_path):
    """Triton's cache knows functions by their text: another test's kernel.py would answer for this one's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(KERNEL, encoding="utf-8")
    return file


@pytest.fixture
def subjects(path):
    return {s.name: s for s in load_subjects(path)}


@pytest.fixture
def machine():
    with session():
        yield InProcess("machine")


def output_of(subject, machine, kappa=0.0, dtype="float32", columns=300):
    explained = explain(subject, case_for(subject, dtype, 8, columns, kappa, 0), runner=machine)
    assert explained.lost == ""
    (output,) = explained.outputs
    return output, explained


def share_of(output, text):
    """Sum the shares of the places whose source holds a text."""
    found = [s for s in output.shares if text in place_text(s)]
    return sum(s.rms for s in found), sum(s.worst for s in found)


def adds_up(output):
    """Tell whether the shares add up to 1 but for the gap, and 2^-40 for the sums over 2^12 elements here."""
    rms, worst = (sum(getattr(s, name) for s in output.shares) for name in ("rms", "worst"))
    return (
        abs(rms - 1) <= output.gap / output.rms + 2.0**-40
        and abs(worst - 1) <= output.gap / output.worst + 2.0**-40
    )


def test_a_textbook_variance_loses_its_bits_in_the_two_sums(subjects, machine):
    output, explained = output_of(subjects["textbook"], machine, kappa=1000.0)
    mean, variance = share_of(output, "mean = "), share_of(output, "variance = ")
    assert mean[0] + variance[0] > 0.99
    assert mean[0] > 0.5
    assert adds_up(output)
    # Float64 is 2^29 times finer than the float32 in which the kernel cancels, and cancels alike.
    assert output.gap < output.worst * 2.0**-20
    text = "\n".join(lines_of(explained))
    assert "kernel.py:13  mean = tl.sum(value, axis=0) / columns" in text
    assert "100.0%    100.0%" in text


def test_a_wrong_formula_is_blamed_on_no_rounding(subjects, machine):
    output, explained = output_of(subjects["wrong"], machine)
    assert output.shares[0].word == WITHOUT_ROUNDING
    assert output.shares[0].rms > 0.999
    assert WITHOUT_ROUNDING in "\n".join(lines_of(explained))
    right, _ = output_of(subjects["textbook"], machine)
    assert all(abs(s.rms) < 0.5 for s in right.shares if s.word == WITHOUT_ROUNDING)


def test_a_narrow_output_is_blamed_on_its_store_and_the_summary_names_the_next(subjects, machine):
    output, _ = output_of(subjects["textbook"], machine, dtype="float16")
    assert share_of(output, "tl.store")[0] > 0.99
    assert "most of the rest" in brief(output)


def test_the_document_is_json_whose_shares_add_up(subjects, machine):
    _, explained = output_of(subjects["textbook"], machine)
    data = json.loads(json.dumps(document(explained)))
    (output,) = data["outputs"]
    shares = [line["share_of_rms"] for line in output["lines"]]
    assert shares == [s.rms for s in explained.outputs[0].shares]
    assert adds_up(explained.outputs[0])
    assert {line["source"] for line in output["lines"]} >= {"rstd = 1 / tl.sqrt(variance + eps)"}


def test_moved_kernels_are_blamed_on_their_own_lines(subjects, machine, tmp_path):
    """Triton's cache knows functions by their text, so that the copy has the code of the first."""
    output_of(subjects["textbook"], machine)
    moved = tmp_path / "elsewhere" / "kernel.py"
    moved.parent.mkdir()
    moved.write_text("\n\n\n" + KERNEL, encoding="utf-8")
    (copy,) = (s for s in load_subjects(moved) if s.name == "textbook")
    output, _ = output_of(copy, machine)
    frames = {frame for share in output.shares for frame in share.frames}
    assert {file for file, _ in frames} == {str(moved)}


@pytest.mark.parametrize(
    ("name", "dtype", "word"),
    [("wide", "float64", "float64"), ("textbook", "bfloat16", "does not declare bfloat16")],
)
def test_what_cannot_be_blamed_says_why(subjects, name, dtype, word):
    assert word in reason_not(subjects[name], dtype)
    assert "torch operators" in reason_not(replace(subjects[name], language="torch"), dtype)


def test_a_subject_that_does_not_run_is_an_error(subjects, machine):
    with pytest.raises(ExplainError, match=r"did not run on this case: .*not today"):
        explain(subjects["refuses"], case_for(subjects["refuses"], None, 2, 8, 0.0, 0), runner=machine)


def test_elements_that_are_not_finite_are_left_out():
    error = np.array([[np.nan, 3.0], [4.0, 0.0]])
    split = np.stack([error, np.zeros((2, 2))], axis=-1)
    places = (((("k.py", 1),), ""), ((), "other"))
    found = explaining._shares("output", error, split, places)
    assert (found.left_out, found.worst, found.index) == (1, 4.0, (1, 0))
    assert [s.rms for s in found.shares] == [1.0]


def test_an_exact_output_needs_no_lines():
    output = Explanation(output="output", rms=0.0, worst=0.0, index=(0, 0), shares=(), gap=0.0, left_out=0)
    assert brief(output) == "exact in every element"
    lost = replace(output, left_out=3)
    assert brief(lost) == "nothing finite to blame"
    assert "3 element(s) that are not finite are left out" in list(explaining._output_lines(lost))[1]


def test_a_line_that_is_gone_is_said_to_be():
    share = Share(frames=(("/nowhere/k.py", 3),), word="", rms=1.0, worst=1.0, error=1.0)
    assert "k.py:3  (source not found)" in place_text(share)


def test_a_share_without_lines_says_what_it_is():
    assert place_text(Share(frames=(), word="log2 e", rms=1.0, worst=1.0, error=1.0)) == "(log2 e)"


def test_cuda_kernels_are_blamed_on_lines_of_their_device_code(machine):
    (subject,) = load_subjects(Path(__file__).parents[2] / "kernels" / "layer_norm_textbook_cuda.py")
    missing = reason_not(subject, "float32")
    if missing:
        pytest.skip(missing)
    explained = explain(subject, case_for(subject, "float32", 4, 300, 10.0, 0), runner=machine)
    output = next(o for o in explained.outputs if o.output == "output")
    assert adds_up(output)
    files = {Path(file).suffix for share in output.shares for file, _ in share.frames}
    assert files <= {".cu", ".cuh"}
    assert share_of(output, "layer_norm_textbook_cuda.cu:")[0] > 0.5


# The command


@pytest.fixture
def command(machine, monkeypatch, capsys, tmp_path):
    """Return a function that runs the command in this process: (status, output, error)."""
    from verifier import execution
    from verifier.commands.command_line import main

    del machine
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execution, "Runner", InProcess)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["norm-verifier", "explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        return ended.value.code or 0, written.out, written.err

    return run


def finding_of(subject, case):
    return Finding(
        subject=subject.name, path=str(subject.path), check="forward_error", op=case.op, dtype=case.dtype,
        backend="machine", verdict=Verdict.FAIL, outcome=Outcome(verdict=Verdict.FAIL), case=case,
        declaration="",
    )  # fmt: skip


def test_a_saved_case_is_explained(command, subjects, tmp_path):
    case = case_for(subjects["textbook"], "float32", 4, 50, 0.0, 0)
    file = save_finding(finding_of(subjects["textbook"], case), tmp_path)
    status, out, _ = command(file, "--json", "out.json")
    assert status == 0
    assert "output: error" in out
    assert "together" in out
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == 4


def test_a_kernel_file_is_explained(command, path):
    status, out, _ = command(path, "--subject", "textbook", "--rows", "2", "-N", "40", "--dtype", "float16")
    assert status == 0
    assert "float16  2 x 40" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "nowhere.json: cannot be read"),
        (["KERNEL"], "declares several subjects; choose one with --subject"),
        (["KERNEL", "--subject", "nobody"], "no 'nobody'"),
        (["KERNEL", "--subject", "textbook", "--dtype", "int8"], "no dtype 'int8'"),
        (["KERNEL", "--subject", "wide"], "nothing of float64 kernels"),
        (["KERNEL", "--subject", "textbook", "--dtype", "bfloat16"], "does not declare bfloat16"),
        (["KERNEL", "--subject", "refuses"], "not today"),
        (["nobody.json"], "does not say which subject"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(  # noqa: PLR0917 (fixtures)
    command, path, tmp_path, subjects, arguments, message
):
    case = case_for(subjects["textbook"], "float32", 1, 2, 0.0, 0)
    (tmp_path / "nobody.json").write_text(json.dumps(cases.to_document(case)))
    status, out, error = command(*(str(path) if a == "KERNEL" else a for a in arguments))
    assert (status, out) == (2, "")
    assert message in error
    assert len(error.strip().splitlines()) == 1


# The account of a narrow dtype


def test_the_account_of_a_narrow_dtype_ends_with_its_lines(subjects, machine, monkeypatch):
    del machine
    monkeypatch.setattr(cost_of_dtype, "Runner", InProcess)
    monkeypatch.setattr(cost_of_dtype, "_sweep", lambda dtype: iter([(0.0, 1.0, cost_of_dtype.COLUMNS)]))
    found = cost_of_dtype.cost(subjects["textbook"], "float16", "machine")
    text = list(cost_of_dtype.cost_lines(found))
    start = next(n for n, line in enumerate(text) if "where the bits are lost, at kappa" in line)
    assert "tl.store" in text[start + 1]
    data = plain(cost_of_dtype.cost_document(found))
    assert len(data["lines"]) == len(cost_of_dtype.BLAMED)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_the_account_says_where_it_has_no_lines(monkeypatch):
    monkeypatch.setattr(cost_of_dtype, "Runner", InProcess)
    monkeypatch.setattr(cost_of_dtype, "_sweep", lambda dtype: iter([(0.0, 1.0, cost_of_dtype.COLUMNS)]))
    file = Path(__file__).parents[2] / "kernels" / "rms_norm_torch.py"
    (subject,) = load_subjects(file)
    text = "\n".join(cost_of_dtype.account_lines(subject, "float16", "eager"))
    assert "where the bits are lost is not shown" in text

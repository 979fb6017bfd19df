"""Options of an audit that choose what is run and what is shown of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from audited_kernels import KERNELS, QUICK

from verifier.audit.keyword_expression import matcher
from verifier.audit.request import SelectionError
from verifier.commands.screen import Screen
from verifier.records.files import cache_folder

ROOT = Path(__file__).parents[2]
RAISING = """
@subject(**DECLARED)
def raising(input, weight=None, bias=None, eps=1e-5):
    raise KeyError("odd")
"""


@pytest.fixture
def file(kernel_file):
    return str(kernel_file(KERNELS))


# -- what is run -------------------------------------------------------------------------------

NAMES = ("layer_norm_triton", "layer_norm_backward_triton", "rms_norm_cuda")


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("layer_norm", (0, 1)),
        ("Triton", (0, 1)),
        ("not triton", (2,)),
        ("layer and not backward", (0,)),
        ("backward or rms", (1, 2)),
        ("not (backward or rms)", (0,)),
        ("rms or layer and backward", (1, 2)),
        ("not not rms", (2,)),
        ("nothing", ()),
    ],
)
def test_subjects_are_chosen_by_parts_of_their_names(expression, chosen):
    fits = matcher(expression)
    assert tuple(place for place, name in enumerate(NAMES) if fits(name)) == chosen


@pytest.mark.parametrize("expression", ["", "and", "a and", "not", "(a", "a)", "a b", "or a"])
def test_an_expression_that_is_none_is_said(expression):
    with pytest.raises(SelectionError, match="-k '"):
        matcher(expression)


def test_k_audits_the_subjects_that_fit(command, file):
    status, out, _ = command("audit", file, *QUICK, "-k", "good or of_no")
    assert status == 2  # of_no_op is chosen and cannot be used
    assert "good" in out
    assert "wrong" not in out
    status, out, error = command("audit", file, *QUICK, "-k", "better")
    assert (status, out) == (2, "")
    assert "no subject fits what is asked for; there are: good, wrong, claims_nothing, of_no_op" in error


def test_x_stops_at_the_first_finding_and_says_what_did_not_run(command, file):
    words = ("audit", file, *QUICK, "-k", "not of_no_op")
    assert "3 lines: " in command(*words)[1]
    status, out, _ = command(*words, "-x")
    assert status == 1
    assert "2 subjects, 2 lines: 1 PASS, 1 FAIL" in out
    assert "1 line not run after the first finding (claims_nothing forward_error float32)" in out


# -- what is shown -----------------------------------------------------------------------------


def test_less_and_more_is_shown(command, file):
    words = ("audit", file, *QUICK, "-k", "good or claims")
    (status, quiet, _), usual, more, most = (command(*words, *how) for how in (["-q"], [], ["-v"], ["-vv"]))
    assert (status, quiet) == (3, "") or (status, quiet) == (0, "")
    assert "good" in usual[1]
    assert "forward_error output" in usual[1]
    assert "error/two-pass" not in usual[1]
    assert "error/two-pass" in more[1]
    assert "Columns:" in more[1]
    assert "\nNotes:\n" not in more[1]
    assert "\nNotes:\n" in most[1]


def test_q_leaves_the_findings(command, file):
    status, out, _ = command("audit", file, *QUICK, "-k", "wrong", "-q")
    assert status == 1
    assert out.startswith("FAIL  wrong  forward_error  float32  on eager\n")
    assert out.strip().splitlines()[-1].startswith("  replay ")


def test_the_legend_is_told_at_once(command):
    status, out, _ = command("audit", "--legend")
    assert status == 0
    assert "error/bound  " in out
    assert "error/two-pass  " in out


def test_a_traceback_is_whole_where_it_is_asked_for(command, kernel_file):
    words = ("audit", kernel_file(RAISING), *QUICK)
    usual = command(*words)[1]
    assert "other frames, of the verifier and of libraries)" in usual
    assert "call_subject.py" not in usual
    whole = command(*words, "--traceback")[1]
    assert "raised       Traceback (most recent call last):" in whole
    assert "call_subject.py" in whole


def test_colors_are_those_that_are_asked_for(capsys):
    for color, colored in (("always", True), ("auto", False), ("never", False)):
        Screen(color=color).say("PASS", "green")
        assert ("\x1b[" in capsys.readouterr().out) == colored


def test_a_wrong_color_is_said(command):
    status, _, error = command("audit", "--color", "sometimes")
    assert status == 2
    assert "'sometimes' is not one of 'auto', 'always', 'never'" in error


def test_prints_are_shown_and_modules_of_the_repository_are_found(warm_python, kernel_file, tmp_path):
    """In processes of their own, as for a user; what findings leave is nothing to commit."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "src").mkdir()
    (tmp_path / "shared_words.py").write_text("WORDS = 'a word of its own'\n")
    (tmp_path / "src" / "shared_factor.py").write_text("FACTOR = 2\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "shared_end.py").write_text("END = '!'\n")
    body = """
    from shared_words import WORDS
    from shared_factor import FACTOR
    from shared_end import END

    @subject(**DECLARED)
    def loud(input, weight=None, bias=None, eps=1e-5):
        print(WORDS + END)
        return right(input, weight, bias, eps) * FACTOR
    """
    file = kernel_file(body, folder=tmp_path / "deep" / "er")
    ended = warm_python.run(
        *("-m", "verifier", "audit", file, *QUICK, "-x", "-s", "--pythonpath", "elsewhere"),
        folder=tmp_path,
        environment={
            "PATH": "/usr/bin:/bin",
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path),
            "XDG_CACHE_HOME": str(cache_folder("").parent),  # with a hash of Triton's files, made once
        },
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "loud| a word of its own!\n" in ended.stdout
    assert (tmp_path / "norm-verifier-findings" / ".gitignore").read_text() == "*\n"


# -- a shell's completion ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("audit --ch", {"--check"}),
        ("audit --check forw", {"forward_error"}),
        ("audit --dtype b", {"bfloat16"}),
    ],
)
def test_a_shell_completes_options_and_their_values(typed, completed, monkeypatch, capsys):
    from verifier.commands.command_line import app

    monkeypatch.setenv("_NORM_VERIFIER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"norm-verifier {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    with pytest.raises(SystemExit) as ended:
        app(prog_name="norm-verifier")
    assert not ended.value.code
    assert set(capsys.readouterr().out.split()) == completed


def test_an_audit_without_findings_leaves_nothing_in_the_folder(tmp_path, kernel_file):
    path = kernel_file(LEAVES_NOTHING, head="")
    before = {one.name for one in tmp_path.iterdir()}
    command = [sys.executable, "-m", "verifier", "audit", str(path), "--check", "forward_error"]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=surroundings, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    left = {one.name for one in tmp_path.iterdir()} - before
    assert left <= {"__pycache__"}


LEAVES_NOTHING = """
import torch
from verifier import subject

@subject(op="softmax", language="torch", variance="softmax", dtypes=("float32",))
def norm(input, dim=-1):
    return torch.softmax(input, dim)
"""

"""Settings of a project stand in its pyproject.toml; the command line goes before them."""

import json
from pathlib import Path

import pytest
from short_sweeps import shorten_sweeps
from typer.testing import CliRunner

from verifier.audit.request import BUDGETS, Requirements, parse_requirements
from verifier.audit.run_audit import select
from verifier.audit.shape_text import USUAL, asked_shapes
from verifier.audit.sweep import key_of
from verifier.commands.command_line import app
from verifier.commands.project_settings import SettingsError, project_settings
from verifier.subjects.load_file import load_subjects

KERNEL = Path(__file__).parents[1] / "support" / "right_kernel.py"


def written(folder, text):
    (folder / "pyproject.toml").write_text(text)
    return folder


def test_settings_are_found_above_and_paths_count_from_their_file(tmp_path):
    written(
        tmp_path,
        '[tool.norm-verifier]\npaths = ["a.py"]\npythonpath = ["lib"]\ndtypes = ["float32"]\n'
        "reach = 0.95\nworkers = 2\n",
    )
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    assert project_settings(inside) == {
        "paths": [str(tmp_path / "a.py")],
        "pythonpath": [str(tmp_path / "lib")],
        "dtype": ["float32"],
        "require": ["reach=0.95"],
        "workers": 2,
    }
    assert project_settings(written(inside, "[project]\n")) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.norm-verifier]\nbeauty = 1", "no key 'beauty'; there are: paths, pythonpath, dtypes"),
        ("[tool.norm-verifier]\ndtype = []", "no key 'dtype' (did you mean dtypes?); there are"),
        ('[tool.norm-verifier]\nreach = "0.95"', "reach is '0.95', and a number from 0 to 1"),
        ("[tool.norm-verifier]\nreach = true", "reach is True"),
        ("[tool.norm-verifier]\nreach = nan", "reach is nan"),
        ('[tool.norm-verifier]\ndtypes = "float32"', "dtypes is 'float32', and a list of strings"),
        ("[tool.norm-verifier]\nreport = true", "report is True, and a string is wanted"),
        ("[tool.norm-verifier]\nrelease = 1", "release is 1, and true or false is wanted"),
        ("[tool.norm-verifier]\nbudget = 5", "budget is 5, and a string"),
        ("[tool.norm-verifier]\nmultiprocessors = -1", "multiprocessors is -1, and a whole number from 0"),
        ('[tool.norm-verifier]\nautotune = "none"', 'autotune is \'none\', and "all" or "first" is wanted'),
        ("[tool]\nnorm-verifier = 3", "is no table"),
        ("[tool", "cannot be read"),
    ],
)
def test_what_means_nothing_is_said(tmp_path, text, words):
    with pytest.raises(SettingsError, match=r"pyproject\.toml") as raised:
        project_settings(written(tmp_path, text))
    assert words in str(raised.value)


def test_an_audit_takes_what_is_not_given_and_says_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUDGETS, "quick", 1)
    text = f'[tool.norm-verifier]\npaths = ["{KERNEL}"]\nchecks = ["finite"]\nbudget = "soon"\nworkers = 1\n'
    written(tmp_path, text)
    ended = CliRunner().invoke(app, ["audit"])
    assert ended.exit_code == 2
    assert "budget 'soon'" in ended.output
    ended = CliRunner().invoke(app, ["audit", "--budget", "quick"])
    assert ended.exit_code == 0, ended.output
    assert "right_kernel" in ended.output
    assert "forward_error" not in ended.output
    written(tmp_path, "[tool.norm-verifier]\nbeauty = 1\n")
    ended = CliRunner().invoke(app, ["audit", str(KERNEL)])
    assert ended.exit_code == 2
    assert "no key 'beauty'" in ended.output


def test_a_policy_says_what_is_required_and_where_the_report_goes(tmp_path, monkeypatch, command):
    inside = tmp_path / "deep"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.setitem(BUDGETS, "quick", 1)
    monkeypatch.setattr("verifier.commands.report.html.error_against_kappa", lambda *_: "")
    monkeypatch.setattr("verifier.commands.report.html.errors_by_kappa_and_columns", lambda *_: "")
    shorten_sweeps(monkeypatch)
    policy = f'[tool.norm-verifier]\npaths = ["{KERNEL}"]\nchecks = ["finite"]\nworkers = 1\n'
    policy += 'dtypes = ["float32"]\nrelease = true\nulp = 1e6\nkappa = 10\nreport = "out/report"\n'
    written(tmp_path, policy)
    assert project_settings(inside)["report_folder"] == str(tmp_path / "out/report")
    status, out, _ = command("audit")
    assert status == 0
    report = tmp_path / "out" / "report"
    assert f"report: {report / 'index.html'}" in out
    assert json.loads((report / "report.json").read_text())["release"]["dtypes"]
    assert not list(inside.glob("*report*"))
    old = json.loads((report / "report.json").read_text())
    old["reach"] = []  # what ran is told once a process, and here all is one
    (tmp_path / "old.json").write_text(json.dumps(old))
    written(tmp_path, policy.replace("1e6", "1e-3") + 'baseline = "old.json"\n')
    status, out, _ = command("audit", "--report", "here")
    assert status == 1
    assert "ulp=0.001,kappa=10 is required" in out
    assert "nothing is worse than the baseline" in out
    assert (inside / "here" / "index.html").exists()


LOST = Path(__file__).parents[1] / "faulty_kernels" / "rows_lost_by_one_processor_triton.py"


def test_a_device_of_so_many_multiprocessors_is_played_and_played_again(tmp_path, monkeypatch):
    """The kernel loses rows on a device of one; nothing is wrong with it on the usual one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(BUDGETS, "quick", 2)
    only = f'[tool.norm-verifier]\npaths = ["{LOST}"]\nchecks = ["forward_error"]\nworkers = 1\n'
    written(tmp_path, only)
    assert CliRunner().invoke(app, ["audit"]).exit_code == 0
    written(tmp_path, f"{only}multiprocessors = 1\n")
    ended = CliRunner().invoke(app, ["audit"])
    assert ended.exit_code == 1, ended.output
    assert "device       1 multiprocessors" in ended.output
    (case,) = Path("norm-verifier-findings").glob("*.json")
    assert CliRunner().invoke(app, ["replay", str(case)]).exit_code == 1
    document = json.loads(case.read_text())
    assert document.pop("multiprocessors") == 1
    case.write_text(json.dumps(document))
    assert CliRunner().invoke(app, ["replay", str(case)]).exit_code == 0
    case.write_text(json.dumps({**document, "multiprocessors": "one"}))
    ended = CliRunner().invoke(app, ["replay", str(case)])
    assert ended.exit_code == 2
    assert "multiprocessors is 'one'" in ended.output


def test_shapes_that_were_chosen_for_one_device_are_not_those_of_another():
    (subject,) = load_subjects(LOST)
    keys = {
        key_of(subject, "float32", played) for played in ({}, {"multiprocessors": 1}, {"multiprocessors": 2})
    }
    assert len(keys) == 3


def test_other_configurations_of_autotuned_kernels_are_left_out_where_that_is_asked_for():
    tuned = LOST.parent / "wrong_in_third_configuration_triton.py"
    first = {job.check: job.missing for job in select([tuned], autotune="first")}
    assert first.pop("autotuning") == "left out: autotune is 'first'"
    assert set(first.values()) == {""}
    assert {job.missing for job in select([tuned])} == {""}


def test_certificates_are_wanted_at_shapes_or_at_the_usual_ones(tmp_path):
    text = '[tool.norm-verifier]\ncertify = ["2x4096"]\ncertificate = true\n'
    found = project_settings(written(tmp_path, text))
    assert found == {"certify_shape": ["2x4096"], "require": ["certificate"]}
    assert parse_requirements(["certificate,reach=0.5"]) == Requirements(reach=0.5, certificate=True)
    assert asked_shapes(["2x3..4", "2x4"], wanted=False) == ((2, 3), (2, 4))
    assert asked_shapes([], wanted=True) == USUAL
    written(tmp_path, "[tool.norm-verifier]\ncertify = true\ncertificate = false\n")
    assert project_settings(tmp_path) == {"certify": True}

"""Settings of a project stand in its pyproject.toml; the command line goes before them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from verifier.audit.request import BUDGETS
from verifier.commands.command_line import app
from verifier.commands.project_settings import SettingsError, project_settings

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
        ("[tool.norm-verifier]\nbudget = 5", "budget is 5, and a string"),
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

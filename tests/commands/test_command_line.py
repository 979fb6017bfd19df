"""The command answers at once, says what is wrong in one line and ends with the status that it promises."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from audited_kernels import KERNELS, QUICK
from small_cases import case_of

from strategies.registry import names_defining
from verifier.checks import checks
from verifier.commands import command_line
from verifier.execution.backends import backends
from verifier.records.case import to_document


@pytest.fixture
def file(kernel_file):
    return str(kernel_file(KERNELS))


def test_help_costs_less_than_half_a_second_of_processor_time():
    """Of the processor, not of the wall: the machine may be busy with something else."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "verifier", "--help"], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime) < 0.5


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from verifier.commands.command_line import main\n"
        "sys.argv = ['norm-verifier', 'audit', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'triton', 'numpy', 'mpmath', 'flint', 'hypothesis', 'matplotlib', 'pytest'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "HEAVY []" in ended.stdout
    assert "--budget" in ended.stdout


WRONG_AT_SIGHT = """
frobnicate
audit --frobnicate
audit nowhere.py
audit nowhere.py nothing.py
audit FOLDER
audit notes.txt
audit KERNEL --check beauty
audit KERNEL --dtype float99
audit KERNEL --backend abacus
audit KERNEL --budget soon
audit KERNEL --seed one
audit KERNEL --require much
audit KERNEL --json no/such/folder/r.json
audit KERNEL --findings KERNEL
fuzz
fuzz KERNEL --budget soon
list nowhere.py
mutate KERNEL --check beauty
mutate KERNEL --budget 10s
mutate KERNEL --dtype float99
replay nowhere.json
explain nowhere.json
explain KERNEL --dtype float99
describe nowhere.py
bounds --dtype float99
"""


def test_what_is_wrong_at_sight_is_said_before_torch_is_imported(tmp_path, file):
    """In a second of processor time less: to import torch takes that long."""
    (tmp_path / "notes.txt").write_text("")
    code = (
        "import sys; from verifier.commands.command_line import main\n"
        "for words in sys.stdin.read().split('\\n'):\n"
        "    sys.argv = ['norm-verifier', *words.split()]\n"
        "    try: main()\n"
        "    except SystemExit as ended: print(ended.code, words, flush=True)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    words = WRONG_AT_SIGHT.strip().replace("KERNEL", file).replace("FOLDER", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, input=words, cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"2 {line}" for line in words.splitlines()]


def test_names_that_are_read_off_the_files_are_those_that_there_are():
    """What is checked at sight rests on it."""
    assert set(names_defining("verifier.checks", "NAME")) == set(checks())
    assert set(names_defining("verifier.execution.backends", "BACKEND")) == set(backends())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["audit", "--frobnicate"], "No such option"),
        (["audit", "nowhere.py"], "nowhere.py: no such file"),
        (["audit", "FOLDER"], "is a folder"),
        (["audit", "broken.py"], "line 1: SyntaxError"),
        (["audit", "empty.py"], "declares no subject"),
        (["audit", "KERNEL", "--check", "beauty"], "no check 'beauty'"),
        (["audit", "KERNEL", "--dtype", "flot16"], "no dtype 'flot16' (did you mean float16?); there are"),
        (["audit", "KERNEL", "--dtpe", "float16"], "No such option '--dtpe'. Did you mean '--dtype'?"),
        (["audit", "KERNEL", "--dtype", "float64"], "no subject declares dtype float64"),
        (
            ["audit", "KERNEL", "--dtype", "float32", "--dtype", "float16"],
            "no subject declares dtype float16",
        ),
        (["audit", "KERNEL", "--subject", "better"], "no subject 'better'"),
        (["audit", "KERNEL", "--backend", "abacus"], "no backend 'abacus'"),
        (["audit", "KERNEL", "--budget", "soon"], "budget 'soon'"),
        (["audit", "KERNEL", "--budget", "-5s"], "budget '-5s'"),
        (["audit", "KERNEL", "--seed", "one"], "--seed"),
        (["audit", "KERNEL", "--seed", "-1"], "--seed"),
        (["audit", "KERNEL", "--workers", "-1"], "--workers"),
        (["audit", "KERNEL", "--json", "no/such/folder/r.json"], "does not exist"),
        (["audit", "KERNEL", "--json", "FOLDER"], "is a folder"),
        (["audit", "KERNEL", "--json", "-"], "-: standard output is for the report that people read; name"),
        (["fuzz", "KERNEL", "--json", "-"], "name a file"),
        (["audit", "KERNEL", "--findings", "KERNEL"], "findings cannot be stored there"),
        (["fuzz"], "Missing argument"),
        (["fuzz", "KERNEL", "--budget", "soon"], "budget 'soon'"),
        (["list", "nowhere.py"], "nowhere.py: no such file"),
        (["replay"], "Missing argument"),
        (["audit", "emty.py"], "emty.py: no such file (did you mean empty.py?)"),
        (["audit", "KERNEL", "--subject", "god"], "no subject 'god' (did you mean good?)"),
        (["audit", "KERNEL", "--budget", "standart"], "(did you mean standard?)"),
        (["replay", "nowhere.json"], "nowhere.json: cannot be read"),
        (["replay", "KERNEL"], "cannot be read"),
        (["replay", "case.json"], "does not say which subject"),
        (["describe", "nowhere.py"], "nowhere.py: no such file"),
        (["describe", "empty.py"], "name the function"),
        (["describe", "KERNEL", "--function", "better"], "no function 'better'"),
    ],
)
def test_a_wrong_command_line_is_answered_in_one_line_with_status_2(arguments, said, command, file, tmp_path):
    (tmp_path / "broken.py").write_text("def broken(:\n")
    (tmp_path / "empty.py").write_text("")
    from torch import ones

    (tmp_path / "case.json").write_text(json.dumps(to_document(case_of(ones(2, 4)))))
    words = {"KERNEL": file, "FOLDER": tmp_path}
    status, out, error = command(*(words.get(a, a) for a in arguments))
    assert status == 2
    assert error.count("\n") == 1, error
    assert error.startswith("norm-verifier: ")
    assert said in error
    assert out == ""


def test_status_0_where_everything_that_was_decided_passed(command, file):
    status, out, _ = command("audit", file, "--subject", "good", *QUICK)
    assert status == 0
    assert "PASS" in out


def test_status_1_with_the_finding_and_a_line_that_replays_it(command, file, tmp_path):
    status, out, _ = command("audit", file, "--subject", "wrong", *QUICK, "--findings", "kept")
    assert status == 1
    (line,) = [line for line in out.splitlines() if line.strip().startswith("replay")]
    arguments = line.split("norm-verifier ")[1].split()
    assert (tmp_path / arguments[1]).is_file()
    assert command(*arguments)[0] == 1


@pytest.mark.parametrize(("name", "wanted"), [("claims_nothing", 3), ("of_no_op", 2)])
def test_the_status_where_nothing_was_decided(name, wanted, command, file):
    status, out, _ = command("audit", file, "--subject", name, *QUICK)
    assert status == wanted
    assert "PASS" not in out


def test_findings_are_on_disk_before_the_audit_ends(command, file, monkeypatch):
    from verifier.audit.report.as_it_runs import AsItRuns

    seen = []
    add = AsItRuns.add

    def look(told, line):
        seen.append(len(list(Path("kept").glob("*.json"))))
        add(told, line)

    monkeypatch.setattr(AsItRuns, "add", look)
    command("audit", file, "--subject", "wrong", *QUICK, "--findings", "kept", "--workers", "1")
    assert seen[-1]


def test_a_backend_that_does_not_run_the_language_is_said(command, file):
    status, out, _ = command("audit", file, "--subject", "good", *QUICK, "--backend", "interpreter")
    assert status == 3
    assert "does not run subjects in torch" in out


def test_an_error_of_the_verifier_itself_is_status_4_and_not_a_verdict(command, file, monkeypatch):
    from verifier.audit import run_audit

    def broken(*arguments, **options):
        raise RuntimeError("planted")

    monkeypatch.setattr(run_audit.Examination, "run", broken)
    status, out, error = command("audit", file, "--subject", "good", *QUICK)
    assert status == 4
    assert "the verifier itself failed" in out + error


def test_an_error_in_one_check_is_counted_on_its_line_and_the_other_lines_go_on(
    command, file, tmp_path, monkeypatch
):
    from verifier.checks import check

    def broken(session):
        raise KeyError("planted")

    monkeypatch.setattr(check("finite"), "check", broken)
    checks = ("--check", "finite", "--check", "forward_error", "--dtype", "float32", "--workers", "1")
    status, out, _ = command("audit", file, "--subject", "good", *checks, "--json", "r.json")
    assert status == 4
    report = json.loads((tmp_path / "r.json").read_text())
    lines = {line["check"]: line for line in report["lines"]}
    assert lines["forward_error"]["verdict"] == "PASS"
    assert lines["finite"]["verdict"] == "ERROR"
    assert set(lines["finite"]["counts"]) == {"ERROR"}
    (text,) = lines["finite"]["errors"]
    assert "KeyError: 'planted' (in broken, " in text
    assert report["findings"] == []
    assert out.count("the verifier itself failed: KeyError: 'planted'") == 1
    assert "Traceback" in out


def test_an_error_of_a_command_itself_is_status_4_with_its_traceback(monkeypatch, capsys):
    from verifier.commands import command_line

    def broken(**options):
        raise KeyError("planted")

    monkeypatch.setattr(command_line, "app", broken)
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 4
    said = capsys.readouterr().err
    assert "KeyError: 'planted'" in said
    assert "the verifier itself failed" in said


def test_the_report_is_valid_json_without_nan(command, file, tmp_path):
    command("audit", file, *QUICK, "--json", "r.json", "--seed", "3")

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    report = json.loads((tmp_path / "r.json").read_text(), parse_constant=refuse)
    assert report["seed"] == 3
    assert report["status"] == 2  # of_no_op cannot be used
    verdicts = {line["subject"]: line["verdict"] for line in report["lines"]}
    assert verdicts == {
        "good": "PASS",
        "wrong": "FAIL",
        "claims_nothing": "UNDECIDED",
        "of_no_op": "SKIPPED",
    }
    assert [f["subject"] for f in report["findings"]] == ["wrong"]


def test_a_copy_of_a_built_in_kernel_is_audited_alike(command, tmp_path):
    """A user's file takes the same road as our own: everything but the path is the same."""
    from verifier.subjects.load_file import builtin_folder

    source = builtin_folder() / "layer_norm_torch.py"
    copied = tmp_path / "my_kernel.py"
    copied.write_text(source.read_text())
    reports = []
    for file in (source, copied):
        command(
            "audit", file, "--workers", "1", "--check", "layouts", "--dtype", "float32", "--json", "r.json"
        )
        report = json.loads((tmp_path / "r.json").read_text())
        lines = [{k: v for k, v in line.items() if k != "seconds"} for line in report["lines"]]
        reports.append(lines)
    assert reports[0] == reports[1]
    assert reports[0]


def test_an_audit_in_worker_processes_finds_what_one_process_finds(command, file, tmp_path):
    found = []
    for workers in ("1", "2"):
        command("audit", file, "--check", "forward_error", "--workers", workers, "--json", "r.json")
        report = json.loads((tmp_path / "r.json").read_text())
        found.append([(x["subject"], x["verdict"], x["counts"], x["worst_ulp"]) for x in report["lines"]])
    assert found[0] == found[1]


def test_an_audit_says_what_a_narrow_dtype_costs_where_it_is_asked(command, kernel_file):
    body = KERNELS.replace("**DECLARED", '**{**DECLARED, "dtypes": ("float16",)}')
    words = ("audit", kernel_file(body), "--subject", "good", "--dtype", "float16", *QUICK, "--budget", "1s")
    assert "What float16" not in command(*words)[1]
    status, out, _ = command(*words, "--costs")
    assert status == 0
    assert "What float16 costs good on eager" in out
    assert "kappa within 1, 4, 16 ulp" in out


def test_list_names_subjects_ops_checks_and_backends(command, file):
    status, out, _ = command("list", file)
    assert status == 0
    for word in ("good", "layer_norm", "two_pass", "forward_error", "eager", "machine"):
        assert word in out


def test_a_skeleton_among_the_files_is_passed_over(command, file, kernel_file):
    skeleton = kernel_file("SHARED = 1\n", name="row_skeleton_triton.py")
    other = kernel_file("SHARED = 1\n", name="another.py")
    status, out, said = command("list", file, skeleton)
    assert (status, said) == (0, "")
    assert "good" in out
    second = kernel_file("SHARED = 2\n", name="column_skeleton_triton.py")
    for files in ((skeleton,), (skeleton, second), (file, other)):
        status, _, said = command("list", *files)
        assert status == 2
        assert "declares no subject" in said


def test_the_version_is_that_of_the_package(command):
    from verifier import __version__

    assert command("--version") == (0, f"norm-verifier {__version__}\n", "")


def test_every_command_has_a_summary():
    assert all(c.callback.__doc__ for c in command_line.app.registered_commands)

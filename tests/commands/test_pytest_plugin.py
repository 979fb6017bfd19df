"""The pytest plugin: one test per subject, check and dtype, alike on every worker, in anyone's repository."""

import pytest

from verifier.commands import pytest_plugin

KERNELS = """
@subject(**{**DECLARED, "dtypes": ("float32", "float16")})
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def wrong(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps) * 1.01

@subject(**{**DECLARED, "variance": None})
def claims_nothing(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


@pytest.fixture
def suite(pytester, kernel_file, no_child, monkeypatch):
    """A repository of somebody else, with the plugin and a kernel file."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    kernel_file(KERNELS, folder=pytester.path)

    def run(*arguments):
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments, plugins=_plugins(pytester))

    return run


def _plugins(pytester):
    """Return the plugin, unless an installation has registered it by its entry point already."""
    from importlib.metadata import entry_points

    return [] if [p for p in entry_points(group="pytest11") if p.name == "norm-verifier"] else [pytest_plugin]


def ids_of(result):
    return [
        line for line in result.outlines if "::" in line or line.startswith(("good-", "wrong-", "claims"))
    ]


def test_there_is_one_test_per_subject_check_and_dtype_in_sorted_order(suite):
    found = suite("--kernel", "kernel.py", "--collect-only", "-q")
    names = [name.split("::")[-1] for name in ids_of(found)]
    assert names == sorted(names)
    assert "good-forward_error-float16" in names
    assert "good-forward_error-float32" in names
    assert "wrong-memory-float32" in names
    assert len(names) == len(set(names))
    assert f"{len(names)} tests collected" in found.stdout.str()


def test_a_right_kernel_passes_a_wrong_one_fails_and_one_without_a_claim_never_passes(suite, pytester):
    result = suite("--kernel", "kernel.py", "--kernel-budget", "5", "-k", "forward_error", "-v")
    lines = {
        line.split()[0].split("::")[-1]: line.split()[1]
        for line in result.outlines
        if " " in line and "-forward_error-" in line.split()[0]
    }
    assert lines["good-forward_error-float32"] == "PASSED"
    assert lines["good-forward_error-float16"] == "PASSED"
    assert lines["wrong-forward_error-float32"] == "FAILED"
    assert lines["claims_nothing-forward_error-float32"] == "FAILED"
    text = result.stdout.str()
    assert "nothing was decided" in text
    assert "x the proved bound" in text
    assert "Traceback" not in text
    assert list((pytester.path / "norm-verifier-findings").glob("wrong-forward_error-*.json"))


def test_a_kernel_of_an_op_that_does_not_exist_fails_and_is_not_skipped(suite, pytester):
    kernel = pytester.path / "kernel.py"
    typo = '{**DECLARED, "op": "layer_nrom"}'
    kernel.write_text(kernel.read_text().replace("**DECLARED", f"**{typo}", 1))
    result = suite("--kernel", "kernel.py", "--kernel-budget", "3", "-k", "good-forward_error")
    result.assert_outcomes(failed=2, deselected=None)
    assert "(did you mean layer_norm?)" in result.stdout.str()
    assert "Traceback" not in result.stdout.str()


def test_a_check_that_does_not_apply_is_skipped_with_its_reason(suite):
    result = suite("--kernel", "kernel.py", "--kernel-budget", "3", "-k", "good-gradient", "-rs")
    result.assert_outcomes(skipped=2, deselected=None)
    assert "forward only" in result.stdout.str()


def test_tests_of_the_repository_are_left_alone_unless_they_are_named(suite, pytester):
    pytester.makepyfile(test_own="def test_own(): pass")
    alone = suite("--kernel", "kernel.py", "--collect-only", "-q").stdout.str()
    assert "test_own" not in alone
    both = suite("test_own.py", "--kernel", "kernel.py", "--collect-only", "-q").stdout.str()
    assert "test_own" in both
    assert "good-forward_error-float32" in both
    without = suite("--collect-only", "-q").stdout.str()
    assert "test_own" in without
    assert "good-forward_error" not in without


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kernel", "nowhere.py"], "no such file"),
        (["--kernel", "kernel.py", "--kernel-budget", "soon"], "standard, deep nor a number"),
        (["--kernel", "kernel.py", "--kernel-budget", "0"], "standard, deep nor a number"),
        (["--kernel", "kernel.py", "--kernel-backend", "abacus"], "no backend 'abacus'"),
        (["--kernel", "broken.py"], "SyntaxError"),
        (["--kernel", "empty.py"], "declares no subject"),
    ],
)
def test_wrong_options_are_usage_errors(arguments, said, suite, pytester):
    (pytester.path / "broken.py").write_text("def broken(:\n")
    (pytester.path / "empty.py").write_text("")
    result = suite(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert said in result.stdout.str() + result.stderr.str()


def test_conformance_tests_run_in_a_test_module_of_the_user(suite, pytester):
    pytester.makepyfile(
        test_mine="""
        from pathlib import Path
        from verifier import conformance_tests, load

        by_name = {s.name: s for s in load(Path(__file__).with_name("kernel.py")).subjects}
        test_good = conformance_tests(by_name["good"], budget="4")
        test_wrong = conformance_tests(by_name["wrong"], budget="4")
        """
    )
    result = suite("test_mine.py", "-v", "-k", "forward_error or memory")
    text = result.stdout.str()
    assert "test_good[forward_error-float16] PASSED" in text
    assert "test_good[memory-float32] PASSED" in text
    assert "test_wrong[forward_error-float32] FAILED" in text


TAKEN = """
def pytest_addoption(parser):
    parser.addoption("--kernel", {attributes})
    parser.addoption("--kernel-seed", action="store_true")
"""
OWN_TEST = """
def test_own(pytestconfig):
    print("their kernel is", pytestconfig.getoption("--kernel"), pytestconfig.getoption("--kernel-seed"))
"""
QUICK = ("--kernel-budget", "1", "-k", "forward_error-float16 or test_own", "-v", "-s")


@pytest.mark.parametrize(
    ("attributes", "value"),
    [("", "5"), ("type=int", "5"), ("action='store_true'", None), ("dest='kernels'", "5")],
)
def test_an_option_of_the_repository_s_own_conftest_stays_its_own(attributes, value, suite, pytester):
    pytester.makeconftest(TAKEN.format(attributes=attributes))
    pytester.makepyfile(test_own=OWN_TEST)
    without = suite("-s").stdout.str()
    assert "1 passed" in without
    theirs = suite("-s", *(("--kernel", value) if value else ("--kernel",)), "--kernel-seed").stdout.str()
    assert f"their kernel is {value or True} True" in theirs
    assert "1 passed" in theirs
    ours = suite("--norm-kernel", "kernel.py", "--norm-kernel-seed", "3", *QUICK).stdout.str()
    assert "good-forward_error-float16 PASSED" in ours
    assert "test_own" not in ours


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_an_option_of_another_plugin_stays_its_own_whichever_is_loaded_first(first, suite, pytester):
    pytester.makepyfile(other=TAKEN.format(attributes=""), test_own=OWN_TEST)
    pytester.syspathinsert()
    plugins = ["-p", "verifier.commands.pytest_plugin", "-p", "other"]
    order = plugins if first == "ours" else plugins[2:] + plugins[:2]
    without_entry_point = ("-p", "no:norm-verifier", "-p", "no:cacheprovider")
    theirs = pytester.runpytest_inprocess(*without_entry_point, *order, "-s", "--kernel", "5").stdout.str()
    assert "their kernel is 5 False" in theirs
    ours = pytester.runpytest_inprocess(
        *without_entry_point, *order, "--norm-kernel", "kernel.py", *QUICK
    ).stdout.str()
    assert "good-forward_error-float16 PASSED" in ours


def test_where_the_kernel_lies_does_not_decide_which_conftest_is_loaded(suite, pytester, kernel_file):
    kernel_file(KERNELS, folder=pytester.path / "far", name="away.py")
    (pytester.path / "far" / "conftest.py").write_text("raise RuntimeError('loaded for nothing')")
    pytester.makeconftest("def pytest_configure(config): print('the conftest of this folder')")
    text = suite("--kernel", "far/away.py", *QUICK).stdout.str()
    assert "the conftest of this folder" in text
    assert "loaded for nothing" not in text
    assert "good-forward_error-float16 PASSED" in text


def test_the_help_shows_both_names_of_an_option_or_the_one_that_is_left(suite, pytester):
    text = suite("--help").stdout.str()
    assert "--kernel=FILE" in text
    assert "--norm-kernel=FILE" in text
    pytester.makeconftest(TAKEN.format(attributes="help='theirs'"))
    text = suite("--help").stdout.str()
    assert "--kernel=FILE" not in text
    assert "--norm-kernel=FILE" in text


def test_conformance_tests_save_the_case_and_say_how_to_replay_it_without_a_traceback(
    suite, pytester, capsys
):
    pytester.makepyfile(
        test_mine="""
        from pathlib import Path
        from verifier import conformance_tests, load

        (wrong,) = (s for s in load(Path(__file__).with_name("kernel.py")).subjects if s.name == "wrong")
        test_wrong = conformance_tests(wrong, budget="4")
        """
    )
    text = suite("test_mine.py", "-k", "forward_error").stdout.str()
    (saved,) = (pytester.path / "norm-verifier-findings").glob("wrong-forward_error-*.json")
    assert f"replay       norm-verifier replay {saved}" in text
    assert "assert_conforms" not in text
    assert "examine_job" not in text
    assert "conformance.py" not in text


def test_workers_of_xdist_collect_the_same_tests_in_the_same_order(pytester, kernel_file, monkeypatch):
    """Two workers that disagree end the run with an error of xdist's own."""
    pytest.importorskip("xdist")
    from pathlib import Path

    monkeypatch.setenv("PYTHONPATH", str(Path(pytest_plugin.__file__).parents[2]))
    kernel_file(KERNELS, folder=pytester.path)
    plugin = ["-p", "verifier.commands.pytest_plugin"] if _plugins(pytester) else []
    result = pytester.runpytest_subprocess(
        *plugin, "-n", "2", "--kernel", "kernel.py", "--kernel-budget", "1", "-k", "good-gradient", "-v"
    )
    result.assert_outcomes(skipped=2)
    assert "Different tests were collected" not in result.stdout.str()


def test_pyproject_chooses_tests_and_requires_reach(suite, pytester):
    settings = 'dtypes = ["float32"]\nchecks = ["finite"]\nsubjects = ["good"]\nbudget = "1"\nreach = 1.0\n'
    pytester.makefile(".toml", pyproject=f"[tool.norm-verifier]\n{settings}")
    chosen = [name.split("::")[-1] for name in ids_of(suite("--kernel", "kernel.py", "--collect-only", "-q"))]
    assert chosen == ["good-finite-float32", "good-reach"]
    suite("--kernel", "kernel.py").assert_outcomes(passed=2)
    alone = suite("--kernel", "kernel.py", "-k", "reach")
    alone.assert_outcomes(failed=1, deselected=1)
    alone.stdout.fnmatch_lines(["*good: reach=1 is required, and no test ran it"])


def test_a_wrong_table_in_pyproject_stops_only_what_reads_it(suite, pytester):
    pytester.makefile(".toml", pyproject="[tool.norm-verifier]\nbeauty = 1\n")
    pytester.makepyfile(test_own="def test_own(): pass")
    result = suite("--kernel", "kernel.py")
    result.stderr.fnmatch_lines(["*has no key 'beauty'*"])
    suite().assert_outcomes(passed=1)

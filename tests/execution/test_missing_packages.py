"""A package that is not installed here is no fault of the subject; a name that its own modules lack is."""

import importlib
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from types import SimpleNamespace

import pytest

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.rules import line_verdict
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner, call_subject, missing_packages
from verifier.execution.missing_packages import missing_package
from verifier.ops import op
from verifier.records.observation import Aftermath
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load_subject

KERNELS = """
import sys, types

sys.modules["of_mine"] = types.ModuleType("of_mine")
in_numpy = {"__name__": "numpy.norms"}
exec("def norm():\\n    from numpy import nothing_such", in_numpy)

@subject(**DECLARED)
def lacks_a_package(input, weight=None, bias=None, eps=1e-5):
    import not_installed.of_its_kernels
    return right(input, weight, bias, eps)

@subject(**{**DECLARED, "differentiable": True})
def lacks_it_in_backward(input, weight=None, bias=None, eps=1e-5):
    out = right(input, weight, bias, eps)
    def hook(gradient):
        import not_installed
    out.register_hook(hook)
    return out

@subject(**DECLARED)
def of_another_version(input, weight=None, bias=None, eps=1e-5):
    from numpy import what_a_later_one_has
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def asks_for_a_version(input, weight=None, bias=None, eps=1e-5):
    from importlib.metadata import version
    version("not-installed")
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def says_so_itself(input, weight=None, bias=None, eps=1e-5):
    raise ImportError("this norm needs the package of its kernels")

@subject(**DECLARED)
def hands_it_on(input, weight=None, bias=None, eps=1e-5):
    try:
        import not_installed
    except ImportError as error:
        raise ImportError("could not import the norms") from error

@subject(**DECLARED)
def misspells_its_own(input, weight=None, bias=None, eps=1e-5):
    from of_mine import layer_nrm
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def of_a_broken_package(input, weight=None, bias=None, eps=1e-5):
    in_numpy["norm"]()
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def lacks_it_for_wide_rows(input, weight=None, bias=None, eps=1e-5):
    if input.shape[-1] > 100:
        import not_installed
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def does_without(input, weight=None, bias=None, eps=1e-5):
    try:
        import not_installed
    except ImportError:
        pass
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def refuses_without_it(input, weight=None, bias=None, eps=1e-5):
    try:
        import not_installed
    except ImportError as error:
        raise RuntimeError("install not_installed for the fused norm") from error
"""


@pytest.fixture(scope="module")
def child():
    with Runner("eager", case_seconds=20.0) as runner:
        yield runner


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


@pytest.mark.parametrize(
    ("name", "status", "said"),
    [
        ("lacks_a_package", "undecided", "(not_installed is not installed here)"),
        ("lacks_it_in_backward", "undecided", "(not_installed is not installed here)"),
        ("of_another_version", "undecided", "what_a_later_one_has' from 'numpy'"),
        ("asks_for_a_version", "undecided", "(not-installed is not installed here)"),
        ("says_so_itself", "undecided", "this norm needs the package of its kernels"),
        ("hands_it_on", "undecided", "(not_installed is not installed here)"),
        ("misspells_its_own", "crashed", "cannot import name 'layer_nrm' from 'of_mine'"),
        ("of_a_broken_package", "crashed", "cannot import name 'nothing_such' from 'numpy'"),
        ("refuses_without_it", "refused", "RuntimeError: install not_installed for the fused norm"),
        ("does_without", "ok", ""),
    ],
)
def test_an_import_that_fails_is_the_subjects_fault_where_it_is_of_its_own(
    name, status, said, child, subjects
):
    subject = subjects[name]
    backwards = name.endswith("backward")
    case = build(op("layer_norm"), subject, "float32", Recipe(rows=2, columns=3), gradients=backwards)
    seen = child.run(subject, case, gradients=backwards)
    assert seen.status == status
    assert said in seen.message


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("lacks_a_package", Verdict.UNDECIDED),
        ("lacks_it_for_wide_rows", Verdict.UNDECIDED),
        ("misspells_its_own", Verdict.CRASH),
        ("does_without", Verdict.PASS),
    ],
)
def test_a_line_of_an_audit_is_undecided_without_the_package(name, verdict, child, subjects):
    line = Examination(
        subject=subjects[name],
        check_name="forward_error",
        dtype="float32",
        runner=child,
        budget=Budget(cases=12, findings=1),
    ).run()
    assert line_verdict(line) is verdict
    assert bool(line.findings) is (verdict is Verdict.CRASH)


def raised(source, file):
    """Return what code of that file raises."""
    try:
        exec(compile(source, str(file), "exec"), {"__name__": "norm_verifier_kernel_files.of_a_test"})
    except Exception as error:
        return error
    raise AssertionError(source)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a package of its own and an environment inside, both of which are found."""
    own, installed = tmp_path / "own_norms", tmp_path / ".venv" / "lib" / "site-packages"
    for folder in (own, installed / "other_norms", installed / "other_norms-2.1.dist-info"):
        folder.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    for file in (own / "__init__.py", own / "helpers.py", installed / "other_norms" / "__init__.py"):
        file.touch()
    (own / f"_broken{EXTENSION_SUFFIXES[0]}").touch()
    (installed / "other_norms-2.1.dist-info" / "METADATA").write_text("Name: other-norms\nVersion: 2.1\n")
    (installed / "other_norms-2.1.dist-info" / "top_level.txt").write_text("other_norms\n")
    for folder in (tmp_path, installed):
        monkeypatch.syspath_prepend(str(folder))
    missing_packages._distributions.cache_clear()
    yield tmp_path
    missing_packages._distributions.cache_clear()
    for name in [one for one in sys.modules if one.partition(".")[0] in {"own_norms", "other_norms"}]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    ("source", "own", "elsewhere"),
    [
        ("from own_norms.helpers import misspelt", "", ""),
        ("import own_norms.helprs", "", ""),
        ("from own_norms import _broken", "", "(an extension that cannot be loaded here)"),
        ("from other_norms import of_a_later_one", *["(other-norms 2.1 is what is installed here)"] * 2),
        ("import other_norms.of_a_later_one", *["(other-norms 2.1 is what is installed here)"] * 2),
    ],
)
def test_what_lies_in_the_repository_of_what_imports_it_is_its_own(
    source, own, elsewhere, repository, tmp_path_factory
):
    for file, said in (
        (repository / "own_norms" / "kernel.py", own),
        (tmp_path_factory.mktemp("apart") / "kernel.py", elsewhere),
    ):
        told = missing_package(raised(source, file))
        assert told.endswith(said) if said else told == ""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("from importlib.metadata import PackageNotFoundError as E; raise E", "PackageNotFoundError"),
        ("raise ImportError('x', name=5)", "ImportError: x"),
        ("try:\n import not_here\nexcept ImportError as e:\n raise IndexError('own') from e", ""),
        (
            "try:\n import not_here\nexcept ImportError as e:\n raise ImportError('x', name='numpy') from e",
            "(not_here is not installed here)",
        ),
        ("import beside_it", ""),
        ("{}[1]", ""),
    ],
)
def test_odd_errors_are_told_or_left(source, said, tmp_path):
    (tmp_path / "beside_it.py").touch()
    told = missing_package(raised(source, tmp_path / "kernel.py"))
    assert said in told
    assert bool(told) is bool(said)


def test_what_is_left_of_a_package_has_no_version(monkeypatch):
    monkeypatch.setattr(missing_packages, "_distributions", lambda: {"numpy": [None, "not-there"]})
    assert missing_package(raised("from numpy import nothing_such", "/kernel.py")) == ""


@pytest.mark.parametrize(("died", "status"), [(True, "crashed"), (False, "undecided")])
def test_a_process_that_is_lost_is_lost_whatever_fails_to_be_imported_then(died, status):
    backend = SimpleNamespace(
        failed=lambda: None,
        lacks=lambda _: None,
        launches=lambda: 1,
        aftermath=lambda _: Aftermath(died=died),
    )
    seen = call_subject.failure(raised("import not_here", "/kernel.py"), backend)
    assert (seen.status, seen.aftermath.died, seen.aftermath.not_imported) == (status, died, not died)


@pytest.mark.parametrize(
    ("stem", "imported", "status"),
    [("fused_norms", "fused_norms", "undecided"), ("kernel", "weights_of_it", "ok")],
)
def test_a_module_beside_the_file_is_found_when_a_call_imports_it_and_the_file_itself_is_none(
    stem, imported, status, child, tmp_path
):
    (tmp_path / "weights_of_it.py").write_text("ONE = 1.0\n")
    (tmp_path / f"{stem}.py").write_text(
        "from verifier import subject\n"
        "@subject(op='softmax', language='torch', dtypes=('float32',))\n"
        "def scaled(input, dim=-1):\n"
        f"    import {imported} as weights\n"
        "    return input.softmax(dim) * weights.ONE\n"
    )
    subject = load_subject(tmp_path / f"{stem}.py", "scaled")
    case = build(op("softmax"), subject, "float32", Recipe(rows=2, columns=3), gradients=False)
    assert child.run(subject, case).status == status
    assert (str(tmp_path) in sys.path) is (status == "ok")

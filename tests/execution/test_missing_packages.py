"""A package that is not installed here is no fault of the subject; a name that its own modules lack is."""

import pytest

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.rules import line_verdict
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.verdict import Verdict

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

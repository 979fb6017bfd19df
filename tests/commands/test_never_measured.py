"""What is required of a subject of which nothing was found out is not met; nothing compared is not alike."""

import pytest
from audited_kernels import KERNELS, QUICK

from verifier.audit.reach_of_subjects import reach_of_lines
from verifier.records.reach import Reach
from verifier.records.verdict import Line

HALF = """
@subject(**{**DECLARED, "dtypes": ("float16",)})
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


def test_each_demand_on_a_subject_that_no_backend_runs_is_not_met(command, kernel_file):
    asked = ("--backend", "machine", "--release", "--require", "reach=0.5,ulp=1,certificate")
    status, out, _ = command("audit", kernel_file(KERNELS), *QUICK, "--subject", "good", *asked)
    assert status == 1
    why = "backend machine does not run subjects in torch (that is for eager)"
    assert f"not met: good: reach=0.5 is required, and nothing is known of it: {why}" in out
    assert f"not met: good  float32: ulp=1 is required, and nothing was measured: {why}" in out
    assert f"not met: good  float32: a certificate is required, and none could be asked for: {why}" in out


def test_what_ran_of_one_file_did_not_run_of_another_of_the_same_name(kernel_file):
    paths = [str(kernel_file(HALF, folder=kernel_file("").parent / name)) for name in ("old", "new")]
    names = {
        "subject": "good",
        "check": "forward_error",
        "dtype": "float16",
        "backend": "eager",
        "variance": "",
    }
    ran = Line(**names, path=paths[0], reach=Reach(recorded=frozenset({"lines"})))
    found = reach_of_lines([ran, Line(**names, path=paths[1])], [(path, "good") for path in paths])
    assert [one.path for one in found] == [paths[0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "good and good have no dtype in common: nothing to compare"),
        (("--subject", "goood"), "no subject 'goood' (did you mean good?)"),
    ],
)
def test_kernels_of_which_nothing_can_be_compared_are_not_alike(command, kernel_file, options, words):
    whole, half = kernel_file(KERNELS), kernel_file(HALF, name="half.py")
    status, out, error = command("compare", whole, half, *(options or ("--subject", "good")))
    assert (status, out) == (2, "")
    assert words in error

"""Specifications with logarithms: compiled kernels are followed through them, in every arithmetic."""

from itertools import product
from pathlib import Path

import pytest
from checks_support import machine, outcomes_of

from verifier import load
from verifier.records.verdict import Verdict

pytest.importorskip("triton", reason="the kernels are Triton's; Triton is not installed")

SOURCE = Path(__file__).with_name("own_logarithms.py")
CHECKS = ("formula", "gradcheck", "running_bound", "influence")


def verdicts(name, check, dtype, architecture=90):
    """Return the verdicts on the first cases of a check's plan."""
    (subject,) = (s for s in load(SOURCE).subjects if s.name == name)
    with machine(architecture=architecture) as place:
        found = outcomes_of(subject, check, dtype, place, 2)
    assert found
    return {o.verdict for o in found}


DTYPES, ARCHITECTURES = ("float16", "bfloat16", "float32"), (80, 90, 100)
EITHER_BASE = [
    (name, check, dtype, ARCHITECTURES[(n + c + d) % 3])
    for n, name in enumerate(("natural", "binary"))
    for c, check in enumerate(CHECKS)
    for d, dtype in enumerate(DTYPES)
]
"""Each base in each check in each dtype; the architectures take turns, so that each meets each of them."""


def test_every_architecture_meets_every_base_check_and_dtype():
    for place, words in enumerate((("natural", "binary"), CHECKS, DTYPES)):
        assert {(case[place], case[3]) for case in EITHER_BASE} == set(product(words, ARCHITECTURES))


@pytest.mark.parametrize(("name", "check", "dtype", "architecture"), EITHER_BASE)
def test_the_logarithm_of_a_sum_is_followed_in_either_base(name, check, dtype, architecture):
    assert verdicts(name, check, dtype, architecture) == {Verdict.PASS}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_sum_that_is_slightly_wrong_is_found(dtype):
    """By a factor that may be a rounding, so that `formula` decides nothing."""
    for check in ("gradcheck", "running_bound"):
        assert Verdict.FAIL in verdicts("wrong", check, dtype)
    assert Verdict.UNDECIDED in verdicts("wrong", "formula", dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_logarithm_of_every_element_has_no_field_and_two_proofs(dtype):
    assert Verdict.UNDECIDED in verdicts("every", "formula", dtype)
    for check in CHECKS[1:]:
        assert verdicts("every", check, dtype) == {Verdict.PASS}

"""Specifications with logarithms: compiled kernels are followed through them, in every arithmetic."""

from itertools import combinations, product
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
BASES = ("natural", "binary")
EITHER_BASE = [
    (BASES[(c + a) % 2], check, DTYPES[(c + a) % 3], architecture)
    for c, check in enumerate(CHECKS)
    for a, architecture in enumerate(ARCHITECTURES)
]
"""Each check on each architecture; bases and dtypes take turns, so that any two of these meet."""


def test_every_two_of_base_check_dtype_and_architecture_meet():
    for one, other in combinations(range(4), 2):
        words = (BASES, CHECKS, DTYPES, ARCHITECTURES)
        assert {(case[one], case[other]) for case in EITHER_BASE} == set(product(words[one], words[other]))


@pytest.mark.parametrize(("name", "check", "dtype", "architecture"), EITHER_BASE)
def test_the_logarithm_of_a_sum_is_followed_in_either_base(name, check, dtype, architecture):
    assert verdicts(name, check, dtype, architecture) == {Verdict.PASS}


def test_a_sum_that_is_slightly_wrong_is_found():
    """By a factor that may be a rounding, so that `formula` decides nothing."""
    for check in ("gradcheck", "running_bound"):
        assert Verdict.FAIL in verdicts("wrong", check, "float16")
    assert Verdict.UNDECIDED in verdicts("wrong", "formula", "float16")


def test_a_logarithm_of_every_element_has_no_field_and_two_proofs():
    assert Verdict.UNDECIDED in verdicts("every", "formula", "float32")
    for check in CHECKS[1:]:
        assert verdicts("every", check, "float32") == {Verdict.PASS}

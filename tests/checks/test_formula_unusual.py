"""The check `formula` on right kernels in an unusual form, none of which is a finding, and on no result."""

import importlib.util
from pathlib import Path

import pytest
from checks_support import machine, outcomes_of

from verifier import load
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernels are Triton's, which is not installed"
)

SOURCE = Path(__file__).with_name("unusual_kernels.py")


def judged(name, check="formula", dtype="float32", count=1, **changes):
    """Return the outcomes of one of the kernels, but for what is only noted."""
    (subject,) = (s for s in load(SOURCE).subjects if s.name == name)
    with machine() as place:
        found = outcomes_of(subject, check, dtype, place, count, **changes)
    return [o for o in found if o.verdict is not Verdict.SKIPPED]


def test_functions_that_no_field_has_decide_nothing_and_are_named():
    (outcome,) = judged("root_by_logarithm")
    assert outcome.verdict is Verdict.UNDECIDED
    assert "(ex2, log2)" in outcome.message
    assert outcome.doubtful


def test_a_sigmoid_may_be_made_of_a_tangent_and_not_of_half_of_another():
    assert {o.verdict for o in judged("sigmoid_by_tangent")} == {Verdict.PASS}
    assert {o.verdict for o in judged("sigmoid_by_wrong_tangent")} == {Verdict.FAIL}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["shares_of_factors", "shares_of_doubled_factors", "welford_by_a_table"])
def test_a_float_next_to_one_over_k_is_that_fraction(name, dtype):
    (outcome,) = judged(name, dtype=dtype, shapes=((3, 33),))
    assert outcome.verdict is Verdict.PASS
    assert outcome.decided == 99


@pytest.mark.parametrize("name", ["shares_of_one_column_more", "shares_an_ulp_beside"])
def test_another_fraction_and_a_slip_beside_one_differ(name):
    found = {o.verdict for o in judged(name, shapes=((3, 33),))}
    assert found == {Verdict.FAIL if name == "shares_of_one_column_more" else Verdict.UNDECIDED}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["masked_with_largest_half", "masked_with_1e5", "masked_with_1e30"])
def test_exponentials_of_finite_masks_are_nothing(name, dtype):
    (outcome,) = judged(name, dtype=dtype, shapes=((4, 33),))
    assert outcome.verdict is Verdict.PASS
    assert outcome.decided == 132


def test_a_mask_that_does_not_vanish_is_found():
    (outcome,) = judged("masked_with_too_large_a_number", shapes=((4, 33),))
    assert (outcome.verdict, outcome.wrong) == (Verdict.FAIL, 132)


def test_results_that_vanish_although_no_mask_did_decide_nothing():
    (outcome,) = judged("vanishes", shapes=((4, 33),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "so small a number" in outcome.message


def test_a_result_that_is_neither_a_value_nor_an_exponent_is_not_decided():
    (outcome,) = judged("terms_of_entropy", shapes=((4, 33),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "output mixes logarithms and exponentials" in outcome.message


MISSHAPEN = ["returns_nothing", "returns_no_columns", "returns_one_column", "returns_integers"]


@pytest.mark.parametrize("check", ["formula", "influence"])
@pytest.mark.parametrize("name", MISSHAPEN)
def test_what_is_no_result_is_no_pass(check, name):
    (outcome,) = judged(name, check, shapes=((4, 33),))
    assert (outcome.verdict, outcome.output) == (Verdict.FAIL, "output")
    assert "expected" in outcome.message


def test_statistics_of_another_number_of_rows_are_a_finding():
    outcomes = judged("returns_two_means", shapes=((4, 33),))
    assert Verdict.FAIL in {o.verdict for o in outcomes}
    assert {o.output for o in outcomes} == {"mean"}


@pytest.mark.parametrize("check", ["formula", "influence"])
def test_nothing_compared_is_no_pass(check, monkeypatch):
    """A right kernel whose results nobody demands and whose output has no elements of the field."""
    from verifier.checks import formula, influence

    for module in (formula, influence):
        monkeypatch.setattr(module, "demanded", lambda session: ())
    (outcome,) = judged("returns_nothing", check, shapes=((4, 33),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "no result could be compared" in outcome.message


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_softmax_may_divide_by_its_sum_through_the_logarithm(dtype):
    (outcome,) = judged("softmax_by_logarithm", dtype=dtype, shapes=((40, 33),))
    assert outcome.verdict is Verdict.PASS
    assert outcome.decided == 1320


def test_signs_that_a_logarithm_loses_are_no_finding():
    (outcome,) = judged("and_softmax_by_logarithm", shapes=((40, 33),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "only the negative is a power of 2" in outcome.message


def test_a_result_that_is_right_in_one_prime_of_two_is_no_finding():
    (outcome,) = judged("rstd_by_exponential", shapes=((4, 33),))
    assert outcome.verdict is Verdict.UNDECIDED
    assert "rstd was computed by exponentials" in outcome.message
    assert outcome.doubtful


def test_a_result_that_is_wrong_in_both_primes_is_found():
    found = judged("doubled_rstd_by_exponential", shapes=((4, 33),))
    assert {(o.verdict, o.output) for o in found} == {(Verdict.FAIL, "output"), (Verdict.FAIL, "rstd")}

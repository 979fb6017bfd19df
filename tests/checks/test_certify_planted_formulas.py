"""Wrong formulas, most of them of backward passes alone, are refused, and by what is asked of them alone."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import machine_runner
from test_formula import LOG_MUTANTS, MUTANTS, case_of, planted, planted_log_softmax

from verifier.checks.support.certificate_at_shape import certified
from verifier.records.certificate import Certificate, Refusal

ROWS, COLUMNS = 3, 12
DECLARED = "the code is the declared computation"
EQUIVALENT = "mask that nothing needs"
"""The one that is no fault: what it leaves unmasked is multiplied by a gradient of 0."""
ELSEWHERE = {"a factor next to 1", "logarithm to base 2"}
"""Those whose logarithm is no function of the library: its bits are split by an operation without a rule."""
OF_THE_FORWARD_PASS = {"output", "mean", "rstd"}


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as opened:
        yield opened


def asked(runner, subject, *, gradients):
    case = case_of(subject, "float16", ROWS, COLUMNS)
    return certified(subject, case, runner=runner, gradients=gradients)


@pytest.mark.parametrize("name", [name for name in MUTANTS if name != EQUIVALENT])
def test_a_wrong_formula_is_refused_with_gradients(runner, name):
    found = asked(runner, planted(MUTANTS[name][0]), gradients=True)
    assert isinstance(found, Refusal), found
    assert found.stage == DECLARED


@pytest.mark.parametrize("name", [name for name in MUTANTS if name != EQUIVALENT])
def test_without_gradients_it_is_refused_where_a_result_of_the_forward_pass_is_wrong(runner, name):
    """So what is wrong in the backward pass alone is refused for that and for nothing else."""
    changes, wrong = MUTANTS[name]
    found = asked(runner, planted(changes), gradients=False)
    assert isinstance(found, Refusal if wrong & OF_THE_FORWARD_PASS else Certificate), found


def test_the_one_that_is_no_fault_is_certified_with_all_gradients(runner):
    changes, wrong = MUTANTS[EQUIVALENT]
    assert not wrong
    assert [name for name, (_, others) in MUTANTS.items() if not others] == [EQUIVALENT]
    found = asked(runner, planted(changes), gradients=True)
    assert isinstance(found, Certificate), found
    assert {"output", "grad_input", "grad_weight", "grad_bias"} <= {*found.outputs}


@pytest.mark.parametrize("name", LOG_MUTANTS)
def test_a_wrong_formula_of_a_logarithm_is_refused_with_gradients(runner, name):
    found = asked(runner, planted_log_softmax(LOG_MUTANTS[name][0]), gradients=True)
    assert isinstance(found, Refusal), found
    assert (found.stage == DECLARED) == (name not in ELSEWHERE), found

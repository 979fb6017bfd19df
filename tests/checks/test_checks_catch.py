"""Each check catches its faulty kernels, and no earlier check does; none complains of a right kernel."""

from pathlib import Path

import pytest
from checks_support import examination, failures, faulty, machine, outcomes_of, passes, subject_of

from verifier.checks import check
from verifier.verdicts import Verdict

RIGHT = Path(__file__).with_name("right_kernel.py")
EAGER = (
    ("determinism", "sums_in_random_order"),
    ("batch_invariance", "sums_by_number_of_rows"),
    ("saved_statistics", "saved_rstd_without_eps"),
    ("special_values", "nan_becomes_zero"),
    ("special_values", "nan_spreads_to_next_row"),
    ("context", "grad_output_overwritten"),
    ("context", "backward_works_once"),
    ("context", "output_saved_unseen"),
    ("metamorphic", "not_shift_invariant"),
    ("claim", "welford_claimed_textbook_computed"),
    ("gradgradcheck", "wrong_second_derivative"),
    ("gradgradcheck", "second_derivative_missing"),
)
MACHINE = (
    ("synchronization", "lost_updates_triton"),
    ("device", "device_named_triton"),
    ("large_offsets", "offsets_in_32_bits_triton"),
    ("claim", "squares_summed_in_half_triton"),
)
NAMES = sorted({name for name, _ in (*EAGER, *MACHINE)})


@pytest.mark.parametrize(("name", "stem"), EAGER)
def test_a_check_catches_its_faulty_kernel(name, stem):
    assert failures(outcomes_of(faulty(stem), name))


@pytest.mark.parametrize(("name", "stem"), MACHINE)
def test_a_check_catches_its_faulty_kernel_in_the_machine(name, stem):
    with machine() as place:
        assert failures(outcomes_of(faulty(stem), name, place=place, count=3))


def test_every_faulty_kernel_that_a_check_names_is_tested_here():
    named = {(name, stem) for name in NAMES for stem in check(name).CATCHES}
    assert named == {*EAGER, *MACHINE}


# memory sees a gradient that is written over, forward_error an output that no algorithm explains.
ALSO = {
    "grad_output_overwritten": {"memory"},
    "not_shift_invariant": {"forward_error"},
    "welford_claimed_textbook_computed": {"forward_error"},
    "saved_rstd_without_eps": set(),
}


@pytest.mark.parametrize(("name", "stem"), EAGER)
@pytest.mark.parametrize("other", ["forward_error", "gradient", "memory"])
def test_no_basic_check_makes_it_superfluous(name, stem, other):
    subject = faulty(stem)
    needs_backward = other == "gradient" and not subject.differentiable
    if needs_backward or other in ALSO.get(stem, set()):
        return
    assert not failures(outcomes_of(subject, other, hazards=("ordinary",), joint=False, count=6)), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_no_check_complains_of_a_right_kernel(name, dtype):
    subject = subject_of(RIGHT)
    skipped = check(name).skips(subject, examination(subject, name).subject and _op(subject), dtype, "eager")
    if skipped:
        assert name in {"synchronization", "device", "gradgradcheck"}
        return
    count = 3 if name == "large_offsets" else 10
    found = outcomes_of(subject, name, dtype, count=count)
    inside = [o for o in failures(found) if o.verdict is not Verdict.SKIPPED]
    assert not inside, inside[0].message
    assert passes(found)


def _op(subject):
    from verifier.ops import op

    return op(subject.op)

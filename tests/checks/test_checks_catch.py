"""No earlier check sees what a check is for, and none complains of a right kernel; see tests/audit."""

import pytest
from checks_support import SUPPORT, examination, failures, faulty, in_turn, outcomes_of, passes, subject_of

from verifier.checks import check, checks
from verifier.records.verdict import Verdict

RIGHT = SUPPORT / "right_kernel.py"
# Every kernel meets these first (tests/audit), or they have a file of tests to themselves.
ELSEWHERE = {"forward_error", "finite", "gradient", "layouts", "memory"} | {
    "running_bound",
    "formula",
    "gradcheck",
    "influence",
}
NAMES = [name for name in checks() if name not in ELSEWHERE]
EAGER = [
    (name, stem)
    for name in NAMES
    for stem in checks()[name].CATCHES
    if not stem.endswith(("_triton", "_cuda"))
]


# memory sees a gradient that is written over, forward_error an output that no algorithm explains.
ALSO = {
    "grad_output_overwritten": {"memory"},
    "not_shift_invariant": {"forward_error"},
    "welford_claimed_textbook_computed": {"forward_error"},
    "saved_rstd_without_eps": set(),
}


def superfluous():
    """Yield (check, faulty kernel, basic check that must not see it)."""
    for name, stem in EAGER:
        for other in ("forward_error", "gradient", "memory"):
            if other not in ALSO.get(stem, set()) and (other != "gradient" or faulty(stem).differentiable):
                yield name, stem, other


@pytest.mark.parametrize(("name", "stem", "other"), list(superfluous()))
def test_no_basic_check_makes_it_superfluous(name, stem, other):
    assert not failures(outcomes_of(faulty(stem), other, hazards=("ordinary",), joint=False, count=3)), name


def in_a_dtype():
    """Yield each check with a dtype, in turn; those of differences with each, since they skip most."""
    dtypes = ("float32", "float64", "float16")
    for name, dtype in in_turn(NAMES, dtypes):
        yield from ((name, each) for each in (dtypes if name.startswith("grad") else (dtype,)))


@pytest.mark.parametrize(("name", "dtype"), list(in_a_dtype()))
def test_no_check_complains_of_a_right_kernel(name, dtype):
    subject = subject_of(RIGHT)
    skipped = check(name).skips(subject, examination(subject, name).subject and _op(subject), dtype, "eager")
    if skipped:
        pytest.skip(skipped)
    count = 3 if name == "large_offsets" else 5
    found = outcomes_of(subject, name, dtype, count=count)
    inside = [o for o in failures(found) if o.verdict is not Verdict.SKIPPED]
    assert not inside, inside[0].message
    assert passes(found)


def _op(subject):
    from verifier.ops import op

    return op(subject.op)

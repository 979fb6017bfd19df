"""Every check on every built-in subject, as `norm-verifier audit` runs them: one test per line of it.

forward_error and gradient run on all dtypes, the other checks on one, all on few cases, of which new shapes
are compiled; NORM_VERIFIER_BUDGET widens the search. What a check catches is asked of kernels with planted
bugs, on as many cases as that takes.
Checks that map much memory are marked `heavy`; with `--dist loadgroup` one worker runs them in turn.
"""

import os
from itertools import chain

import pytest

from verifier.checks import checks
from verifier.commands.conformance import assert_conforms, examine_job, parameters
from verifier.subjects.load_file import builtin_files, load_subjects

BUDGET = os.environ.get("NORM_VERIFIER_BUDGET")
CASES = 2
"""Of most checks: one from the fixed list, one drawn."""
FROM_A_DOCUMENT = 3
"""Of forward_error and gradient of a published kernel, some of whose cases show a known defect."""
MANY_CALLS = frozenset(
    [
        "batch_invariance",
        "determinism",
        "gradcheck",
        "huge_extents",
        "influence",
        "layouts",
        "memory",
        "modes",
        "partial_gradients",
        "repeated_calls",
    ]
)
"""Checks that call a kernel up to dozens of times for a case: one is enough of one that is right."""
DECIDED = {"running_bound": 10, "forward_error": FROM_A_DOCUMENT, "gradient": FROM_A_DOCUMENT}
"""Cases of a published kernel by check where fewer leave one undecided, for half lets it err much."""
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))
JOBS = parameters(SUBJECTS, all_dtypes=BUDGET is not None)


def budget_of(job):
    """Return the budget of a line, a word or a number of cases."""
    if BUDGET is not None:
        return BUDGET
    if "published" in job.subject:
        return str(DECIDED.get(job.check, CASES))
    return str(1 if job.check in MANY_CALLS else CASES)


def marks(check_name):
    heavy = getattr(checks()[check_name], "HEAVY", False)
    return [pytest.mark.heavy, pytest.mark.xdist_group("heavy")] if heavy else []


@pytest.mark.parametrize("job", [pytest.param(job, id=name, marks=marks(job.check)) for name, job in JOBS])
def test_subject_meets_the_check(job):
    assert_conforms(examine_job(job, budget=budget_of(job)))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_a_subject_is_named_after_its_language(subject):
    assert subject.name == subject.path.stem
    assert subject.name.endswith(f"_{subject.language}")


def test_what_maps_much_memory_runs_in_turn():
    heavy = {name for name, module in checks().items() if getattr(module, "HEAVY", False)}
    assert heavy == {"huge_extents", "large_offsets"}
    for name in heavy:
        assert [mark.name for mark in marks(name)] == ["heavy", "xdist_group"]
    assert not marks("forward_error")

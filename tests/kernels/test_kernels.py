"""The checks on the built-in subjects, as `norm-verifier audit` runs them: one test per line of it.

forward_error and gradient run in all dtypes, the other checks in one, all on few cases, of which new shapes
are compiled. Subjects of one family share most of their code: each check runs in each of its dtypes on one of
the family, in turn; forward_error and gradient run on each subject in some dtype.
NORM_VERIFIER_BUDGET widens the search, and runs every check on every subject, as the audit of the built-in
kernels does. What a check catches is asked of kernels with planted bugs, on as many cases as that takes.
Checks that map much memory are marked `heavy`; with `--dist loadgroup` one worker runs them in turn.
"""

import os
from collections import defaultdict
from itertools import chain

import pytest
from families import family

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
MASKED = {"metamorphic": 8, "gradcheck": 6}
"""Cases of a masked softmax by check of which the first may decide nothing: a row without an element has no
bound, and of one sample no rows may be exchanged."""
ON_EACH = frozenset(["forward_error", "gradient"])
"""Checks that run on every subject, whatever its family."""
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))


def in_turn(jobs):
    """Return the jobs of which each check comes in each dtype once in a family, on its subjects in turn.

    Checks that run on each subject come once on those that had no turn, too.
    """
    families = {one.name: family(one) for one in SUBJECTS}
    alike, own = defaultdict(list), defaultdict(list)
    for name, job in jobs:
        every_dtype = getattr(checks()[job.check], "EVERY_DTYPE", False)
        alike[families[job.subject], job.check, job.dtype if every_dtype else ""].append(name)
        own[job.subject, job.check].append(name)
    taken = {names[turn % len(names)] for turn, names in enumerate(alike.values())}
    for turn, ((_, check_name), names) in enumerate(own.items()):
        if check_name in ON_EACH and not taken.intersection(names):
            taken.add(names[turn % len(names)])
    return [(name, job) for name, job in jobs if name in taken]


JOBS = parameters(SUBJECTS, all_dtypes=True) if BUDGET else in_turn(parameters(SUBJECTS, all_dtypes=False))


def budget_of(job):
    """Return the budget of a line, a word or a number of cases."""
    if BUDGET is not None:
        return BUDGET
    if job.check in MASKED and job.subject.startswith(("masked_", "causal_")):
        return str(MASKED[job.check])
    if "published" in job.subject:
        return str(DECIDED.get(job.check, CASES))
    return str(1 if job.check in MANY_CALLS else CASES)


def marks(check_name):
    heavy = getattr(checks()[check_name], "HEAVY", False)
    return [pytest.mark.heavy, pytest.mark.xdist_group("heavy")] if heavy else []


@pytest.mark.parametrize("job", [pytest.param(job, id=name, marks=marks(job.check)) for name, job in JOBS])
def test_subject_meets_the_check(job):
    assert_conforms(examine_job(job, budget=budget_of(job)))


def test_every_check_runs_on_every_family():
    everywhere = {(family(one), check_name) for one in SUBJECTS for check_name in checks()}
    by_name = {one.name: family(one) for one in SUBJECTS}
    assert {(by_name[job.subject], job.check) for _, job in JOBS} == everywhere
    assert {(job.subject, job.check) for _, job in JOBS} >= {(o.name, c) for o in SUBJECTS for c in ON_EACH}
    lines = [job for _, job in parameters(SUBJECTS, all_dtypes=False) if job.check == "forward_error"]
    run = {(by_name[job.subject], job.check, job.dtype) for _, job in JOBS}
    assert run >= {(by_name[job.subject], job.check, job.dtype) for job in lines}


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

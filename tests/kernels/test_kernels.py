"""Every check on every built-in subject, as `norm-verifier audit` runs them: one test per line of it.

forward_error and gradient run on all dtypes, the other checks on one, all on few cases, of which new shapes
are compiled; NORM_VERIFIER_BUDGET widens the search.
Checks that map much memory are marked `heavy`; with `--dist loadgroup` one worker runs them in turn.
"""

import os
from itertools import chain

import pytest

from verifier.checks import checks
from verifier.commands.conformance import assert_conforms, examine_job, parameters
from verifier.subjects.load_file import builtin_files, load_subjects

CASES = os.environ.get("NORM_VERIFIER_BUDGET", "3")
FEW = os.environ.get("NORM_VERIFIER_BUDGET", "2")
"""Cases of checks other than forward_error and gradient."""
DECIDED = {"running_bound": "10"}
"""Cases of a published kernel by check where fewer leave one undecided, for half lets it err much."""
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))
JOBS = parameters(SUBJECTS, all_dtypes="NORM_VERIFIER_BUDGET" in os.environ)


def marks(check_name):
    heavy = getattr(checks()[check_name], "HEAVY", False)
    return [pytest.mark.heavy, pytest.mark.xdist_group("heavy")] if heavy else []


@pytest.mark.parametrize("job", [pytest.param(job, id=name, marks=marks(job.check)) for name, job in JOBS])
def test_subject_meets_the_check(job):
    usual = CASES if job.check in {"forward_error", "gradient"} else FEW
    few = "NORM_VERIFIER_BUDGET" not in os.environ and "published" in job.subject
    assert_conforms(examine_job(job, budget=DECIDED.get(job.check, usual) if few else usual))


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

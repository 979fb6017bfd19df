"""Every check on every built-in subject, as `norm-verifier audit` runs them: one test per line of it.

forward_error and gradient run on all dtypes, the other checks on one, all on few cases, of which new shapes
are compiled; NORM_VERIFIER_BUDGET widens the search.
Checks that map much memory are marked `heavy`; with `--dist loadgroup` one worker runs them in turn.
"""

import os
from itertools import chain

import pytest

from verifier.checks import checks
from verifier.conformance import assert_conforms, examine_job, parameters
from verifier.loading import builtin_files, load_subjects

CASES = os.environ.get("NORM_VERIFIER_BUDGET", "6")
DECIDED = {"running_bound": "10"}
"""Cases by check where fewer leave a published kernel undecided, which half precision lets err much."""
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))
JOBS = parameters(SUBJECTS, all_dtypes="NORM_VERIFIER_BUDGET" in os.environ)


def marks(check_name):
    heavy = getattr(checks()[check_name], "HEAVY", False)
    return [pytest.mark.heavy, pytest.mark.xdist_group("heavy")] if heavy else []


@pytest.mark.parametrize("job", [pytest.param(job, id=name, marks=marks(job.check)) for name, job in JOBS])
def test_subject_meets_the_check(job):
    few = "NORM_VERIFIER_BUDGET" not in os.environ
    assert_conforms(examine_job(job, budget=DECIDED.get(job.check, CASES) if few else CASES))


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.name)
def test_a_subject_is_named_after_its_language(subject):
    if subject.language != "torch":
        assert subject.name == subject.path.stem
        assert subject.name.endswith(f"_{subject.language}")


def test_what_maps_much_memory_runs_in_turn():
    heavy = {name for name, module in checks().items() if getattr(module, "HEAVY", False)}
    assert heavy == {"large_offsets"}
    assert [mark.name for mark in marks("large_offsets")] == ["heavy", "xdist_group"]
    assert not marks("forward_error")

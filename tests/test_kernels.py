"""Every check on every built-in subject, as `norm-verifier audit` runs them: one test per line of it.

forward_error and gradient run on all dtypes, the other checks on one; NORM_VERIFIER_BUDGET widens the search.
"""

import os
from itertools import chain

import pytest

from verifier.conformance import assert_conforms, examine_job, parameters
from verifier.loading import builtin_files, load_subjects

CASES = os.environ.get("NORM_VERIFIER_BUDGET", "10")
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))
JOBS = parameters(SUBJECTS, all_dtypes="NORM_VERIFIER_BUDGET" in os.environ)


@pytest.mark.parametrize("job", [job for _, job in JOBS], ids=[name for name, _ in JOBS])
def test_subject_meets_the_check(job):
    assert_conforms(examine_job(job, budget=CASES))

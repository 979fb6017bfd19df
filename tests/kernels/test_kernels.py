"""The checks on the built-in subjects, as `norm-verifier audit` runs them: one test per line of it.

Each subject has a dtype of its own, in which all that runs on it shares its compiled code: forward_error and
gradient, and of the other checks those whose turn it is, for subjects of one family share most of their code
and take turns. The dtypes that a family has besides meet forward_error and gradient with one case.
NORM_VERIFIER_BUDGET widens the search, and runs every check on every subject, as the audit of the built-in
kernels does. What a check catches is asked of kernels with planted bugs, on as many cases as that takes.
Checks that map much memory are marked `heavy`; with `--dist loadgroup` one worker runs them in turn.
"""

import os
from collections import defaultdict
from itertools import chain

import pytest
from families import family

from verifier.audit.run_audit import runs_on
from verifier.checks import checks
from verifier.commands.conformance import assert_conforms, examine_job, parameters
from verifier.ops import op
from verifier.subjects.load_file import builtin_files, load_subjects

BUDGET = os.environ.get("NORM_VERIFIER_BUDGET")
CASES = 1
"""Of most checks: one is enough of a kernel that is right."""
OF_SHAPES = 2
"""Of forward_error and gradient in a subject's own dtype: short rows, and long ones."""
FROM_A_DOCUMENT = 3
"""Of forward_error and gradient of a published kernel, some of whose cases show a known defect."""
DECIDED = {"running_bound": 10, "forward_error": FROM_A_DOCUMENT, "gradient": FROM_A_DOCUMENT}
"""Cases of a published kernel by check where fewer leave one undecided, for half lets it err much."""
MASKED = {"metamorphic": 8, "gradcheck": 6}
"""Cases of a masked softmax by check of which the first may decide nothing: a row without an element has no
bound, and of one sample no rows may be exchanged."""
ON_EACH = frozenset(["forward_error", "gradient"])
"""Checks that run on every subject, whatever its family."""
SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))
FAMILIES = defaultdict(list)
for one in SUBJECTS:
    FAMILIES[family(one)].append(one)


def in_turn():
    """Return which subject meets which check in which dtype, and that of each subject's own dtype."""
    taken, own = set(), {}
    for start, members in enumerate(FAMILIES.values()):
        own |= {one.name: one.dtypes[(start + n) % len(one.dtypes)] for n, one in enumerate(members)}
        besides = {dtype: one.name for one in reversed(members) for dtype in one.dtypes}
        besides |= {own[one.name]: one.name for one in members}
        pairs = {*((one.name, own[one.name]) for one in members), *((o, d) for d, o in besides.items())}
        taken |= {(stem, name, dtype) for stem, dtype in pairs for name in ON_EACH}
        for turn, name in enumerate(sorted(checks().keys() - ON_EACH)):
            one = members[(start + turn) % len(members)]
            taken.add((one.name, name, dtype_of(one, name, own[one.name])))
    return taken, own


def dtype_of(subject, check_name, own):
    """Return the dtype in which a check runs on a subject: its own, if the check takes that as others."""
    usual = [dtype for dtype in subject.dtypes if runs_on(subject, check_name, dtype)]
    place = "eager" if subject.language == "torch" else "machine"
    skips = checks()[check_name].skips
    taken = [dtype for dtype in (own, *usual) if skips(subject, op(subject.op), dtype, place) is None]
    return (taken or usual)[0]


TAKEN, OWN = in_turn()
JOBS = [
    (name, job)
    for name, job in parameters(SUBJECTS)
    if BUDGET or (job.subject, job.check, job.dtype) in TAKEN
]


def budget_of(job):
    """Return the budget of a line, a word or a number of cases."""
    if BUDGET is not None:
        return BUDGET
    if job.check in MASKED and job.subject.startswith(("masked_", "causal_")):
        return str(MASKED[job.check])
    if "published" in job.subject:
        return str(DECIDED.get(job.check, CASES))
    return str(OF_SHAPES if job.check in ON_EACH and job.dtype == OWN[job.subject] else CASES)


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
    assert {(job.subject, job.check, job.dtype) for _, job in JOBS} >= {
        (o.name, c, OWN[o.name]) for o in SUBJECTS for c in ON_EACH
    }
    run = {(by_name[job.subject], job.check, job.dtype) for _, job in JOBS}
    assert run >= {(family(one), name, dtype) for one in SUBJECTS for name in ON_EACH for dtype in one.dtypes}


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

"""Every known defect of a built-in kernel is found by the search itself, and has a witness.

A defect that several checks see is searched by one of them, unless NORM_VERIFIER_BUDGET is set: what others
find of it is replayed from their witnesses by every audit.
"""

import os
from itertools import chain, groupby

import pytest

from verifier.audit import causes, shrink
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.checks import check
from verifier.execution import Runner
from verifier.execution.backends import backend, default_backend
from verifier.ops import op
from verifier.records import witness
from verifier.subjects.load_file import builtin_files, builtin_folder, load_subjects

SUBJECTS = tuple(chain.from_iterable(load_subjects(file) for file in builtin_files()))


def searched(subject):
    """Return the defects of a subject, each with the check of it that is run first, or with every check."""
    defects = sorted(subject.known_defects, key=lambda d: (d.id, check(d.check).ORDER))
    if os.environ.get("NORM_VERIFIER_BUDGET"):
        return defects
    return [next(same) for _, same in groupby(defects, key=lambda d: d.id)]


DEFECTS = [
    pytest.param(subject, defect, id=f"{subject.name}-{defect.check}-{defect.id}")
    for subject in SUBJECTS
    for defect in searched(subject)
]
SEARCH_CASES = 60
MORE_CASES = {"group_norm_torch": 120}
"""Of a subject whose groups come in many shapes, few of which show a defect of large squares."""
FEW_COLUMNS = {"layer_norm_backward_published_thread_per_row_cuda": 64}
"""Columns of the cases that are searched, at most, by subject: there one thread takes a whole row."""


@pytest.fixture(scope="module")
def runners():
    """One warm child per backend."""
    open_runners = {}
    yield open_runners
    for runner in open_runners.values():
        runner.close()


def observable_dtypes(subject, defect, place):
    """The dtypes whose code can show the defect there, to a check that sees it there."""
    the_op, the_check = op(subject.op), check(defect.check)
    return [
        d
        for d in subject.dtypes
        if defect.observable(place, d)
        and backend(place).refuses(subject, d) is None
        and the_check.skips(subject, the_op, d, place) is None
    ]


def place_of(subject, defect):
    """The default backend, or the machine where only that one sees the defect."""
    place, missing = default_backend(subject)
    if place is None:
        pytest.skip(missing)
    places = [name for name in dict.fromkeys((place, "machine")) if backend(name).unavailable() is None]
    seen = next((name for name in places if observable_dtypes(subject, defect, name)), None)
    if seen is None and defect.triton_before is not None:
        pytest.skip("this Triton mends it; test_older_compilers.py finds it in the code of an older one")
    if seen is None:
        pytest.skip(f"not observable on {places}: {defect.backends}")
    return seen


def within(defect, columns):
    """Return which cases are searched: those of the defect, of so many columns at most if it is said."""
    if columns is None:
        return defect.where
    return lambda case: case.columns <= columns and (defect.where is None or defect.where(case))


@pytest.mark.parametrize(("subject", "defect"), DEFECTS)
def test_the_search_finds_the_defect_without_its_witness(subject, defect, runners, monkeypatch):
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", -1.0)  # found is enough: shrinking has tests
    monkeypatch.setattr(causes, "SECONDS", 0.0)  # and so have causes
    place = place_of(subject, defect)
    dtypes = observable_dtypes(subject, defect, place)
    runner = runners.setdefault(place, Runner(place))
    stored = [d for d in dtypes if witness.stored(subject, defect, d) is not None]
    assert stored, (
        f"{subject.name}: no witness for {defect.check}: {defect.reason} (make_witnesses.py makes it)"
    )
    search = Examination(
        subject=subject,
        check_name=defect.check,
        dtype=stored[0],
        runner=runner,
        budget=Budget(cases=MORE_CASES.get(subject.name, SEARCH_CASES), findings=1),
        ignore_known=True,
        only=within(defect, FEW_COLUMNS.get(subject.name)),
    )
    assert search.run().findings, f"{subject.name}: the search does not find: {defect.reason}"


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.known_defects], ids=lambda s: s.name)
def test_witnesses_lie_where_their_defect_is_declared(subject):
    for defect in subject.known_defects:
        for dtype in subject.dtypes:
            path = witness.stored(subject, defect, dtype)
            if path is not None and defect.where is not None:
                case, document = witness.load(path)
                assert document["check"] == defect.check
                assert str(document["failure"]).count("|") == 2, f"{path.name} does not say how it fails"
                assert defect.where(case), f"{path.name} is no case of its defect"


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.known_defects], ids=lambda s: s.name)
def test_no_witness_is_a_case_of_another_defect_of_its_check(subject):
    for defect in subject.known_defects:
        for path in (witness.stored(subject, defect, dtype) for dtype in subject.dtypes):
            if path is None:
                continue
            case, document = witness.load(path)
            others = [
                d for d in subject.known_defects if d.reason != defect.reason and d.check == defect.check
            ]
            shown = [d.reason for d in others if d.where is not None and d.where(case)]
            assert not shown, f"{path.name} may fail for another reason: {shown[0]}"
            stopping = [d for d in subject.known_defects if "*" in d.also and d.reason != defect.reason]
            crashed = document["failure"].startswith(("CRASH", "TIMEOUT"))
            assert not crashed or not any(d.where is not None and d.where(case) for d in stopping), path.name


def test_every_stored_witness_is_one_of_a_declared_defect_and_every_defect_has_a_name():
    files = set((builtin_folder() / "witnesses").iterdir())
    for subject in SUBJECTS:
        if subject.known_defects:
            names = {witness.name_of(d, dtype) for d in subject.known_defects for dtype in subject.dtypes}
            assert all(d.id and d.witness is None for d in subject.known_defects)
            assert set(witness.read(witness.file_of(subject))) <= names
            files.remove(witness.file_of(subject))
    assert not files

"""Shapes that come first: those that the author names, whatever they cost, and what a budget has room for."""

import time

import pytest
from checks_support import KERNELS, examination, subject_of

from verifier import Domain, subject
from verifier.audit import sweep as sweeping
from verifier.audit.budget import STEERED_SECONDS, Budget
from verifier.audit.examination import NEWS_BESIDES
from verifier.audit.request import BUDGETS
from verifier.audit.run_audit import select
from verifier.cases.plan import Plan
from verifier.cases.priced_shape import Reaching
from verifier.cases.steering import steering
from verifier.records.planned_launches import DryRun, Planned

SOFTMAX = subject_of(KERNELS / "softmax_torch.py")
DECLARED = {"op": "softmax", "language": "torch", "dtypes": ("float32",)}


def cases_run(tried, check, **settings):
    """Return rows and columns of the cases that a search runs, in order, and its line."""
    examining = examination(tried, check, "float32", **settings)
    judge, met = examining.judge, []

    def noting(case):
        met.append((case.rows, case.columns))
        return judge(case)

    examining.judge = noting
    return examining.run(), met


@pytest.mark.parametrize(
    ("extents", "words"),
    [
        (5, "extents is 5"),
        ((1, 70000), "extents has 1"),
        (((1, 0),), r"extents has \(1, 0\)"),
        (((1, 2, 3),), r"extents has \(1, 2, 3\)"),
        (((1, 2.0),), r"extents has \(1, 2.0\)"),
        (((True, 2),), "pairs"),
        (((1, 99),), "outside the domain: more than 50 columns"),
    ],
)
def test_extents_that_mean_nothing_are_refused_at_once(extents, words):
    with pytest.raises(ValueError, match=words):
        subject(**DECLARED, domain=Domain(max_columns=50), extents=extents)(swept)


def test_extents_are_kept_as_they_were_declared():
    assert subject(**DECLARED, extents=[[1, 7], (2, 3)])(swept).extents == ((1, 7), (2, 3))


@pytest.mark.parametrize("check", ["forward_error", "gradient", "determinism", "memory"])
def test_shapes_that_the_author_names_are_run_first_in_the_smallest_budget(check):
    named = SOFTMAX.differing(extents=((1, 20001), (5, 77)))
    line, met = cases_run(named, check, budget=Budget(cases=3))
    assert met[:2] == [(1, 20001), (5, 77)]
    assert len(met) >= 3
    assert not line.findings


def test_a_check_takes_its_share_of_a_budget_and_room_for_named_shapes():
    plan = Plan(share=0.4)
    assert [Budget(cases=n).taken_by(plan, named=0).cases for n in (1, 3, 25, 200)] == [1, 2, 10, 80]
    assert Budget(cases=25).taken_by(plan, named=12).cases == 13
    assert Budget(cases=25).taken_by(plan, named=70).cases == 25
    assert Budget(cases=25).taken_by(Plan(share=0.4, most=3), named=12).cases == 3
    taken = Budget(cases=200).taken_by(Plan(share=0.1), named=0)
    assert (taken.cases, taken.size, taken.words) == (20, "standard", "--budget standard")
    assert taken.steered == (6, 6.0)


def test_a_search_that_goes_on_does_not_begin_anew():
    named = SOFTMAX.differing(extents=((1, 20001),))
    _, met = cases_run(named, "forward_error", budget=Budget(cases=2), first=3)
    assert (1, 20001) not in met


def test_a_budget_has_so_many_cases_and_seconds_for_what_is_reached():
    assert [Budget(cases=cases).size for cases in (1, 5, 25, 26, 200, 5000)] == [
        *("smoke", "quick", "quick", "standard", "standard", "deep"),
    ]
    assert Budget(cases=BUDGETS["quick"]).words == "--budget quick"
    assert Budget(cases=24).words == "this budget"
    assert Budget(cases=2000, until=time.monotonic() + 10).steered[1] <= 3.01
    assert Budget(cases=2000, until=time.monotonic() - 1).steered[1] == 0


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Keep sweeps in a folder of their own, and answer for the child; yields what it was asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sweeping, "_known", {})
    asked = []

    def answer(self, points):
        asked.append(points)
        features = [frozenset({"wide" if columns > 700 else "narrow"}) for _, columns, _ in points]
        return DryRun(planned=tuple(Planned(features=f) for f in features), files=(str(self.subject.path),))

    monkeypatch.setattr(sweeping._Asking, "_answer", answer)
    monkeypatch.setattr("verifier.audit.examination.called_apart", lambda *_: {})
    return asked


def swept(path):
    return sweeping.sweep(SOFTMAX.differing(language="triton", path=path), "float32", "machine")


def test_a_sweep_is_made_once_and_anew_when_a_source_changes(kept, tmp_path, monkeypatch):
    source = tmp_path / "kernel.py"
    source.write_text("A = 1\n")
    first = swept(source)
    assert {701, 700} <= {shape.columns for shape in first.whole}
    assert all(isinstance(shape, Reaching) for shape in first.forward)
    count = len(kept)
    assert swept(source) == first
    monkeypatch.setattr(sweeping, "_known", {})
    assert swept(source) == first  # from the folder
    assert len(kept) == count
    monkeypatch.setattr(sweeping, "_known", {})
    source.write_text("A = 2\n")
    swept(source)
    assert len(kept) > count


def test_a_cache_that_is_damaged_or_cannot_be_written_costs_nothing_but_time(kept, tmp_path, monkeypatch):
    source = tmp_path / "kernel.py"
    source.write_text("A = 1\n")
    first = swept(source)
    files = list((tmp_path / "norm-verifier" / "sweeps").iterdir())
    assert files
    for text in ("", "[]", '{"sources": {}, "whole": [[1]], "forward": [], "why": ""}'):
        for file in files:
            file.write_text(text)
        monkeypatch.setattr(sweeping, "_known", {})
        assert swept(source) == first
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(sweeping, "_known", {})
    assert swept(source) == first


@pytest.mark.parametrize(("dtypes", "there"), [(("float16", "float32"), False), (("float32",), True)])
def test_checks_that_try_a_few_shapes_do_so_in_the_first_dtype_that_is_asked_for(kept, dtypes, there):
    kernel = KERNELS / "layer_norm_two_pass_triton.py"
    *_, job = select([kernel], check_names=("partial_gradients",), dtypes=dtypes)
    one = examination(subject_of(kernel), job.check, job.dtype, "machine", first_dtype=job.first_dtype)
    _, search, _ = one._prepared
    assert (job.dtype, bool(search.steering.shapes)) == ("float32", there)


def test_the_smallest_budget_has_room_for_rows_in_tiles_behind_a_kernel_of_whole_rows():
    pytest.importorskip("triton")
    found = sweeping.sweep(subject_of(KERNELS / "rms_norm_tiled_triton.py"), "float16", "machine")
    cases, seconds = Budget(cases=BUDGETS["quick"]).steered
    assert seconds == STEERED_SECONDS["quick"]
    chosen = steering((), found.whole, cases=cases, seconds=seconds, for_news=NEWS_BESIDES).shapes
    longest = max(shape.columns for shape in found.whole if shape.shows)
    assert longest > 2**15  # a second tile of half-precision rows
    assert longest in {shape.columns for shape in chosen}

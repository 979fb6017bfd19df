"""What a campaign writes down comes back as it was; what is damaged is named and costs nothing else."""

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
from checks_support import KERNELS, subject_of
from hypothesis import given, settings
from hypothesis import strategies as st
from made_findings import finding, line, worst

from verifier.audit.fuzzing import devices
from verifier.audit.fuzzing.corpus import Corpus, superseded
from verifier.audit.fuzzing.example_database import DatabaseError, database_of
from verifier.audit.fuzzing.features import features
from verifier.audit.fuzzing.records_as_json import from_json, to_json
from verifier.audit.fuzzing.steered_search import Kept
from verifier.audit.run_audit import Job
from verifier.cases.drawn import recipes
from verifier.cases.nearby import recipes_nearby
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe, build
from verifier.cases.recipe_json import recipe_document, recipe_of
from verifier.ops import op
from verifier.records.reach import CompiledForm, Reach, SourcePlace
from verifier.records.verdict import Measured, ReadTree, Variant, Verdict

JOB = Job(path="k.py", subject="s", check="forward_error", dtype="float32", backend="eager")
NORM = subject_of(KERNELS / "layer_norm_torch.py")
EVERY = recipes(op("layer_norm"), NORM, "float32", Plan(layouts=("contiguous", "sliced", "padded_rows")))
PLACE = SourcePlace("k.py", "kernel", 7)
FORM = CompiledForm(digest="d", kernel="kernel", blocks=((0, PLACE), (1, None)), guards=((PLACE, True),))


def a_line():
    case = build(op("layer_norm"), NORM, "float32", Recipe(rows=2, columns=3, eps=0.1), gradients=True)
    found = finding(case=case, worst=worst(math.inf), dtype="float32")
    reach = Reach(
        functions=frozenset({PLACE}),
        loops=frozenset({(PLACE, 2)}),
        forms=frozenset({FORM}),
        blocks=frozenset({("d", 0), ("d", 1)}),
        guards=frozenset({("d", 0, "some")}),
        compared=frozenset({0.5}),
    )
    return line(
        "forward_error",
        counts=Counter({Verdict.PASS: 3, Verdict.FAIL: 1}),
        outputs={"output": worst(math.nan)},
        findings=[replace(found, variants=(Variant(change="weight is 1", verdict=Verdict.PASS),))],
        measured=Counter({Measured(seen="x"): 2}),
        kappa=(math.inf, 0.0),
        reach=reach,
        trees=(ReadTree(role="columns", rows=2, columns=128, terms=2, compiled=1, declared=3),),
    )


def test_a_line_comes_back_from_json_as_it_was():
    before = a_line()
    text = json.dumps(to_json(before))
    after = from_json(json.loads(text))
    assert json.dumps(to_json(after)) == text
    assert (after.reach, after.counts, after.measured) == (before.reach, before.counts, before.measured)
    assert after.trees == before.trees
    assert after.findings[0].variants == before.findings[0].variants
    assert after.findings[0].case.tensors["input"].equal(before.findings[0].case.tensors["input"])
    assert math.isnan(after.outputs["output"].error)


@pytest.mark.parametrize("told", [{"$": "Path", "is": "x"}, {"$": "Line", "subjekt": 1}, {}, {"$": "tuple"}])
def test_what_is_no_record_is_refused(told):
    with pytest.raises(ValueError, match="not a record"):
        from_json(told)


def test_only_records_are_written_down():
    with pytest.raises(TypeError, match="object"):
        to_json(object())


@settings(max_examples=50, database=None, deadline=None)
@given(EVERY)
def test_a_recipe_comes_back_from_json_as_it_was(recipe):
    assert recipe_of(json.loads(json.dumps(recipe_document(recipe)))) == recipe


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"rows": 1},
        {"rows": -1, "columns": 2},
        {"rows": 1, "columns": 2, "speed": 3},
        {"rows": 1, "columns": 2, "input": {"hazard": "rain"}},
    ],
)
def test_what_is_no_recipe_is_refused(document):
    with pytest.raises(ValueError, match=r".+"):
        recipe_of(document)


@settings(max_examples=50, database=None, deadline=None)
@given(st.data())
def test_what_lies_near_a_recipe_keeps_most_of_it_and_is_drawn_within_the_plan(data):
    parent = data.draw(EVERY)
    plan = Plan(max_elements=4096, max_rows=64)
    parent = parent if plan.fits(parent.rows, parent.columns) else replace(parent, rows=3, columns=5)
    near = data.draw(recipes_nearby((parent,), op("layer_norm"), NORM, "float32", plan))
    assert plan.fits(near.rows, near.columns)
    groups = (["input", "weight", "bias", "grad_output", "layouts", "eps"], ("rows", "columns"))
    changed = [name for group in groups for name in group if getattr(near, name) != getattr(parent, name)]
    assert len(changed) <= 6


def test_a_feature_is_a_place_in_the_sources_whatever_form_was_compiled():
    one = a_line().reach
    other = replace(
        one,
        forms=frozenset({replace(FORM, digest="e")}),
        blocks=frozenset({("e", 0)}),
        guards=frozenset({("e", 0, "some")}),
    )
    known = {"d": FORM, "e": replace(FORM, digest="e")}
    assert features(one, known) == features(other, known)
    assert features(one, known) == {
        f"function {PLACE}",
        f"loop {PLACE} turned 2",
        f"block {PLACE}",
        f"guard {PLACE}: some",
    }


def test_a_corpus_keeps_recipes_and_names_what_it_cannot_read(tmp_path):
    kept = [
        Kept(recipe=Recipe(rows=1, columns=2), features=("line a",)),
        Kept(recipe=Recipe(rows=3, columns=4), scores=(("output", 0.25),)),
    ]
    corpus = Corpus(tmp_path)
    corpus.add(JOB, kept)
    corpus.add(JOB, kept)
    names = corpus.names(JOB)
    assert sorted(map(repr, corpus.read(JOB, names))) == sorted(map(repr, kept))
    (tmp_path / "s-forward_error-float32" / names[0]).write_text("{")
    assert len(corpus.read(JOB, [*names, "gone.json"])) == 1
    assert [names[0] in text for text in corpus.unreadable] == [True]
    corpus.tidy(JOB)
    assert corpus.names(JOB) == names


def test_what_others_have_beaten_is_deleted_and_what_reached_anything_is_not(tmp_path):
    corpus = Corpus(tmp_path)
    beaten = Kept(recipe=Recipe(rows=1, columns=1), scores=(("output", 0.25),))
    best = Kept(recipe=Recipe(rows=2, columns=1), scores=(("output", 0.5),))
    reached = Kept(recipe=Recipe(rows=3, columns=1), features=("line a",), scores=(("output", 0.3),))
    assert superseded({"a": beaten, "b": best, "c": reached}) == ["a"]
    corpus.add(JOB, [beaten, best, reached])
    corpus.tidy(JOB)
    assert sorted(one.recipe.rows for one in corpus.read(JOB, corpus.names(JOB))) == [2, 3]


def test_each_worker_takes_a_gpu_that_no_other_has(tmp_path, monkeypatch):
    monkeypatch.setattr(devices.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(devices, "_held", [])
    monkeypatch.setenv(devices.VISIBLE, "3, 7")
    assert devices.visible_devices() == ["3", "7"]
    taken = [devices._chosen(["3", "7"]) for _ in range(3)]
    assert taken[:2] == ["3", "7"]
    assert taken[2] in {"3", "7"}  # more workers than GPUs share them
    monkeypatch.setattr(devices, "_claimed", [])
    assert devices.claim_device() in {"3", "7"}
    assert devices.os.environ[devices.VISIBLE] in {"3", "7"}
    for held in devices._held:
        devices.os.close(held)


@pytest.mark.parametrize("named", ["", "5"])
def test_a_worker_with_one_gpu_or_none_has_nothing_to_choose(named, monkeypatch):
    monkeypatch.setattr(devices, "_claimed", [])
    monkeypatch.setenv(devices.VISIBLE, named)
    assert devices.claim_device() == ""
    assert devices.os.environ[devices.VISIBLE] == named


def kept_in(where):
    database = database_of(where, "one job")
    database.save(b"key of one version", b"x")
    database.save(b"key.pareto", b"y")
    return database


def test_examples_of_a_job_are_found_by_its_name_in_a_folder(tmp_path):
    kept_in(str(tmp_path))
    again = database_of(str(tmp_path), "one job")
    assert set(again.fetch(b"key of another")) == {b"x"}
    assert set(again.fetch(b"other.pareto")) == {b"y"}
    assert set(database_of(str(tmp_path), "other job").fetch(b"key of one version")) == set()
    again.delete(b"any", b"x")
    assert set(again.fetch(b"key")) == set()


def test_examples_are_shared_through_redis(monkeypatch):
    redis, fakeredis = pytest.importorskip("redis"), pytest.importorskip("fakeredis")
    server = fakeredis.FakeServer()
    monkeypatch.setattr(redis.Redis, "from_url", lambda _: fakeredis.FakeRedis(server=server))
    kept_in("redis://one-host:6379/0")
    found = database_of("redis://other-host:6379/0", "one job")
    assert set(found.fetch(b"key")) == {b"x"}


def test_an_address_that_is_none_is_said():
    pytest.importorskip("redis")
    with pytest.raises(DatabaseError, match="--database redis://host:port"):
        database_of("redis://host:port/0", "one job")

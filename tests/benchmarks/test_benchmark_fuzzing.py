"""The benchmark of fuzzing compares the same cases; its cluster starts what it is told, and watches units."""

import importlib
import json
import sys
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def module_of(monkeypatch):
    """Return a function from the name of a benchmark to its module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield importlib.import_module
    for name in {"fuzzing", "cluster_demo", "local_cluster"} & (set(sys.modules) - before):
        del sys.modules[name]


def test_the_ratio_is_of_all_rounds_and_of_the_same_cases_alone(module_of):
    fuzzing = module_of("fuzzing")
    about = {"workers": 2, "cases": 100}
    records = [
        {**about, "where": where, "seconds": seconds}
        for where, seconds in (("local", 40.0), ("scheduler", 70.0), ("scheduler", 55.0), ("local", 60.0))
    ]
    told = list(fuzzing.table(records))
    assert told[2] == "| local | 2 | 100 | 40 | 2.50 |"
    assert told[-1] == "Through the scheduler 1.60 cases a second, without it 2.00: 0.80 of it."
    with pytest.raises(SystemExit, match="the same cases"):
        list(fuzzing.table([*records, {**records[0], "cases": 99}]))


def test_watched_units_say_where_they_ran(module_of, monkeypatch, tmp_path):
    local_cluster = module_of("local_cluster")
    monkeypatch.setenv(local_cluster.NAME, "worker-7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    result = SimpleNamespace(cases=3)

    def begin(function, argument):
        future = Future()
        future.set_result(function(argument))
        return future

    workers = SimpleNamespace(begin=begin, count=5)
    seen = local_cluster.Watched(workers, tmp_path / "log")
    unit = SimpleNamespace(job=SimpleNamespace(backend="eager"), place=(0, 1, 2))
    assert seen.count == 5
    assert seen.begin(lambda given: result if given is unit else None, unit).result() is result
    (line,) = (tmp_path / "log").read_text().splitlines()
    told = json.loads(line)
    assert (told["worker"], told["visible"], told["place"], told["cases"]) == ("worker-7", "1", [0, 1, 2], 3)


def ran(worker, visible, device):
    return {"worker": worker, "process": worker, "visible": visible, "device": device}


TWO_GPUS = [ran("w0", "0", "1 GPU-a"), ran("w1", "1", "1 GPU-b")]
GROWN = {0: 1 << 30, 1: 1 << 30}


@pytest.mark.parametrize(
    ("units", "grown", "words"),
    [
        (TWO_GPUS, GROWN, []),
        (
            [ran("w0", "0", "1 GPU-a"), ran("w1", "0", "1 GPU-a")],
            GROWN,
            ["2 devices", "of their own", "shared"],
        ),
        ([ran("w0", "0", "1 GPU-a"), ran("w1", "1", "1 GPU-a")], GROWN, ["of their own"]),
        (
            [ran("w0", "", "2 GPU-a"), ran("w1", "", "2 GPU-a")],
            GROWN,
            ["2 devices", "of their own", "shared"],
        ),
        (TWO_GPUS, {**GROWN, 1: 0}, ["memory of 2 GPUs"]),
        (TWO_GPUS, {0: 1 << 30}, ["there are 1", "memory of 2 GPUs"]),
        (TWO_GPUS[:1], GROWN, ["2 devices", "of their own", "did nothing"]),
    ],
)
def test_the_demonstration_says_what_does_not_hold_of_devices(module_of, units, grown, words):
    asked = SimpleNamespace(backend="cuda", workers=2, pretend=0, disturb=False)
    found = list(module_of("cluster_demo").problems(asked, units, grown))
    assert len(found) == len(words)
    for text, word in zip(found, words, strict=True):
        assert word in text

"""The benchmark of audits reads moments off what is printed, and counts each second for one phase."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def audits(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import audit

    yield audit
    sys.modules.pop("audit", None)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_phase_inside_another_takes_its_seconds_from_it(audits, clock):
    phases = audits.Phases()

    def pass_by(seconds, *inner):
        clock[0] += seconds
        for one in inner:
            one()

    run = phases.timed("running the kernel", lambda: pass_by(4.0))
    judge = phases.timed("judging", lambda: pass_by(1.0, run))
    phases.timed("shrinking", lambda: pass_by(10.0, judge, judge))()
    judge()
    pass_by(2.0)
    assert phases.end() == {"shrinking": 20.0, "judging": 1.0, "running the kernel": 4.0, "other": 2.0}


def test_moments_are_those_of_the_first_line_and_of_the_first_finding(audits):
    printed = (
        (3.0, "first cases   kernel  float32   PASS: ordinary; FAIL: gradient"),
        (3.0, ""),
        (3.5, "FAIL  kernel  gradient  float32  on eager"),
        (9.0, "FAIL  kernel  layouts  float32  on eager"),
    )
    assert audits.moments(printed) == {"first_line": 3.0, "first_finding": 3.5}
    assert audits.moments([(8.0, "FAIL          kernel  float32  2")]) == {"first_line": 8.0}


def test_the_table_has_a_row_for_each_audit_and_no_finding_where_there_is_none(audits):
    told = {"kernel": "k", "dtype": "float32", "first_line": 3.04, "whole": 20.0, "processor": 19.0}
    records = [
        {**told, "caches": "cold", "phases": {"judging": 9.0}},
        {**told, "caches": "warm", "phases": {"bounds": 2.0}, "first_finding": 4.0},
    ]
    assert [*audits.table(records)][2:4] == [
        "| `k` | float32 | cold | 3.0 | - | 20.0 | 19.0 |",
        "| `k` | float32 | warm | 3.0 | 4.0 | 20.0 | 19.0 |",
    ]
    assert [*audits.table(records)][-1] == "| `k` | float32 | warm | 0.0 | 0.0 | 2.0 |"

"""Determinism is tried in several orders of blocks: one order alone lets sums by atomics pass."""

from contextlib import nullcontext

import pytest
from checks_support import cases_of, failures, faulty, machine, outcomes_of, passes

pytest.importorskip("triton", reason="the faulty kernel is Triton's, which is not installed")

from verifier.execution.backends.machine import BACKEND as MACHINE
from verifier.execution.call_subject import execute
from verifier.machine import current

STEM = "sums_by_atomics_triton"


def judged(check="determinism"):
    with machine() as place:
        return outcomes_of(faulty(STEM), check, place=place, count=4)


def test_sums_by_atomics_are_found():
    found = failures(judged())
    assert {o.output for o in found} == {"grad_weight"}
    assert "bits differ between run 1 and run" in found[0].message


def test_in_the_order_of_the_grid_they_pass(monkeypatch):
    """What finds them is the schedule's seed, which must reach the machine that runs the kernel."""
    monkeypatch.setattr(MACHINE, "varied", lambda **_: nullcontext())
    found = judged()
    assert passes(found)
    assert not failures(found)


def test_their_results_are_right_in_every_order():
    for check in ("forward_error", "gradient", "running_bound"):
        assert not failures(judged(check)), check


def test_every_run_has_an_order_of_its_own():
    subject = faulty(STEM)
    case = max(cases_of(subject, "determinism", count=8), key=lambda c: c.rows)
    seen = []
    with machine():
        for seed in (None, 1, 2):
            with MACHINE.varied(schedule_seed=seed):
                assert current().machine.schedule_seed == seed
                outputs = execute(subject, case, backend=MACHINE, gradients=True).outputs
            seen.append(outputs["grad_weight"].numpy().tobytes())
    assert case.rows > 2
    assert len(set(seen)) > 1

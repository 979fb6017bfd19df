"""The long attack counts what it checks, finds no violation of a theorem and every one of a false bound."""

import dataclasses
import math
import sys
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from verifier.bounds import affine
from verifier.bounds.variance import two_pass

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SECONDS = {"control": 1.5, "compose": 1.5}
"""Of processor time for one attack, 0.8 of others; the first result of some takes longer than others."""


@pytest.fixture
def attack(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import attack

    yield attack
    for name in ("attack", "attack_composed"):
        sys.modules.pop(name, None)


def tally_of(attack, name, monkeypatch, seed=0):
    """What an attack counts in its share of processor time, which one violation ends."""
    tally = attack.Tally()
    clock = SimpleNamespace(monotonic=lambda: math.inf if tally.violations else time.process_time())
    monkeypatch.setattr(attack, "time", clock)
    attack.ATTACKS[name](tally, SECONDS.get(name, 0.8), np.random.default_rng(seed))
    return tally


NAMES = ("exhaust", "strike", "double", "search", "compose", "control")


def test_these_are_all_attacks(attack):
    assert tuple(attack.ATTACKS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_checks_much_and_finds_nothing(attack, name, monkeypatch, capsys):
    tally = tally_of(attack, name, monkeypatch)
    assert tally.checks > 100
    assert tally.violations == []
    assert max(map(max, tally.worst.values())) > 0.3
    attack.show(tally)
    assert f"{tally.checks} checks, 0 violations" in capsys.readouterr().out


def test_every_op_and_every_result_is_composed(attack):
    from attack_composed import ADDED, GATED, MASKED, OFFSET, WHOLE, composed

    found = {(one.name, one.result) for one in islice(composed(np.random.default_rng(1)), 900)}
    ops = {name for name, _ in found}
    further = {*ADDED, "l2_norm", *OFFSET, *GATED, *WHOLE}
    softmaxes = {"softmax", "log_softmax", *MASKED}
    of_groups = {"batch_norm", "group_norm", "instance_norm"}
    assert ops == {"layer_norm", "rms_norm", *of_groups, *softmaxes, *further}
    assert {(name, result) for name in ops for result in ("output", "grad_input")} <= found
    norms = ops - {*softmaxes, "l2_norm"}
    assert {(name, "grad_gate") for name in GATED} | {("dynamic_tanh", "grad_alpha")} <= found
    assert {(name, "grad_weight") for name in norms} <= found
    assert {("layer_norm", "mean"), ("rms_norm", "rstd"), ("batch_norm", "running_var")} <= found


@pytest.mark.parametrize("name", ["strike", "double", "search"])
def test_a_false_theorem_of_the_variance_is_refuted(attack, name, monkeypatch):
    proved = two_pass.bound

    def too_small(rows, claim):
        bound = proved(rows, claim)
        return dataclasses.replace(bound, variance_error=bound.variance_error / 8)

    monkeypatch.setattr(two_pass, "bound", too_small)
    # Others would come before this algorithm, and take the seconds of the attack.
    monkeypatch.setattr(attack, "algorithms", lambda: {"two_pass": two_pass})
    tally = tally_of(attack, name, monkeypatch)
    assert any("two_pass" in violation for violation in tally.violations)


@pytest.mark.parametrize("name", ["composed", "controls"])
def test_a_false_rule_of_the_composition_is_refuted(attack, name, monkeypatch):
    rounding = affine.AffineNumbers._round

    def a_third(self, value, relative, absolute, to):
        return rounding(self, value, relative / 3, absolute, to)

    monkeypatch.setattr(affine.AffineNumbers, "_round", a_third)
    results = getattr(attack, name)(np.random.default_rng(0))
    assert any(one.utilisation > 1.0 for one in islice(results, 400))


def test_a_violation_ends_the_script_with_status_one(attack, monkeypatch, capsys):
    def violated(tally, seconds, random):
        """Find one."""
        tally.add(("two_pass", "N=2"), (1.5, 0.2), 2, "a row")

    monkeypatch.setitem(attack.ATTACKS, "search", violated)
    monkeypatch.setattr(sys, "argv", ["attack.py", "--only", "search", "--minutes", "0.01"])
    assert attack.main() == 1
    assert "VIOLATION ('two_pass', 'N=2'): error/bound 1.5, 0.2 with a row" in capsys.readouterr().out
    tally = attack.Tally()
    tally.add(("two_pass", "N=2"), (float("nan"),), 1, "a row without a number")
    assert tally.violations

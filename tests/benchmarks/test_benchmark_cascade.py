"""The benchmark of torch's cascade keeps its bounds, and sees a mean or a root that is off."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cascade(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import cascade

    if torch.backends.cpu.get_cpu_capability() not in cascade.LANES:
        pytest.skip("torch's vector width on this processor is unknown")
    yield cascade
    sys.modules.pop("cascade", None)


def found(cascade, kappa=30.0):
    rows = np.random.default_rng(3).normal(size=(cascade.ROWS, 100)) + kappa
    lanes = cascade.LANES[torch.backends.cpu.get_cpu_capability()]
    return cascade.against(torch.from_numpy(rows).float(), lanes)


def test_torch_stays_inside_its_bounds_and_following_the_order_tightens_them(cascade):
    mean, rstd, tighter = found(cascade)
    assert 0.0 < mean <= 1.0
    assert 0.0 < rstd <= 1.0
    assert tighter > 1.0


@pytest.mark.parametrize("which", [1, 2])
def test_a_statistic_that_is_off_exceeds_its_bound(cascade, which, monkeypatch):
    right = torch.native_layer_norm

    def wrong(*given):
        results = list(right(*given))
        results[which] = results[which] * 1.0001
        return tuple(results)

    monkeypatch.setattr(torch, "native_layer_norm", wrong)
    assert found(cascade)[which - 1] > 1.0


def test_the_table_has_a_line_for_every_length_and_kappa(cascade, monkeypatch):
    monkeypatch.setattr(cascade, "COUNTS", (5, 33))
    head, *lines = "\n".join(cascade.lines(8)).splitlines()
    assert head == "| N | kappa | mean | rstd | T7 / T8 |"
    assert [line.split("|")[1].strip() for line in lines[1:]] == ["5"] * 3 + ["33"] * 3

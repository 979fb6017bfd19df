"""The measured errors of a device's instructions are what the bounds assume, and are measured rightly."""

import importlib
import json
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEASURED = Path(__file__).parents[2] / "verifier" / "bounds" / "constants.json"


@pytest.fixture
def constants(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("constants")


def chunks():
    random = torch.Generator().manual_seed(0)
    yield torch.rand(5000, generator=random) * 8 + 0.01
    yield torch.tensor([0.0, -0.0, 1e-40, float("inf"), float("nan"), -1.0, 3e38])


@pytest.mark.parametrize("name", ["rcp", "sqrt", "rsqrt", "ex2", "lg2"])
def test_a_correctly_rounded_operation_errs_by_half_an_ulp(constants, name):
    exact = constants.UNARY[name]
    worst = constants.measure_unary(lambda x: exact(x.double()).float(), exact, chunks())
    assert 0.4 < worst.ulp <= 0.5
    assert 2.0**-26 < worst.relative <= 2.0**-24 + 2.0**-50
    assert worst.unexpected == 0
    assert worst.inputs > 4000


def test_one_wrong_answer_among_thousands_is_found_with_its_argument(constants):
    bad = torch.tensor(1.5).view(torch.int32).item()

    def wrong(x):
        right = (1.0 / x.double()).float()
        return torch.where(x.view(torch.int32) == bad, right * (1 + 2.0**-20), right)

    worst = constants.measure_unary(
        wrong, constants.UNARY["rcp"], iter([torch.arange(1, 4000) / 2000.0, torch.tensor([1.5])])
    )
    assert worst.at == bad
    assert 0.9 * 2.0**-20 < worst.relative < 1.1 * 2.0**-20


def test_an_infinite_answer_to_a_normal_result_is_counted(constants):
    def broken(x):
        return torch.where(x > 4.0, float("inf"), (1.0 / x.double()).float())

    assert constants.measure_unary(broken, constants.UNARY["rcp"], chunks()).unexpected > 1000


def test_division_meets_every_significand(constants):
    worst = constants.measure_division(lambda a, b: a / b, "cpu", significands=1000)
    assert worst.inputs == 1000 * 5 * len(constants.NUMERATORS)
    assert 0.4 < worst.ulp <= 0.5
    crude = constants.measure_division(lambda a, b: a * (1.0 / b), "cpu", significands=1000)
    assert crude.ulp > 0.6


def test_every_bit_pattern_is_met_once(constants):
    found = torch.cat([x.view(torch.int32) for x in constants.every_float32("cpu", 5000, chunk=999)])
    assert found.tolist() == list(range(5000))


def test_what_the_bounds_assume_covers_what_the_device_did():
    from verifier.execution.backends import cuda
    from verifier.machine.arithmetic.approximation import DOCUMENTED

    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    u = 2.0**-24
    for name, worst in document["instructions"].items():
        stem = name.split(".")[0]
        ulp, relative, absolute = DOCUMENTED[stem]
        allowed = relative + ulp * 2.0 * u  # an ulp is at most 2u of the exact value
        assert worst["unexpected"] == 0, name
        if stem == "lg2":
            assert worst["near_one"] <= absolute, name
        else:
            assert worst["relative"] <= allowed, name
            assert worst["ulp"] <= ulp or not ulp, name
    fields = {"rcp": "reciprocal", "div": "division", "sqrt": "square_root"}
    for name, worst in document["instructions"].items():
        field = fields.get(name.split(".")[0])
        if field in cuda.DOCUMENTED:
            assert worst["relative"] <= cuda.DOCUMENTED[field] * u, name

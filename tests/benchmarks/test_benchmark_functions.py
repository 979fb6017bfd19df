"""The measurement of composed functions sees errors, and special values that are wrong."""

import importlib
from pathlib import Path

import numpy as np
import pytest

SAMPLE = 20_000
NUMBERS = np.array([0.0, -0.0, 1.0, -1.5, 88.7, 89.0, -104.0, 1e-40, np.inf, -np.inf], np.float32).view("u4")


@pytest.fixture
def functions(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("functions")


def test_an_exponential_errs_by_less_than_two_ulp_and_has_its_special_values(functions):
    drawn = np.random.default_rng(0).uniform(-104, 89, SAMPLE).astype(np.float32).view("u4")
    found = functions.measured("exp.cuda.f32", np.concatenate([NUMBERS, drawn]))
    assert found.tried == len(NUMBERS) + SAMPLE
    assert 1 < found.ulp < 2
    assert found.wrong == 0
    assert (functions.computed("exp.cuda.f32", NUMBERS[:2]) == 1.0).all()


@pytest.mark.parametrize("name", ["log.cuda.f32", "log.libdevice.f32"])
def test_a_logarithm_errs_by_less_than_an_ulp(functions, name):
    near_one = np.array([1 - 2.0**-24, 1.0, 1 + 2.0**-23], np.float32).view("u4")
    drawn = np.random.default_rng(0).integers(1, functions.RANGES[name][0][1], SAMPLE, dtype=np.uint32)
    found = functions.measured(name, np.concatenate([near_one, drawn]))
    assert 0.5 < found.ulp < 1
    assert found.wrong == 0


def test_a_tangent_errs_by_less_than_two_ulp_near_zero_and_where_it_is_flat(functions):
    drawn = np.random.default_rng(0).uniform(-10, 10, SAMPLE).astype(np.float32)
    special = np.array([0.0, -0.0, 1e-30, np.inf, -np.inf, np.nan, 9.0107, -9.02], np.float32)
    bits = np.concatenate([special, drawn, drawn * np.float32(2.0**-40)]).view("u4")
    found = functions.measured("tanh.libdevice.f32", bits)
    assert 0.5 < found.ulp < 2
    assert found.wrong == 0
    results = functions.computed("tanh.libdevice.f32", special.view("u4"))
    assert (results[:2] == 0).all()
    assert results[3:5].tolist() == [1.0, -1.0]


def test_another_function_is_far_off_and_its_infinities_are_wrong(functions, monkeypatch):
    monkeypatch.setitem(functions.EXACT, "exp.cuda.f32", lambda x: np.exp(-x))
    found = functions.measured("exp.cuda.f32", NUMBERS)
    assert found.ulp > 1000
    assert found.wrong >= 3


def test_every_number_is_in_one_range(functions):
    counted = sum(to - start for start, to in functions.RANGES["exp.cuda.f32"])
    assert counted == 2**32 - 2 * (2**23 - 1)  # all but what is no number
    counted = sum(to - start for start, to in functions.RANGES["tanh.libdevice.f32"])
    assert counted == 2**32 - 2 * (2**23 - 1) - 2**24  # all but those that are flushed, too
    assert functions.RANGES["log.cuda.f32"] == ((1, 0x7F800000),)

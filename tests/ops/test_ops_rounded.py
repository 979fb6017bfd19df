"""No rounded execution of a form leaves the bound composed for it, and every bound is nearly reached."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from checks_support import in_turn
from rounded_ops import TREES, declared, simulate, simulate_every_way, truth_of, utilisation, variants

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.bounds import affine, elementary_functions
from verifier.cases.recipe import Recipe, assemble
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op

NAMES = ("softmax", "log_softmax", "group_norm", "batch_norm")
FORMS = [(name, form) for name in NAMES for form in op(name).forms]
FAMILIES = (
    Values(),
    Values(hazard="cancellation", strength=2),
    Values(hazard="one_outlier", strength=3),
    Values(hazard="wide_exponents", strength=3),
    Values(hazard="small_integers"),
    Values(hazard="constant_row"),
    Values(scale=-9),
    Values(scale=5),
)
EXTENTS = ((6, 30), (4, 16), (9, 7), (1, 64), (12, 2))


def worst_of(subject, dtypes, *, seeds=(0, 1), families=FAMILIES):
    """Return the largest utilisation of each result over families, variants and all ways of a form."""
    worst: dict[str, float] = {}
    for index, family in enumerate(families):
        for seed in seeds:
            rows, columns = EXTENTS[(index + seed) % len(EXTENTS)]
            recipe = Recipe(
                rows=rows,
                columns=columns,
                variant=(index + 3 * seed) % len(variants(subject.op)),
                input=replace(family, seed=seed),
                weight=None if index % 4 == 3 else Values(seed=seed + 1),
                bias=None if index % 3 == 2 else Values(seed=seed + 2),
                grad_output=Values(seed=seed + 3, hazard="lognormal" if index % 2 else "ordinary"),
                eps=(1e-5, 0.5)[seed % 2],
            )
            truth = truth_of(subject, *dtypes, recipe)
            for found in simulate_every_way(truth) if truth is not None else ():
                for name, value in utilisation(truth, found).items():
                    worst[name] = max(worst.get(name, 0.0), value)
    return worst


@pytest.mark.parametrize(
    ("named", "dtypes"), in_turn(FORMS, [("float32",) * 2, ("float16",) * 2, ("bfloat16", "float32")])
)
def test_every_form_stays_inside_its_bound(named, dtypes):
    name, form = named
    subject = declared(name, formula=form, saved_dtype="input" if name == "batch_norm" else None)
    worst = worst_of(subject, dtypes)
    assert {n: w for n, w in worst.items() if not w <= 1.0} == {}
    assert worst["output"] > 0.1
    assert worst["grad_input"] > 0.01
    expected = {"output", "grad_input"}
    if "norm" in name:
        expected |= {"grad_weight", "grad_bias"}
    if name == "batch_norm":
        expected |= {"running_mean", "running_var"}
    assert set(worst) == expected


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_the_rounding_of_the_stored_output_is_part_of_the_canonical_bound_only(name):
    stored, wide = (declared(name, formula=form) for form in ("canonical", "recomputed"))
    beyond = 0.0
    for seed in range(4):
        recipe = Recipe(
            rows=3, columns=24, input=Values(seed=seed), grad_output=Values(seed=seed + 5, scale=4)
        )
        ran, judged = (truth_of(subject, "bfloat16", "float32", recipe) for subject in (stored, wide))
        found = {"grad_input": simulate(ran)["grad_input"]}
        assert utilisation(ran, found)["grad_input"] <= 1.0
        beyond = max(beyond, utilisation(judged, found)["grad_input"])
    assert beyond > 1.0


def test_momentum_in_steps_of_bfloat16_needs_the_form_that_says_so():
    steps, plain = (
        declared("batch_norm", formula=form, saved_dtype="input") for form in ("torch_cpu", "canonical")
    )
    beyond = 0.0
    for seed in range(4):
        recipe = Recipe(rows=8, columns=24, input=Values(seed=seed))
        ran, judged = (truth_of(subject, "bfloat16", "float32", recipe) for subject in (steps, plain))
        found = {"running_mean": simulate(ran)["running_mean"]}
        assert utilisation(ran, found)["running_mean"] <= 1.0
        beyond = max(beyond, utilisation(judged, found)["running_mean"])
    assert beyond > 1.0


def far_evaluation(dtype, *, channels=8, samples=16):
    """Return the case of evaluation, of many, that is furthest away with every step rounded to `dtype`."""
    held = getattr(torch, dtype)
    variance = torch.linspace(0.25, 8.0, 8192).to(held).unique()[:, None]
    x, mean = torch.linspace(-6.0, 6.0, 8192).to(held).unique()[None, :], torch.tensor(1.3, dtype=held)
    stepped = (x - mean) * (variance + 1e-3).sqrt().reciprocal()
    exact = (x.double() - mean.double()) / (variance.double() + 1e-3).sqrt()
    away = (stepped.double() / exact - 1.0).abs().nan_to_num()
    worst = away.amax(1).argsort(descending=True)[:channels]
    tensors = {
        "input": x[0, away[worst].argsort(1, descending=True)[:, :samples]].t().contiguous(),
        "running_mean": mean.repeat(channels),
        "running_var": variance[worst, 0],
        "weight": None,
        "bias": None,
        "grad_output": torch.ones(samples, channels, dtype=held),
    }
    scalars = {"training": False, "momentum": 0.1, "eps": 1e-3}
    return assemble(op("batch_norm"), dtype, tensors, scalars, {}, hazard="ordinary", origin="")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_root_in_steps_of_half_needs_the_bound_that_says_so(dtype, monkeypatch):
    subject = declared("batch_norm", formula="torch_cpu", saved_dtype="input")
    worst = {}
    for steps in (True, False):
        if not steps:  # the root taken for as good as where all tensors are contiguous
            monkeypatch.setattr(affine.AffineNumbers, "stepped_moments", affine.AffineNumbers.moments)
        setting = Setting(arithmetic=ieee("float32"), trees=TREES)
        truth = Truth(subject=subject, case=far_evaluation(dtype), setting=setting)
        worst[steps] = utilisation(truth, simulate(truth, way=1))["output"]
    assert 0.5 < worst[True] <= 1.0
    assert worst[False] > 1.0


def _no_error(centre, slack, total):
    value, around, _ = _EXP(centre, slack, total)
    return value, around, np.zeros_like(value)


def _log_of_no_error(centre, slack, total):
    value, around, _ = _LOG(centre, slack, total)
    return value, around, np.zeros_like(value)


_EXP, _LOG = elementary_functions.exp, elementary_functions.log
_ROUND, _SUM = affine.AffineNumbers._round, affine.AffineNumbers._row_sum


def _third(self, value, relative, absolute, to):
    return _ROUND(self, value, relative / 3, absolute, to)


def _flat_sum(self, value, depth):
    return _SUM(self, value, 0)


WRONG = [
    (elementary_functions, "exp", _no_error, "softmax"),
    (elementary_functions, "log", _log_of_no_error, "log_softmax"),
    (affine.AffineNumbers, "_round", _third, "softmax"),
    (affine.AffineNumbers, "_row_sum", _flat_sum, "softmax"),
    (affine.AffineNumbers, "_row_sum", _flat_sum, "batch_norm"),
]


@pytest.mark.parametrize(("where", "method", "wrong", "name"), WRONG)
def test_a_wrong_rule_is_refuted_by_this_data(where, method, wrong, name, monkeypatch):
    monkeypatch.setattr(where, method, wrong)
    worst = 0.0
    for seed in range(6):
        recipe = Recipe(
            rows=4,
            columns=600,
            input=Values(seed=seed, scale=2),
            grad_output=Values(hazard="constant_row", seed=seed),
        )
        truth = truth_of(declared(name, formula="canonical"), "float32", "float32", recipe)
        worst = max(worst, *utilisation(truth, simulate(truth)).values())
    assert worst > 1.0

"""Masked softmax: exact by an independent reference, bounded in every form, certain where masked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from rounded_ops import declared, simulate, simulate_every_way, truth_of, utilisation, variants

from strategies.values import Values
from verifier.cases.recipe import Recipe
from verifier.ops import op
from verifier.ops.rows import masks
from verifier.oracle.softmax.rung_arb import SoftmaxArb
from verifier.records.subject import Claim

OPS = ("masked_softmax", "masked_log_softmax", "causal_softmax", "causal_log_softmax")
BITS = 300
LEAST = {"float16": -65504.0, "bfloat16": -3.3895313892515355e38, "float32": -3.4028234663852886e38}


def recipe(seed, variant=0, rows=4, columns=7, **changes):
    further = {"mask": Values(seed=seed), "attn_bias": Values(seed=seed + 1)} | changes.pop("further", {})
    settings = {
        "input": Values(seed=seed, scale=seed % 3),
        "grad_output": Values(seed=seed + 2),
        "further": tuple(further.items()),
        **changes,
    }
    return Recipe(rows=rows, columns=columns, variant=variant, weight=None, bias=None, **settings)


def truth(name, seed, variant=0, dtype="float32", *, accumulates="float32", formula="recomputed", **changes):
    subject = declared(name, formula=formula, variance="softmax", fully_masked="zeros")
    return truth_of(subject, dtype, accumulates, recipe(seed, variant, **changes))


def reference(case, *, causal, logarithm):
    """Return output and gradient of each row as mpmath numbers, None where nothing finite is exact."""
    x, g = (case.given[n].double() for n in ("input", "grad_output"))
    added = case.tensors.get("attn_bias")
    added = torch.zeros(()) if added is None else added.double()
    mask = case.tensors.get("mask")
    mask = torch.ones((), dtype=torch.bool) if mask is None else mask
    scale, (queries, columns) = mpf(case.scalars["scale"]), x.shape[-2:]
    added, mask = (t.expand(x.shape).reshape(-1, columns).tolist() for t in (added, mask))
    outputs, gradients = [], []
    for row, (values, incoming) in enumerate(
        zip(*(t.reshape(-1, columns).tolist() for t in (x, g)), strict=True)
    ):
        last = row % queries + case.scalars["diagonal"] if causal else columns
        there = [j for j in range(columns) if mask[row][j] and added[row][j] != -np.inf and j <= last]
        powers = {j: mp.exp(mpf(values[j]) * scale + mpf(added[row][j])) for j in there}
        total = sum(powers.values())
        y = {j: power / total for j, power in powers.items()}
        dot = sum(mpf(incoming[j]) * (1 if logarithm else y[j]) for j in there)
        for j in range(columns):
            if j not in y:
                outputs.append(None if logarithm or not there else mpf(0))
                gradients.append(mpf(0) if there else None)
                continue
            outputs.append(mp.log(y[j]) if logarithm else y[j])
            d = mpf(incoming[j])
            gradients.append(scale * (d - y[j] * dot if logarithm else y[j] * (d - dot)))
    return {"output": outputs, "grad_input": gradients}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "variant"), [(n, v) for n in OPS for v in variants(n)])
def test_exact_results_enclose_an_independent_reference(name, variant, dtype):
    compared = 0
    for seed in range(6):
        posed = truth(name, seed, variant, dtype, accumulates=dtype)
        problem = posed.solved.problem
        with mp.workprec(BITS):
            expected = reference(posed.case, causal="causal" in name, logarithm="log" in name)
            for result, wanted in expected.items():
                found = posed.exact[result]
                everything = np.ones(found.shape, dtype=np.bool_)
                balls = SoftmaxArb(problem, result).values(everything, 200).values
                parts = (
                    np.broadcast_to(p, found.shape).ravel() for p in (found.high, found.low, found.radius)
                )
                for exact, high, low, radius, ball in zip(wanted, *parts, balls, strict=True):
                    if exact is None:
                        continue
                    slack = mpf(2) ** -150 * (abs(exact) + 1)
                    error = abs(exact - mpf(float(high)) - mpf(float(low)))
                    # Beside the least number of a format a radius may be infinite; Arb is never.
                    assert error <= mpf(float(radius)) + slack, result
                    assert abs(mpf(str(ball.mid().str(80, radius=False))) - exact) <= 2 * slack, result
                    compared += bool(np.isfinite(radius))
    assert compared > 100


@pytest.mark.parametrize(
    ("dtype", "accumulates"),
    [("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16")],
)
@pytest.mark.parametrize("name", OPS)
def test_no_form_leaves_its_bound(name, dtype, accumulates):
    worst, covered = {}, 0
    for number, formula in enumerate(op(name).forms):
        for seed in range(4):
            variant = (number + seed) % op(name).variants
            settings = {"accumulates": accumulates, "formula": formula}
            posed = truth(name, 7 * number + seed, variant, dtype, **settings)
            for found in simulate_every_way(posed):
                for result, share in utilisation(posed, found).items():
                    assert share <= 1.0, (formula, seed, result)
                    worst[result] = max(worst.get(result, 0.0), share)
            covered += int(posed.bounds["output"].covered.sum())
    assert covered > 250
    assert min(worst.values()) > 0.1


@pytest.mark.parametrize(
    ("computed", "dtype", "variant"), [("rounded_scores", "float16", 4), ("folded", "float32", 0)]
)
def test_a_form_that_rounds_more_is_refuted(computed, dtype, variant):
    """Scores that are rounded to half, or times log2(e), err by more than those of the plain form."""
    worst = 0.0
    for seed in range(6):
        # Far from zero, without masks: the rounding of scores is all that differs.
        shifted = Values(seed=seed, hazard="cancellation", strength=2)
        settings = {"further": {"mask": None, "attn_bias": None}, "formula": "canonical", "columns": 33}
        posed = truth("masked_softmax", seed, variant, dtype, input=shifted, **settings)
        real = replace(posed, subject=declared("masked_softmax", formula=computed, fully_masked="zeros"))
        assert utilisation(real, simulate(real))["output"] <= 1.0
        worst = max(worst, *utilisation(posed, simulate(real)).values())
    assert worst > 1.0


def test_the_scale_must_be_in_the_gradient():
    posed = truth("masked_softmax", 3, 3)
    found = simulate(posed)
    assert utilisation(posed, found)["grad_input"] <= 1.0
    assert utilisation(posed, {"grad_input": found["grad_input"] / 0.125})["grad_input"] > 1.0


@pytest.mark.parametrize("dtype", list(LEAST))
@pytest.mark.parametrize("formula", ["recomputed", "rounded_scores_torch_cpu", "folded", "online_folded"])
def test_rows_masked_with_the_least_number_have_bounds(formula, dtype):
    """Scores of which the least number is a part may overflow to -inf: their powers are 0 all the same."""
    for blocked in (LEAST[dtype], -1e4):
        posed = truth("masked_softmax", 2, 0, dtype, formula=formula, rows=8, columns=33)
        there = torch.rand((8, 33), generator=torch.Generator().manual_seed(1)) < 0.5
        there[:, 0] = True
        added = torch.where(there, 0.0, blocked).to(getattr(torch, dtype))
        tensors = {**posed.case.tensors, "mask": None, "attn_bias": added}
        posed = replace(posed, case=replace(posed.case, tensors=tensors), answer=None)
        for result, bounded in posed.bounds.items():
            assert bounded.covered.all(), result
        assert max(utilisation(posed, simulate(posed)).values()) <= 1.0


def test_a_row_whose_every_score_has_the_least_number_has_no_bound():
    posed = truth("masked_softmax", 2, 0, rows=3, columns=5)
    added = torch.full((3, 5), LEAST["float32"])
    tensors = {**posed.case.tensors, "mask": None, "attn_bias": added}
    posed = replace(posed, case=replace(posed.case, tensors=tensors), answer=None)
    assert not posed.bounds["output"].covered.any()


# -- what is certain -----------------------------------------------------------------------------------


def certain(name, claim, wrong=None):
    """Return the words of what results of a case with a fully masked row do not meet; wrong: changes them."""
    posed = truth(name, 0, 0, rows=3, columns=4)
    mask = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4]).reshape(
        posed.case.given["mask"].shape
    )
    gradient = torch.where(mask, posed.case.given["grad_output"], 0.0)
    tensors = {**posed.case.tensors, "mask": mask, "attn_bias": None, "grad_output": gradient}
    case = replace(posed.case, tensors=tensors)
    empty = np.nan if claim == "nan" else (-np.inf if "log" in name else 0.0)
    absent = -np.inf if "log" in name else 0.0
    results = {"output": np.full((3, 4), 0.25), "grad_input": np.full((3, 4), 0.5)}
    results["output"][0, 1], results["output"][1] = absent, empty
    results["grad_input"][0, 1], results["grad_input"][1] = 0.0, 0.0
    if "causal" in name:
        above = ~np.tri(3, 4, dtype=bool)
        results["output"][above & (np.arange(3) != 1)[:, None]] = absent
        results["grad_input"][above] = 0.0
    for result, place, value in [] if wrong is None else [wrong]:
        results[result][place] = value
    found = op(name).certain(case, Claim(fully_masked=claim))
    return [words for result, (words, where, meets) in found if (where & ~meets(results[result])).any()]


@pytest.mark.parametrize("claim", ["zeros", "nan"])
@pytest.mark.parametrize("name", OPS)
def test_what_is_masked_out_is_certain(name, claim):
    assert not certain(name, claim)
    nothing = "-inf" if "log" in name else "0"
    assert certain(name, claim, ("output", (0, 1), 1e-30)) == [f"what is masked out is {nothing}"]
    assert certain(name, claim, ("grad_input", (0, 1), 1e-30)) == ["the gradient of what is masked out is 0"]
    other = np.nan if claim == "zeros" else 0.0
    (words,) = certain(name, claim, ("output", (1, 2), other))
    assert words.startswith("a fully masked row is")
    assert words.endswith("as declared")
    assert certain(name, claim, ("grad_input", (1, 0), 0.25))
    assert bool(certain(name, claim, ("grad_input", (1, 0), np.nan))) is (claim == "zeros")


def test_nothing_is_certain_where_every_score_may_overflow():
    """In half precision -16 - 65504 is -inf: nothing is left of the row then, and a quotient by it is NaN."""
    posed = truth("masked_softmax", 0, 0, "float16", rows=2, columns=2)
    tensors = {
        "input": torch.tensor([[-16.0, 0.0], [-16.0, 0.0]], dtype=torch.float16),
        "mask": torch.tensor([[True, False], [True, False]]),
        "attn_bias": torch.tensor([[-65504.0, 0.0], [0.0, 0.0]], dtype=torch.float16),
        "grad_output": torch.ones(2, 2, dtype=torch.float16),
    }
    case = replace(posed.case, tensors=tensors)
    found = {words: where for _, (words, where, _) in op("masked_softmax").certain(case, Claim())}
    for words in ("what is masked out is 0", "the gradient of what is masked out is 0"):
        assert found[words].tolist() == [[False, False], [False, True]]


def test_nothing_else_is_certain_beside_a_nan():
    posed = truth("masked_softmax", 0, 0, rows=2, columns=4)
    x = posed.case.given["input"].clone()
    x[0, 0] = torch.nan
    mask = torch.tensor([[True, False, True, True], [True, False, True, True]])
    case = replace(posed.case, tensors={**posed.case.tensors, "input": x, "mask": mask, "attn_bias": None})
    where = next(
        where for result, (_, where, _) in op("masked_softmax").certain(case, Claim()) if result == "output"
    )
    assert where.tolist() == [[False] * 4, [False, True, False, False]]


def test_a_masked_nan_reaches_nothing():
    posed = truth("masked_softmax", 0, 0, rows=1, columns=4)
    x, mask = posed.case.given["input"].clone(), torch.tensor([[True, False, True, True]])
    x[0, 1] = torch.nan
    tensors = {**posed.case.tensors, "input": x, "mask": mask, "attn_bias": None}
    posed = replace(posed, case=replace(posed.case, tensors=tensors), answer=None)
    assert np.isfinite(posed.exact["output"].high).all()
    assert posed.bounds["output"].covered.all()


def test_a_gradient_that_comes_to_a_logarithm_of_nothing_has_no_exact_value():
    posed = truth("masked_log_softmax", 0, 0, rows=2, columns=4)
    mask = torch.tensor([[True, False, True, True], [True] * 4])
    tensors = {**posed.case.tensors, "mask": mask, "attn_bias": None, "grad_output": torch.ones(2, 4)}
    posed = replace(posed, case=replace(posed.case, tensors=tensors), answer=None)
    assert not posed.bounds["grad_input"].covered[0].any()
    assert posed.bounds["grad_input"].covered[1].all()


# -- what cases have -----------------------------------------------------------------------------------


def test_masks_show_every_pattern_and_every_number_that_blocks():
    rows, blocked = set(), set()
    for seed in range(48):
        mask = masks.drawn_mask(Values(seed=seed), (6, 9), "float16")
        counts = mask.sum(1)
        rows |= {
            "one" if c == 1 else "none" if c == 0 else "all" if c == 9 else "some" for c in counts.tolist()
        }
        added = masks.drawn_addend(Values(seed=seed), (6, 9), "float16")
        assert not added.isnan().any()
        assert not added.isposinf().any()
        blocked |= set(added[added < -500.0].tolist())
    assert rows == {"one", "none", "some", "all"}
    assert {-np.inf, -1e4, LEAST["float16"]} <= blocked


@pytest.mark.parametrize("causal", [False, True])
def test_layouts_broadcast_masks_over_heads_and_over_rows(causal):
    every = [masks.shapes(6, 5, v, causal=causal).tensors for v in range(masks.variants(causal=causal))]
    shapes = {(s["input"], s["mask"]) for s in every}
    assert ((1, 2, 3, 5), (3, 5)) in shapes
    assert ((2, 3, 5), (2, 1, 5)) in shapes
    for tensors in every:
        assert torch.broadcast_shapes(tensors["mask"], tensors["input"]) == tensors["input"]


def test_rows_and_columns_of_a_causal_op_have_an_order():
    case = truth("causal_softmax", 0, 2, rows=6).case
    assert set(op("causal_softmax").unordered(case)) == {"axis 0"}
    assert set(op("masked_softmax").unordered(truth("masked_softmax", 0, 2, rows=6).case)) == {
        "axis 0",
        "axis 1",
        "axis 2",
    }


def test_the_last_row_of_a_long_diagonal_has_every_column():
    case = truth("causal_softmax", 0, 6, rows=3, columns=5).case
    assert case.scalars["diagonal"] == 2
    there = masks.kept({**case.tensors, "mask": None}, case.scalars, causal=True)
    assert there.reshape(3, 5).tolist() == [[True] * 3 + [False] * 2, [True] * 4 + [False], [True] * 5]

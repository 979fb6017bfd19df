"""Norms of input + residual, masked and scaled or not: exact results, bounds, what tells forms apart."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from checks_support import in_turn
from mpmath import mp, mpf
from rounded_ops import declared
from simulated_kernel import simulate, simulate_every_way, utilisation

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import sequential, tree
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.oracle.decide import decide
from verifier.records.observation import Observation
from verifier.records.subject import Trees
from verifier.records.verdict import Verdict

TREES = Trees(statistics=tree(lanes=4), row_gradients=tree(lanes=4), columns=sequential())
DROPPED = ("dropout_add_layer_norm", "dropout_add_rms_norm")
NAMES = ("add_layer_norm", "add_rms_norm", *DROPPED)
FORMS = [(name, form) for name in NAMES for form in op(name).forms]
FAMILIES = (
    Values(),
    Values(hazard="cancellation", strength=3),
    Values(hazard="one_outlier", strength=4),
    Values(hazard="wide_exponents", strength=4),
    Values(hazard="constant_row"),
    Values(scale=-9),
)
EXTENTS = ((6, 37), (3, 64), (1, 5), (4, 1))
BITS = 200


def truth_of(name, form, dtype, accumulates, recipe, **arithmetic):
    known = op(name).forms.get(form)
    usual = "two_pass_corrected_mean" if known is not None and known.reads_parts else "two_pass"
    variance = "rms" if "rms" in name else usual
    subject = declared(name, formula=form, variance=variance, trees=TREES)
    case = build(op(name), subject, dtype, recipe, gradients=True)
    return Truth(
        subject=subject, case=case, setting=Setting(arithmetic=ieee(accumulates, **arithmetic), trees=TREES)
    )


def with_probability(truth, p):
    return replace(truth, case=replace(truth.case, scalars={**truth.case.scalars, "p": p}))


def norms(seed, family=FAMILIES[0], **more):
    rows, columns = EXTENTS[seed % len(EXTENTS)]
    return Recipe(
        rows=rows, columns=columns, variant=seed % 2, input=replace(family, seed=seed),
        weight=None if seed == 2 else Values(seed=seed + 1), bias=Values(seed=seed + 2),
        grad_output=Values(seed=seed + 3), **more,
    )  # fmt: skip


# -- exact results -------------------------------------------------------------------------------------


def factor_of(case):
    """Return what multiplies the input: 1 / (1 - p) where it is kept, else 0; 1 where there is no mask."""
    kept = case.given.get("dropout_mask")
    return torch.ones(case.input_shape) if kept is None else kept.double() / (1 - case.scalars["p"])


def numbers(tensor, case):
    if isinstance(tensor, np.ndarray):
        return tensor
    values = [mpf(float(v)) for v in tensor.double().flatten()]
    return np.array(values, dtype=object).reshape(case.rows, case.columns)


def reference(case, total, *, centred, factor=None):
    """Return results of a norm of given sums, (rows, columns), by the definition in mpmath."""
    given = case.given
    x, n = numbers(total, case), case.columns
    g, sum_gradient = numbers(given["grad_output"], case), numbers(given["grad_new_residual"], case)
    one = [mpf(1)] * n
    w = [mpf(float(v)) for v in given["weight"].flatten()] if "weight" in given else one
    b = [mpf(float(v)) for v in given["bias"].flatten()] if "bias" in given else [mpf(0)] * n
    output, gradient = np.empty_like(x), np.empty_like(x)
    for i, row in enumerate(x):
        mean = sum(row) / n if centred else mpf(0)
        rstd = 1 / mp.sqrt(sum((v - mean) ** 2 for v in row) / n + mpf(case.eps))
        hat = [(v - mean) * rstd for v in row]
        d = [gi * wi for gi, wi in zip(g[i], w, strict=True)]
        c1 = sum(h * di for h, di in zip(hat, d, strict=True)) / n
        c2 = sum(d) / n if centred else mpf(0)
        output[i] = [h * wi + bi for h, wi, bi in zip(hat, w, b, strict=True)]
        gradient[i] = [
            (di - h * c1 - c2) * rstd + r for di, h, r in zip(d, hat, sum_gradient[i], strict=True)
        ]
    own = gradient * (numbers(factor_of(case), case) if factor is None else factor)
    return {"output": output, "grad_input": own, "grad_residual": gradient}


@pytest.mark.parametrize(("form", "dtype"), [("canonical", "bfloat16"), ("kept_sum", "bfloat16"),
                                             ("canonical", "float32"), ("kept_sum", "float64")])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_exact_results_are_those_of_the_sum_that_the_form_reads(name, form, dtype):
    for seed in range(3):
        truth = truth_of(name, form, dtype, "float64" if dtype == "float64" else "float32", norms(seed))
        truth = with_probability(truth, 0.75) if name in DROPPED else truth
        given = truth.case.given
        wide = torch.float64 if dtype == "float64" else torch.float32
        total = given["input"].to(wide) * factor_of(truth.case).to(wide) + given["residual"].to(wide)
        stored = total.to(given["residual"].dtype)
        assert (
            truth.exact["new_residual"].high == stored.reshape(truth.case.rows, -1).double().numpy()
        ).all()
        with mp.workprec(BITS):
            read = total if form == "kept_sum" else stored
            expected = reference(truth.case, read, centred="layer" in name)
            for result, wanted in expected.items():
                found = truth.exact[result]
                low, radius = (np.broadcast_to(p, found.shape).ravel() for p in (found.low, found.radius))
                parts = zip(wanted.ravel(), found.high.ravel(), low, radius, strict=True)
                for exact, high, rest, spread in parts:
                    error = abs(exact - mpf(float(high)) - mpf(float(rest)))
                    assert error <= mpf(float(spread)) + mpf(2) ** -150 * (abs(exact) + 1), result
                    assert spread <= 2.0**-40 * (1.0 + abs(high))


def test_a_gradient_in_float64_is_decided_however_close_it_is_to_its_bound():
    truth = truth_of("add_layer_norm", "canonical", "float64", "float64", norms(0))
    problem, given = truth.solved.problem, truth.case.given
    actual = np.asarray(truth.exact["grad_residual"].high)
    with mp.workprec(BITS):
        exact = reference(truth.case, given["input"] + given["residual"], centred=True)["grad_residual"]
        pairs = zip(actual.ravel(), exact.ravel(), strict=True)
        errors = np.array([float(abs(mpf(float(a)) - e)) for a, e in pairs]).reshape(actual.shape)
    for factor in (1.0 - 2.0**-50, 1.0 + 2.0**-50):
        found = decide(problem, "grad_residual", actual, factor * errors, solution=truth.solved.solution)
        assert "arb" in found.rung_counts
        assert not found.undecided.any()
        assert found.passed.all() == (factor > 1.0)
        assert found.failed.all() == (factor < 1.0)


# -- bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "dtypes"), in_turn(FORMS, [("float32",) * 2, ("float16",) * 2, ("bfloat16", "float32")])
)
def test_every_form_stays_inside_its_bound(named, dtypes):
    name, form = named
    worst: dict[str, float] = {}
    for index, family in enumerate(FAMILIES):
        wider = dtypes[1] if index % 2 == 0 else None  # a residual in the format of sums, and in the input's
        truth = truth_of(name, form, *dtypes, norms(index, family, residual_dtype=wider))
        for found in simulate_every_way(truth):
            for result, value in utilisation(truth, found).items():
                worst[result] = max(worst.get(result, 0.0), value)
    assert {n: w for n, w in worst.items() if not w <= 1.0} == {}
    assert worst["output"] > 0.1
    assert worst["grad_input"] > 0.01


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("computed", "claimed"), [("kept_sum", "canonical"), ("canonical", "kept_sum")])
def test_a_sum_that_is_kept_and_one_that_is_stored_are_told_apart(name, computed, claimed):
    beyond = 0.0
    for seed in (0, 1):
        ran, judged = (
            truth_of(name, form, "bfloat16", "float32", norms(seed)) for form in (computed, claimed)
        )
        found = {"output": simulate(ran)["output"]}
        assert utilisation(ran, found)["output"] <= 1.0
        beyond = max(beyond, utilisation(judged, found)["output"])
    assert beyond > 1.0


def test_no_ulp_is_left_to_the_sum_that_is_returned():
    truth = truth_of("add_rms_norm", "canonical", "float32", "float32", norms(0))
    given = truth.case.given
    total = given["input"] + given["residual"]
    right, wrong = Observation(status="ok", outputs={"new_residual": total}), total.clone()
    wrong.view(-1)[3] = torch.nextafter(wrong.view(-1)[3], torch.tensor(torch.inf))
    assert [o.verdict for o in judge(truth, right, ("new_residual",))] == [Verdict.PASS]
    (found,) = judge(truth, Observation(status="ok", outputs={"new_residual": wrong}), ("new_residual",))
    assert (found.verdict, found.wrong) == (Verdict.FAIL, 1)


def test_a_sum_beyond_the_residuals_dtype_has_no_theorem():
    truth = truth_of("add_rms_norm", "canonical", "float16", "float32", norms(1))
    whole = torch.full_like(truth.case.given["input"], 60000.0)
    case = replace(truth.case, tensors={**truth.case.tensors, "input": whole, "residual": whole})
    beyond = replace(truth, case=case)
    assert not beyond.bounds["new_residual"].covered.any()
    assert not beyond.bounds["output"].covered.any()


@pytest.mark.parametrize("name", DROPPED)
@pytest.mark.parametrize("p", [0.1, 0.3])
def test_a_scale_that_is_no_power_of_two_has_the_exact_sum(name, p):
    truth = truth_of(name, "canonical", "float32", "float32", norms(0))
    truth = with_probability(truth, p)
    given = truth.case.given
    with mp.workprec(BITS):
        kept = given["dropout_mask"].reshape(truth.case.rows, -1).numpy()
        factor = np.where(kept, 1 / (1 - mpf(p)), mpf(0))
        total = numbers(given["input"], truth.case) * factor + numbers(given["residual"], truth.case)
        expected = reference(truth.case, total, centred="layer" in name, factor=factor)
        for result, wanted in {**expected, "new_residual": total}.items():
            found = truth.exact[result]
            low, radius = (np.broadcast_to(a, found.shape).ravel() for a in (found.low, found.radius))
            for exact, high, rest, spread in zip(
                wanted.ravel(), found.high.ravel(), low, radius, strict=True
            ):
                assert abs(exact - mpf(float(high)) - mpf(float(rest))) <= mpf(float(spread)), result
                assert spread <= 2.0**-90 * (1.0 + abs(high))


@pytest.mark.parametrize("name", DROPPED)
def test_where_the_scale_is_rounded_other_statistics_have_no_theorem(name):
    truth = truth_of(name, "canonical", "float32", "float32", norms(0))
    other = with_probability(truth, 0.1)
    assert all(bounded.covered.all() for bounded in other.bounds.values())
    claim = replace(truth.subject.claim, variance="welford" if "layer" in name else "two_pass")
    another = replace(other, subject=replace(truth.subject, claim=claim)).bounds
    assert {result for result, bounded in another.items() if bounded.covered.any()} == {"new_residual"}
    assert "is rounded" in another["output"].why


@pytest.mark.parametrize("form", ["canonical", "kept_sum", "autograd"])
@pytest.mark.parametrize("name", DROPPED)
def test_a_rounded_scale_is_within_the_bounds_whichever_way_it_is_used(name, form):
    worst = 0.0
    for seed, (dtype, accumulates) in enumerate(
        [("float32", "float32"), ("bfloat16", "float32"), ("float16", "float16"), ("float64", "float64")]
    ):
        for p in (0.1, 0.3, 0.999):
            truth = truth_of(name, form, dtype, accumulates, norms(seed % 3, FAMILIES[seed % len(FAMILIES)]))
            truth = with_probability(truth, p)
            for way in range(10):
                found = utilisation(truth, simulate(truth, way=way))
                assert all(share <= 1.0 for share in found.values()), (dtype, p, way, found)
                worst = max(worst, *found.values())
    assert worst > 0.5


@pytest.mark.parametrize("name", DROPPED)
def test_a_scale_in_bfloat16_is_beyond_the_bounds_of_float32(name):
    truth = truth_of(name, "autograd", "float32", "float32", norms(0))
    truth = with_probability(truth, 0.1)
    assert failing(truth, written_out(truth)) == set()
    held = float(torch.tensor(1 / 0.9, dtype=torch.bfloat16))
    wrong = written_out(truth, factor=torch.where(truth.case.given["dropout_mask"], held, 0.0))
    assert failing(truth, wrong) >= {"new_residual", "grad_input"}


def test_where_additions_flush_a_row_with_subnormal_numbers_has_no_theorem():
    truth = truth_of("add_layer_norm", "canonical", "float32", "float32", norms(0), flush_to_zero=True)
    assert truth.bounds["output"].covered.all()
    x = truth.case.given["input"].clone()
    x.reshape(truth.case.rows, -1)[1, 2] = 1e-40
    small = replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, "input": x}))
    covered = np.broadcast_to(small.bounds["output"].covered, (truth.case.rows, truth.case.columns))
    assert covered.all(axis=1).tolist() == [row != 1 for row in range(truth.case.rows)]
    assert "flush" in small.bounds["output"].why
    assert (small.bounds["new_residual"].bound > 0).all()


# -- by torch's operators ------------------------------------------------------------------------------


def written_out(truth, *, sum_gradient=True, through=False, dtype=torch.float32, factor=None, keeps=False):
    """Return results of a block written out in torch: its sum is stored, autograd does the rest.

    sum_gradient: the gradient of the sum is added. through: it goes through the norm, as the output's does.
    """
    case = truth.case
    floats = {n: t for n, t in case.given.items() if t.is_floating_point() and not n.startswith("grad_")}
    leaves = {n: t.clone().requires_grad_() for n, t in floats.items()}
    factor = (factor_of(case) if factor is None else factor).to(
        torch.promote_types(dtype, case.given["input"].dtype)
    )
    kept = (leaves["input"].to(factor.dtype) * factor).to(leaves["input"].dtype)  # as torch's dropout has it
    total = kept + leaves["residual"] if not keeps else kept.to(dtype) + leaves["residual"].to(dtype)
    stored = total.to(leaves["residual"].dtype)
    x = total.to(dtype)
    if "rms" not in case.op:
        x = x - x.mean(-1, keepdim=True)
    dims = tuple(range(-len(case.scalars["normalized_shape"]), 0))
    if len(dims) > 1 and "rms" not in case.op:
        x = total.to(dtype) - total.to(dtype).mean(dims, keepdim=True)
    output = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + case.eps)
    output = output * leaves["weight"] if "weight" in leaves else output
    output = (output + leaves["bias"] if "bias" in leaves else output).to(leaves["input"].dtype)
    gradient, other = case.given["grad_output"], case.given["grad_new_residual"]
    other = other if sum_gradient and not through else torch.zeros_like(other)
    gradient = gradient + case.given["grad_new_residual"] if through else gradient
    found = torch.autograd.grad([output, stored], list(leaves.values()), [gradient, other])
    results = {f"grad_{n}": g for n, g in zip(leaves, found, strict=True)}
    return {"output": output.detach(), "new_residual": stored.detach(), **results}


def failing(truth, results, least=51):
    found = judge(truth, Observation(status="ok", outputs=results), tuple(results))
    assert sum(o.decided for o in found) >= least
    return {o.output for o in found if o.verdict is Verdict.FAIL}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_what_autograd_makes_of_a_block_keeps_the_form_that_says_so(name, dtype):
    for seed, held in product((0, 1), ("input", "float32")):
        truth = truth_of(name, "autograd", dtype, "float32", norms(seed, residual_dtype=held))
        assert failing(truth, written_out(truth)) == set()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.hazard} {family.scale}")
@pytest.mark.parametrize("name", NAMES)
def test_autograd_may_begin_with_the_gradient_of_the_sum(name, family):
    truth = truth_of(name, "autograd", "float32", "float32", norms(0, family))
    assert failing(truth, written_out(truth), least=0) == set()


@pytest.mark.parametrize("name", DROPPED)
def test_a_dropout_of_its_own_may_round_before_and_after_the_norm(name):
    """The sum is kept and the residual wider than the input: each is rounded where its own tensor is."""
    for form, wide in (("kept_sum_autograd", False), ("autograd", True), ("canonical", True)):
        truth = with_probability(truth_of(name, form, "bfloat16", "float32", norms(1)), 0.1)
        if wide:
            given = truth.case.tensors
            more = {n: given[n].float() * (1 + 2.0**-12) for n in ("residual", "grad_new_residual")}
            truth = replace(truth, case=replace(truth.case, tensors={**given, **more}))
        results = written_out(truth, keeps=not wide)
        if form == "canonical":  # its gradients are those of a fused kernel
            results = {n: results[n] for n in ("output", "new_residual", "grad_input")}
        assert failing(truth, results, least=0) == set(), form


@pytest.mark.parametrize("options", [{"mean_cast": "bfloat16"}, {"squares_tree": sequential()}])
def test_where_the_scale_is_rounded_options_of_an_algorithm_have_no_theorem(options):
    truth = truth_of("dropout_add_layer_norm", "canonical", "float32", "float32", norms(0))
    claim = replace(truth.subject.claim, variance_options=options)
    other = replace(with_probability(truth, 0.1), subject=replace(truth.subject, claim=claim))
    assert {n for n, bounded in other.bounds.items() if bounded.covered.any()} == {"new_residual"}


@pytest.mark.parametrize("name", [*DROPPED, "silu_gate_rms_norm", "silu_gate_layer_norm"])
def test_a_statistic_that_a_form_computes_is_decided_as_one_of_the_form(name):
    """Where double-double cannot tell, as of huge numbers, Arb must ask the same question."""
    truth = truth_of(name, "canonical", "float64", "float64", norms(0))
    truth = with_probability(truth, 0.1) if name in DROPPED else truth
    # Beyond 2^60 eps is nothing, and rows that are larger have a smaller rstd.
    large, huge = scaled_rows(truth, 60), scaled_rows(truth, 415)
    right = np.asarray(large.exact["rstd"].high) * 2.0 ** (60 - 415)
    bound, (problem, solution) = 2.0**-50 * right, (huge.solved.problem, huge.solved.solution)
    found = decide(problem, "rstd", right, bound, solution=solution)
    assert found.passed.all()
    assert found.rung_counts["arb"] == truth.case.rows
    assert decide(problem, "rstd", right * (1 + 2.0**-40), bound, solution=solution).failed.all()


def scaled_rows(truth, exponent):
    names = [n for n in ("input", "residual") if n in truth.case.tensors]
    larger = {n: truth.case.tensors[n] * 2.0**exponent for n in names}
    return replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, **larger}))


@pytest.mark.parametrize("p", [5e-324, 1 - 2.0**-25, 1 - 2.0**-9, 1.0])
def test_a_probability_that_no_kernel_holds_is_not_taken_for_exact(p):
    for dtype in ("float32", "bfloat16"):
        truth = with_probability(truth_of(DROPPED[0], "canonical", dtype, "float32", norms(0)), p)
        if p != 5e-324:
            assert not (
                truth.bounds["new_residual"].covered & (truth.bounds["new_residual"].bound == 0)
            ).any()
        assert truth.exact["new_residual"].high.shape == (truth.case.rows, truth.case.columns)


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_rounded_before_the_other_one_is_added_needs_the_form_that_says_so(name):
    truth = truth_of(name, "canonical", "bfloat16", "float32", norms(0))
    assert failing(truth, written_out(truth)) == {"grad_input", "grad_residual"}


@pytest.mark.parametrize("wrong", [{"sum_gradient": False}, {"through": True}])
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_of_the_sum_that_is_lost_or_goes_through_the_norm_is_wrong(name, wrong):
    truth = truth_of(name, "autograd", "float32", "float32", norms(0))
    assert {"grad_input", "grad_residual"} <= failing(truth, written_out(truth, **wrong))

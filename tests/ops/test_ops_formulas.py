"""Ops whose meaning is a formula: exact results by mpmath, bounds by simulated kernels of every form."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from rounded_ops import declared
from simulated_kernel import simulate_every_way, utilisation

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import sequential, tree
from verifier.cases.recipe import Recipe, assemble, build
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.oracle.decide import decide
from verifier.records.subject import Trees

TREES = Trees(statistics=tree(lanes=4), row_gradients=tree(lanes=4), columns=sequential())
BITS, STEP = 600, 2.0**-150


def normalized(row, eps, *, centred):
    mean = sum(row["input"]) / len(row["input"]) if centred else mpf(0)
    away = [x - mean for x in row["input"]]
    root = mp.sqrt(sum(d * d for d in away) / len(away) + eps)
    weight, bias = row.get("weight", [mpf(1)] * len(away)), row.get("bias", [mpf(0)] * len(away))
    return [d / root * w + b for d, w, b in zip(away, weight, bias, strict=True)]


def sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def gated(row, eps, *, centred, silu):
    pairs = zip(normalized(row, eps, centred=centred), row["gate"], strict=True)
    return [y * (g * sigmoid(g) if silu else sigmoid(g)) for y, g in pairs]


def one_plus(row, eps, *, centred):
    return normalized({**row, "weight": [1 + w for w in row["weight"]]}, eps, centred=centred)


def gated_first(row, eps, *, centred, silu):
    pairs = zip(row["input"], row["gate"], strict=True)
    u = [x * (g * sigmoid(g) if silu else sigmoid(g)) for x, g in pairs]
    return normalized({**row, "input": u}, eps, centred=centred)


def dynamic_tanh(row, eps):
    del eps
    curves = [mp.tanh(row["alpha"][0] * x) for x in row["input"]]
    weight, bias = row.get("weight", [mpf(1)] * len(curves)), row.get("bias", [mpf(0)] * len(curves))
    return [c * w + b for c, w, b in zip(curves, weight, bias, strict=True)]


def poly_norm(row, eps):
    def norm(power):
        size = mp.sqrt(sum(p * p for p in power) / len(power) + eps)
        return [p / size for p in power]

    norms = [norm([x**k for x in row["input"]]) for k in (3, 2, 1)]
    return [
        sum(w * n for w, n in zip(row["weight"], ns, strict=True)) + row["bias"][0]
        for ns in zip(*norms, strict=True)
    ]


MEANINGS = {
    "poly_norm": poly_norm,
    **{
        f"{'silu' if silu else 'sigmoid'}_gate_{norm}_norm": lambda row, eps, n=norm, s=silu: gated_first(
            row, eps, centred=n == "layer", silu=s
        )
        for norm in ("rms", "layer")
        for silu in (True, False)
    },
    "dynamic_tanh": dynamic_tanh,
    **{
        f"{norm}_norm_one_plus_weight": lambda row, eps, n=norm: one_plus(row, eps, centred=n == "layer")
        for norm in ("rms", "layer")
    },
    "l2_norm": lambda row, eps: [x / mp.sqrt(sum(v * v for v in row["input"]) + eps) for x in row["input"]],
    **{
        f"{norm}_norm_{'silu' if silu else 'sigmoid'}_gate": lambda row, eps, n=norm, s=silu: gated(
            row, eps, centred=n == "layer", silu=s
        )
        for norm in ("rms", "layer")
        for silu in (True, False)
    },
}
"""Each op as a function of one row in mpmath."""
VARIANCES = {"layer": "two_pass", "rms": "rms"}
FAMILIES = (
    Values(),
    Values(hazard="cancellation", strength=3),
    Values(hazard="one_outlier", strength=4),
    Values(hazard="wide_exponents", strength=4),
    Values(hazard="constant_row"),
    Values(scale=-9),
)
EXTENTS = ((6, 37), (3, 64), (1, 5), (4, 1))


NEEDED = {name for name in MEANINGS if "weight" not in op(name).optional}
"""Ops that there is no leaving the weight out of."""


def truth_of(name, form, dtype, accumulates, *recipes):
    """Return the truth of a case; of several recipes, whose rows are as long, one has the rows of all."""
    variance = VARIANCES.get(name.split("_")[0])
    if form is not None and op(name).forms[form].reads_parts:
        variance = "two_pass_corrected_mean"
    subject = declared(name, formula=form, variance=variance, trees=TREES)
    first, *others = (build(op(name), subject, dtype, recipe, gradients=True) for recipe in recipes)
    case = first
    if others:
        alike = {*op(name).parameters, *op(name).wholes}
        of_rows = {n: t for n, t in first.given.items() if n not in alike}
        every = {n: torch.cat([t, *(o.given[n] for o in others)]) for n, t in of_rows.items()}
        tensors = {**first.tensors, **every}
        case = assemble(op(name), dtype, tensors, first.scalars, {}, hazard="several", origin="")
    return Truth(subject=subject, case=case, setting=Setting(arithmetic=ieee(accumulates), trees=TREES))


def rows_of(name, seed, family=FAMILIES[0], gate=FAMILIES[0], extents=None):
    rows, columns = extents or EXTENTS[seed % len(EXTENTS)]
    weight = None if seed == 2 and name not in NEEDED else Values(seed=seed + 1)
    return Recipe(
        rows=rows, columns=columns, variant=seed % 2, input=replace(family, seed=seed),
        weight=weight, bias=Values(seed=seed + 2),
        grad_output=Values(seed=seed + 3),
        further=(("gate", replace(gate, seed=seed + 4)), ("alpha", Values(seed=seed + 5, scale=seed % 3))),
    )  # fmt: skip


# -- exact results -------------------------------------------------------------------------------------


def results(case):
    """Return the output and all gradients by differences of the meaning, in canonical rows."""
    meaning, eps, the_op = MEANINGS[case.op], mpf(case.eps), op(case.op)

    def numbers(name):
        rows = np.atleast_2d(the_op.canonical(case, name, case.given[name].double().numpy()))
        return [[mpf(float(v)) for v in row] for row in rows]

    tensors = {name: numbers(name) for name in case.given}
    incoming = tensors.pop("grad_output")
    found = {"output": []} | {f"grad_{n}": [[mpf(0)] * len(r) for r in t] for n, t in tensors.items()}
    alike = {*the_op.parameters, *the_op.wholes}
    for i in range(case.rows):
        row = {n: list(t[i if len(t) == case.rows and n not in alike else 0]) for n, t in tensors.items()}
        found["output"].append(meaning(row, eps))
        for name, values in row.items():
            own = found[f"grad_{name}"][0 if name in alike else i]
            for j, value in enumerate(values):
                ends = []
                for sign in (1, -1):
                    moved = {**row, name: [*values[:j], value + sign * mpf(STEP), *values[j + 1 :]]}
                    ends.append(sum(g * y for g, y in zip(incoming[i], meaning(moved, eps), strict=True)))
                own[j] += (ends[0] - ends[1]) / (2 * mpf(STEP))
    return {n: np.array(v, dtype=object).reshape(-1) for n, v in found.items()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MEANINGS)
def test_exact_results_enclose_those_of_the_meaning(name, dtype):
    for seed, gate in ((1, FAMILIES[0]), (2, FAMILIES[2])):
        recipe = rows_of(name, seed, FAMILIES[seed - 1], gate, extents=(2, 6))
        truth = truth_of(name, None, dtype, dtype, recipe)
        with mp.workprec(BITS):
            for result, wanted in results(truth.case).items():
                found = truth.exact[result]
                parts = (
                    np.broadcast_to(p, found.shape).ravel() for p in (found.high, found.low, found.radius)
                )
                for exact, high, low, radius in zip(wanted, *parts, strict=True):
                    error = abs(exact - mpf(float(high)) - mpf(float(low)))
                    assert error <= mpf(float(radius)) + mpf(2) ** -250 * (abs(exact) + 1), result
                    assert radius <= 2.0**-60 * (1.0 + abs(high)), result


@pytest.mark.parametrize("name", ["l2_norm", "layer_norm_silu_gate"])
def test_a_result_is_decided_however_close_it_is_to_its_bound(name):
    truth = truth_of(name, None, "float64", "float64", rows_of(name, 1, extents=(2, 6)))
    with mp.workprec(BITS):
        exact = results(truth.case)
    problem, solution = truth.solved.problem, truth.solved.solution
    for result, wanted in exact.items():
        actual = np.asarray(truth.exact[result].high)
        with mp.workprec(BITS):
            pairs = zip(actual.ravel(), wanted, strict=True)
            errors = np.array([float(abs(mpf(float(a)) - e)) for a, e in pairs]).reshape(actual.shape)
        for factor in (1.0 - 2.0**-50, 1.0 + 2.0**-50):
            found = decide(problem, result, actual, factor * errors, solution=solution)
            assert not found.undecided.any()
            assert found.passed[errors > 0].all() == (factor > 1.0)


@pytest.mark.parametrize("name", ["l2_norm", "rms_norm_silu_gate"])
def test_what_nan_reaches_has_no_exact_value_and_nothing_else_is_lost(name):
    truth = truth_of(name, None, "float32", "float32", rows_of(name, 1))
    tensor = "gate" if "gate" in name else "input"
    poisoned = truth.case.given[tensor].clone()
    poisoned.view(-1)[70] = torch.nan  # row 1, column 6
    other = replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, tensor: poisoned}))
    lost = {n: np.isnan(other.exact[n].high) for n in ("output", "grad_input")}
    rows = np.arange(3)[:, None] == 1
    places = np.arange(64)[None, :] == 6
    assert (lost["output"] == (rows & places if tensor == "gate" else rows & (places | True))).all()
    assert (lost["grad_input"] == (rows & (places | True))).all()


# -- bounds --------------------------------------------------------------------------------------------

FORMS = [(name, form) for name in MEANINGS for form in op(name).forms]


@pytest.mark.parametrize("dtypes", [("float32",) * 2, ("bfloat16", "float32")])
@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_form_stays_inside_its_bound(name, form, dtypes):
    worst: dict[str, float] = {}
    recipes: dict[tuple[int, int], list[Recipe]] = {}
    for index, family in enumerate(FAMILIES):
        gate = replace(FAMILIES[-index], scale=(0, 3, 7)[index % 3])  # up to 128: exponentials overflow
        recipes.setdefault(EXTENTS[index % len(EXTENTS)], []).append(rows_of(name, index, family, gate))
    for alike in recipes.values():
        truth = truth_of(name, form, *dtypes, *alike)
        for found in simulate_every_way(truth):
            for result, value in utilisation(truth, found).items():
                worst[result] = max(worst.get(result, 0.0), value)
    assert {n: w for n, w in worst.items() if not w <= 1.0} == {}
    assert worst["output"] > 0.1
    assert worst["grad_input"] > 0.01


WHOLE = [(name, form) for name, form in FORMS if op(name).wholes]


@pytest.mark.parametrize("held", ["float16", "bfloat16"])
@pytest.mark.parametrize(("name", "form"), WHOLE)
def test_so_it_does_where_all_is_computed_in_half_precision(name, form, held):
    for index, family in enumerate(FAMILIES):
        truth = truth_of(name, form, held, held, rows_of(name, index, family))
        for found in simulate_every_way(truth):
            assert {n: w for n, w in utilisation(truth, found).items() if not w <= 1.0} == {}


def test_a_gate_whose_exponential_overflows_has_a_bound_all_the_same():
    recipe = rows_of("rms_norm_silu_gate", 1, gate=Values(scale=12))
    truth = truth_of("rms_norm_silu_gate", "canonical", "float32", "float32", recipe)
    gate = truth.case.given["gate"].reshape(truth.case.rows, -1).double().numpy()
    assert (gate < -1000).any()
    for name in ("output", "grad_gate"):
        bounded = truth.bounds[name]
        assert np.broadcast_to(bounded.covered, gate.shape).all()
        assert (np.broadcast_to(bounded.bound, gate.shape)[gate < -1000] < 1e-30).all()


@pytest.mark.parametrize(("norm", "incoming", "gate"), [(2.0**-33, 1.0, -77.7), (2.0**-79, 2.0**18, -53.0)])
def test_factors_may_be_multiplied_in_any_order_although_a_product_of_two_is_subnormal(norm, incoming, gate):
    recipe = rows_of("rms_norm_silu_gate", 2)
    truth = truth_of("rms_norm_silu_gate", "canonical", "float32", "float32", recipe)
    root = np.float32(np.sqrt(np.float32(truth.case.eps)))
    values = {"input": float(norm * root), "grad_output": incoming, "gate": gate}
    tensors = {n: torch.full_like(t, values[n]) for n, t in truth.case.tensors.items() if n in values}
    truth = replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, **tensors}))
    x, z, incoming = (np.float32(values[name]) for name in ("input", "gate", "grad_output"))
    n, one = x * (np.float32(1.0) / root), np.float32(1.0)
    s = one / (one + np.exp(-z))
    slope = s * (one + z * (one - s))
    orders = {
        "output": (n * (z * s), n * z * s, n * s * z),
        "grad_gate": (incoming * n * slope, incoming * slope * n, incoming * (n * slope)),
    }
    for name, computed in orders.items():
        exact, bound = np.asarray(truth.exact[name].high), np.asarray(truth.bounds[name].bound)
        for value in computed:
            assert (np.abs(float(value) - exact) <= bound).all(), name


def test_so_may_those_of_the_gradient_of_a_gate_that_comes_before_the_norm():
    recipe = rows_of("silu_gate_rms_norm", 2)
    truth = truth_of("silu_gate_rms_norm", "canonical", "float32", "float32", recipe)
    values = {"input": 2.0**-70, "grad_output": 2.0**18, "gate": -53.0}
    tensors = {n: torch.full_like(t, values[n]) for n, t in truth.case.tensors.items() if n in values}
    truth = replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, **tensors}))
    x, incoming, z, one = (np.float32(v) for v in (*values.values(), 1.0))
    s = one / (one + np.exp(-z))
    slope, through = s * (one + z * (one - s)), incoming / np.sqrt(np.float32(truth.case.eps))
    exact, bound = np.asarray(truth.exact["grad_gate"].high), np.asarray(truth.bounds["grad_gate"].bound)
    for value in (through * x * slope, through * slope * x, through * (x * slope)):
        assert (np.abs(float(value) - exact) <= bound).all()


@pytest.mark.parametrize("name", ["silu_gate_rms_norm", "rms_norm_silu_gate"])
def test_the_slope_of_a_gate_may_be_multiplied_up_as_two_factors(name):
    """As flash-linear-attention does: a part of the product is subnormal, and the last factor is -85."""
    truth = truth_of(name, "canonical", "float32", "float32", rows_of(name, 2))
    eps, one = np.float32(truth.case.eps), np.float32(1.0)
    x, incoming, z = np.float32(2.0**-10), np.float32(2.0**-16), np.float32(-86.3)
    tensors = {"input": float(x), "grad_output": float(incoming), "gate": float(z)}
    given = truth.case.tensors
    tensors = {n: torch.full_like(t, tensors[n]) for n, t in given.items() if n in tensors}
    truth = replace(truth, case=replace(truth.case, tensors={**given, **tensors}))
    s = one / (one + np.exp(-z))
    size = x * x if name.startswith("rms") else np.float32(0.0)
    product = incoming * (x / np.sqrt(size + eps))
    value = product * s * (one + z * (one - s))
    exact, bound = np.asarray(truth.exact["grad_gate"].high), np.asarray(truth.bounds["grad_gate"].bound)
    assert (np.abs(float(value) - exact) <= bound).all()
    at_once = np.abs(float(product * (s * (one + z * (one - s)))) - exact)
    assert (np.abs(float(value) - exact) > 3.0 * at_once).all()


@pytest.mark.parametrize("name", ["silu_gate_layer_norm", "sigmoid_gate_layer_norm"])
def test_one_column_has_a_bound_however_much_what_is_gated_may_err(name):
    """Nothing is left of it but what two ways to compute it differ by: more than eps, yet a square."""
    recipe = rows_of(name, 1, Values(scale=40), extents=(3, 1))
    truth = truth_of(name, "canonical", "float32", "float32", recipe)
    assert (truth.case.largest * 2.0**-24) ** 2 > 1e3 * truth.case.eps
    for found in simulate_every_way(truth):
        assert {n: w for n, w in utilisation(truth, found).items() if not w <= 1.0} == {}
    assert all(np.asarray(bounded.covered).all() for bounded in truth.bounds.values())


# -- what a domain is about ------------------------------------------------------------------------------

FIRST = ("silu_gate_layer_norm", "sigmoid_gate_layer_norm", "silu_gate_rms_norm", "sigmoid_gate_rms_norm")


@pytest.mark.parametrize("name", FIRST)
def test_kappa_and_the_largest_number_are_those_of_what_is_gated(name):
    recipe = rows_of(name, 1, Values(hazard="constant_row", scale=30), Values(scale=2), extents=(3, 64))
    case = truth_of(name, None, "float32", "float32", recipe).case
    x, z = (case.given[n].double().reshape(3, 64) for n in ("input", "gate"))
    u = (x * (z * torch.sigmoid(z) if name.startswith("silu") else torch.sigmoid(z))).numpy()
    assert case.largest == np.abs(u).max()
    assert case.kappa == (np.abs(u.mean(axis=1)) / u.std(axis=1)).max()
    assert case.kappa < 10.0  # of the input alone it is infinite, or what rounding makes of a spread of 0


def test_a_gate_of_minus_infinity_is_shut_and_any_other_infinity_is_one():
    read = op("silu_gate_layer_norm").normalized
    gate = torch.tensor([-torch.inf, torch.inf, torch.nan])
    found = read({"input": torch.ones(3), "gate": gate}, {})
    assert found[0] == 0
    assert found[1] == torch.inf
    assert found[2].isnan()

"""No rounded execution of a declared kernel leaves the bound that the affine interpreter composes for it."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checks_support import in_turn
from simulated_kernel import simulate, simulate_every_way, utilisation

from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tree
from verifier.bounds import affine
from verifier.cases.recipe import Recipe, assemble, build
from verifier.checks.support.output_verdict import judge_output
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op
from verifier.records.subject import Claim, Subject, Trees
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_folder, load_subjects

# Small extents: a tree with several lanes, powers of two and not, one column, one row.
DECLARED = Trees(statistics=tree(lanes=4), row_gradients=tree(lanes=4), columns=sequential())
EXTENTS = ((6, 37), (9, 16), (3, 130), (1, 5), (4, 1))
VARIANCE_OF = {"compensated": "two_pass_corrected_mean"}
"""Forms that read what one algorithm alone computes."""
FAMILIES = (
    Values(),
    Values(hazard="cancellation", strength=2),
    Values(hazard="cancellation", strength=5),
    Values(hazard="constant_row"),
    Values(hazard="one_outlier", strength=4),
    Values(hazard="wide_exponents", strength=4),
    Values(hazard="small_integers"),
    Values(scale=-11),
    Values(scale=8),
)


def declared(op_name, **claim):
    usual = "rms" if op_name.startswith("rms") else VARIANCE_OF.get(claim.get("formula"), "two_pass")
    variance = claim.pop("variance", usual)
    if variance == "two_pass_corrected_mean":
        claim.setdefault("variance_options", {"corrects_mean": True})
    return Subject(
        function=_everything,
        name="simulated",
        path=Path(__file__),
        op=op_name,
        language="triton",
        dtypes=("float16", "bfloat16", "float32", "float64"),
        claim=Claim(**{"variance": variance, "trees": DECLARED, **claim}),
    )


def _everything(input, normalized_shape=None, weight=None, bias=None, eps=1e-5):
    """Never called: the simulation takes its place."""


def truth_of(subject, dtype, accumulates, recipe):
    case = build(op(subject.op), subject, dtype, recipe, gradients=True)
    setting = Setting(arithmetic=ieee(accumulates), trees=subject.claim.trees)
    return Truth(subject=subject, case=case, setting=setting)


def worst_of(subject, dtype, accumulates, *, families=FAMILIES, extents=EXTENTS, seeds=(0, 1)):
    """Return the largest utilisation of each result over the families, and how many had a bound."""
    worst: dict[str, float] = {}
    covered = 0
    for index, family in enumerate(families):
        for seed in seeds:
            rows, columns = extents[(index + seed) % len(extents)]
            recipe = Recipe(
                rows=rows,
                columns=columns,
                input=replace(family, seed=seed),
                weight=None if index % 4 == 3 else Values(seed=seed + 1),
                bias=None if index % 3 == 2 else Values(seed=seed + 2),
                grad_output=Values(seed=seed + 3, hazard="lognormal" if index % 2 else "ordinary"),
                eps=(1e-5, 0.5)[seed % 2],
            )
            truth = truth_of(subject, dtype, accumulates, recipe)
            for found in simulate_every_way(truth):
                for name, value in utilisation(truth, found).items():
                    worst[name] = max(worst.get(name, 0.0), value)
            covered += any(bool(b.covered.any()) for b in truth.bounds.values())
    return worst, covered


FORMS = [(name, form) for name in ("layer_norm", "rms_norm") for form in op(name).forms]


@pytest.mark.parametrize(
    ("named", "dtypes"), in_turn(FORMS, [("float32",) * 2, ("float16",) * 2, ("bfloat16", "float32")])
)
def test_every_form_stays_inside_its_bound(named, dtypes):
    name, form = named
    subject = declared(name, formula=form, mean_contraction="none")
    worst, covered = worst_of(subject, *dtypes)
    assert covered > len(FAMILIES)
    assert {n: w for n, w in worst.items() if w > 1.0} == {}
    # A bound that nothing comes near would prove nothing: rounding alone must fill a good part of it.
    assert worst["output"] > 0.1
    assert worst["grad_input"] > 0.01


CONTRACTED = [
    (form, variance)
    for form in op("layer_norm").forms
    for variance in ([VARIANCE_OF[form]] if form in VARIANCE_OF else ["two_pass", "textbook", "welford"])
]


@pytest.mark.parametrize(("form", "variance"), CONTRACTED)
def test_every_algorithm_stays_inside_its_bound_when_products_are_contracted(form, variance):
    subject = declared(
        "layer_norm", formula=form, mean_contraction="mixed", divide_by_n="reciprocal", variance=variance
    )
    for dtypes in (("float32", "float32"), ("float16", "float16")):
        worst, covered = worst_of(subject, *dtypes, seeds=(0,))
        assert covered
        assert {n: w for n, w in worst.items() if w > 1.0} == {}


@pytest.mark.parametrize("form", list(op("rms_norm").forms))
def test_rms_norm_stays_inside_its_bound_when_products_are_contracted(form):
    subject = declared("rms_norm", formula=form, mean_contraction="mixed", divide_by_n="reciprocal")
    worst, _ = worst_of(subject, "float32", "float32")
    assert {n: w for n, w in worst.items() if w > 1.0} == {}


@pytest.mark.parametrize("trees", [any_order(), sequential(), pairwise(), tree(lanes=8)])
def test_every_declared_tree_gives_a_bound_that_holds(trees):
    chosen = Trees(statistics=trees, row_gradients=trees, columns=trees)
    worst, _ = worst_of(declared("layer_norm", trees=chosen), "float16", "float16", seeds=(1,))
    assert {n: w for n, w in worst.items() if w > 1.0} == {}


@pytest.mark.parametrize("saved", ["input", "bfloat16"])
def test_statistics_saved_in_a_narrower_format_stay_inside_their_bound(saved):
    subject = declared("layer_norm", saved_dtype=saved, mean_contraction="none")
    worst, _ = worst_of(subject, "float16", "float32")
    assert {n: w for n, w in worst.items() if w > 1.0} == {}
    ignoring = declared("layer_norm", mean_contraction="none")
    narrow, _ = _against(subject, ignoring, "float16", "float32")
    assert max(narrow.values()) > 1.0, "the rounding of the saved statistics is invisible in this data"


def _against(executed, claimed, dtype, accumulates, **options):
    """Run one declaration and judge by another; return the worst utilisations and the number of cases."""
    worst: dict[str, float] = {}
    count = 0
    for seed in range(4):
        recipe = Recipe(
            rows=8, columns=33, input=Values(seed=seed, **options), grad_output=Values(seed=seed + 9)
        )
        ran = truth_of(executed, dtype, accumulates, recipe)
        judged = truth_of(claimed, dtype, accumulates, recipe)
        for name, value in utilisation(judged, simulate(ran)).items():
            worst[name] = max(worst.get(name, 0.0), value)
        count += 1
    return worst, count


def test_column_sums_held_in_half_need_the_bound_that_says_so():
    held, plain = (
        declared("layer_norm", formula=f, mean_contraction="none") for f in ("torch_cpu", "scale_shift")
    )
    inside, _ = _against(held, held, "bfloat16", "float32")
    assert max(inside.values()) <= 1.0
    beyond, _ = _against(held, plain, "bfloat16", "float32")
    assert beyond["grad_weight"] > 1.0
    assert beyond["grad_bias"] > 1.0


def test_contraction_that_splits_the_mean_needs_the_mixed_theorem():
    """Short rows of large mean: the mean is one number in some uses and another in the rest (Lemma 2)."""
    random = np.random.default_rng(7)
    rows = torch.from_numpy(np.float32(1.0 + 2e-3 * random.random((400, 3))))
    mixed, uncontracted = (
        declared("layer_norm", mean_contraction=how, divide_by_n="reciprocal") for how in ("mixed", "none")
    )
    tensors = {"input": rows, "weight": None, "bias": None, "grad_output": torch.ones_like(rows)}
    scalars = {"eps": 1e-12, "normalized_shape": (3,)}
    case = assemble(op("layer_norm"), "float32", tensors, scalars, {}, hazard="cancellation", origin="")
    setting = Setting(arithmetic=ieee("float32"), trees=DECLARED)
    found = simulate(Truth(subject=mixed, case=case, setting=setting))
    assert utilisation(Truth(subject=mixed, case=case, setting=setting), found)["rstd"] <= 1.0
    assert utilisation(Truth(subject=uncontracted, case=case, setting=setting), found)["rstd"] > 1.0


def test_a_float64_subject_stays_inside_its_bound():
    """Executed in NumPy's float64, one rounding for each operation."""
    subject = declared("layer_norm", mean_contraction="none")
    for kappa in (0, 3, 6):
        values = Values(hazard="cancellation", strength=kappa) if kappa else Values()
        truth = truth_of(subject, "float64", "float64", Recipe(rows=5, columns=24, input=values))
        found = utilisation(truth, simulate(truth))
        assert all(b.covered.all() for b in truth.bounds.values())
        assert max(found.values()) <= 1.0
        assert found["output"] > 0.02


def test_shared_symbols_cancel():
    """Without them the error of rstd would be multiplied by |x| and by |mean| instead of by |x - mean|."""
    subject = declared("layer_norm", formula="scale_shift", mean_contraction="none")
    recipe = Recipe(
        rows=2, columns=64, input=Values(hazard="cancellation", strength=4), weight=None, bias=None
    )
    bound = truth_of(subject, "float32", "float32", recipe).bounds["output"].bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(affine.AffineNumbers, "add", _add_without_symbols)
        loose = truth_of(subject, "float32", "float32", recipe).bounds["output"].bound
    assert np.median(loose / bound) > 1.5


def _add_without_symbols(self, a, b, sign):
    def flat(v):
        return replace(v, symbols={}, rest=v.total)

    return _ORIGINAL["add"](self, flat(a), flat(b), sign)


def test_what_may_overflow_has_no_bound():
    subject = declared("layer_norm")
    tall = Recipe(rows=3, columns=40, input=Values(hazard="max_magnitude"))
    bounded = truth_of(subject, "float32", "float32", tall).bounds["output"]
    assert not bounded.covered.any()
    assert "overflow" in bounded.why
    ordinary = Recipe(rows=3, columns=40)
    truth = truth_of(subject, "float16", "float16", ordinary)
    large = torch.full((40,), 6e4, dtype=torch.float16)
    truth = replace(truth, case=replace(truth.case, tensors={**truth.case.tensors, "weight": large}))
    found = truth.bounds["output"]
    overflows = ~np.isfinite(simulate(truth)["output"])
    assert overflows.any()
    assert not (found.covered & overflows).any()
    assert found.covered.any()


_ORIGINAL = {
    name: getattr(affine.AffineNumbers, name)
    for name in ("add", "product", "_round", "_row_sum", "parameter_sum")
}


def _no_rounding(self, value, relative, absolute, to):
    del relative, absolute, to
    return value


def _no_input_error(self, a, b):
    """A product that forgets the second factor's error."""
    return _ORIGINAL["product"](self, a, replace(b, symbols={}, rest=np.zeros_like(b.rest)))


def _half_the_rounding(self, value, relative, absolute, to):
    return _ORIGINAL["_round"](self, value, relative / 2, absolute, to)


def _one_name_for_all(self, name):
    """Errors of different numbers that share a symbol, and cancel."""
    del self, name
    return "e"


def _sum_of_depth_0(self, value, depth):
    del depth
    return _ORIGINAL["_row_sum"](self, value, 0)


def _columns_of_depth_0(self, value, held=None):
    shallow = replace(self, column_tree=tree(depth=0))
    return replace(_ORIGINAL["parameter_sum"](shallow, value, held), numbers=self)


MUTANTS = [
    ("_round", _no_rounding),
    ("_round", _half_the_rounding),
    ("product", _no_input_error),
    ("_fresh", _one_name_for_all),
    ("_row_sum", _sum_of_depth_0),
    ("parameter_sum", _columns_of_depth_0),
]


@pytest.mark.parametrize(("method", "wrong"), MUTANTS, ids=[f.__name__.strip("_") for _, f in MUTANTS])
def test_a_wrong_rule_is_refuted_by_this_data(method, wrong, monkeypatch):
    monkeypatch.setattr(affine.AffineNumbers, method, wrong)
    deep = Trees(statistics=sequential(), row_gradients=sequential(), columns=sequential())
    worst = 0.0
    for trees, extents in ((DECLARED, EXTENTS), (deep, ((2, 700),)), (deep, ((300, 2),))):
        for form, family in itertools.product(("canonical", "scale_shift"), FAMILIES):
            subject = declared("layer_norm", formula=form, mean_contraction="none", trees=trees)
            found, _ = worst_of(subject, "float32", "float32", extents=extents, families=(family,))
            worst = max(worst, *found.values())
            if worst > 1.0:
                return
    raise AssertionError(f"the largest error is {worst:g} of the wrong bound")


def test_a_saved_statistic_that_overflows_its_format_has_no_bound():
    """rstd of a constant row at eps 1e-12 is 1e6: no float16 number, hence no theorem, and nothing passes."""
    subject = load_subjects(builtin_folder() / "layer_norm_torch.py")[0]
    recipe = Recipe(rows=2, columns=4, input=Values(hazard="constant_row"), eps=1e-12)
    case = build(op("layer_norm"), subject, "float16", recipe, gradients=False)
    truth = Truth(subject=subject, case=case, setting=Setting(arithmetic=ieee("float32"), trees=Trees()))
    for wrong in (0.0, 65504.0, float("inf"), float("nan")):
        outcome = judge_output(truth, "rstd", torch.full((2,), wrong, dtype=torch.float16))
        assert outcome.verdict is Verdict.NO_THEOREM
        assert outcome.decided == 0

"""The fixed list lets every two levels of two factors meet, and a search tries what a PASS speaks of."""

import time
from itertools import combinations, islice, product

import pytest
from test_recipes import every_argument, taking

from strategies.layouts import Layout
from verifier.audit import rules, shrink
from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.audit.report.columns import COLUMNS
from verifier.audit.report.json_document import _line
from verifier.audit.rules import line_verdict, unexpected
from verifier.audit.search import Search
from verifier.cases.extents_and_layouts import PADDED
from verifier.cases.fixed_list import covering, factors, to_be_tried, tried
from verifier.cases.pairwise import Factor, pairwise
from verifier.cases.recipe import build
from verifier.checks import check, checks
from verifier.ops import op, ops
from verifier.records.subject import Domain
from verifier.records.verdict import Verdict

OPS = ("layer_norm", "rms_norm_backward", "batch_norm", "group_norm", "softmax", "unknown")


def carried(recipe):
    """Return which tensor carries the hazard, and its strength."""
    for name in ("weight", "bias", "grad_output"):
        values = recipe.values_of(name)
        if values is not None and values.hazard == "nonfinite":
            return (name, values.strength)
    return ("input", recipe.input.strength)


def levels_of(recipe):
    """Return the level of each factor that a recipe has."""
    return {
        "shape": (recipe.rows, recipe.columns),
        "variant": recipe.variant,
        "hazard": "nonfinite" if carried(recipe)[0] != "input" else recipe.input.hazard,
        "strength": carried(recipe),
        "gradient": "ordinary" if carried(recipe)[0] == "grad_output" else recipe.grad_output.hazard,
        "joint": recipe.joint,
        "layout": recipe.layouts,
        "eps": recipe.eps,
        "weight": recipe.weight is not None,
        "bias": recipe.bias is not None,
    }


def spread(held):
    """Return whether all rows of a case of these levels have a variance."""
    plain = held.get("hazard", "ordinary") == "ordinary" and held.get("joint") is None
    return plain and held.get("shape", (4, 33))[1] > 2


def can_meet(the_op, plan, pair, every):
    """Return whether two levels can be in one case, by trying all shapes and variants."""
    held = dict(pair)
    joint, layout = held.get("joint"), held.get("layout", ())
    carries = held.get("strength", " ")[0] == "grad_output"
    makes = carries or joint in {"coherent_gradient", "null_space_gradient"}
    if makes and held.get("gradient") not in {None, "ordinary"}:
        return False  # the joint hazard makes the gradient, or it carries the hazard
    if joint == "zero_weight" and held.get("weight") is False:
        return False
    if any(held.get(name) is False for name, _ in layout) or held.get(held.get("strength", " ")[0]) is False:
        return False
    if held.get("eps") == 0 and not spread(held):
        return False  # a row may have no variance, hence no value
    aimed = held.get("strength", ("input", 0)) != ("input", 0) and "strength" in plan.must
    if aimed and 0 in held.get("shape", ()):
        return False  # an empty input shows no strength
    shapes = [held["shape"]] if "shape" in held else every["shape"]
    variants = [held["variant"]] if "variant" in held else every["variant"]
    laid = [the_op.shapes(*extents, variant) for extents, variant in product(shapes, variants)]
    return any(
        s is not None
        and (plan.max_rank is None or len(s.tensors["input"]) <= plan.max_rank)
        and all(
            name in s.tensors and p.applies_to(s.tensors[name]) and p.differs(s.tensors[name])
            for name, p in layout
        )
        for s in laid
    )


@pytest.mark.parametrize("check_name", list(checks()))
@pytest.mark.parametrize("name", OPS)
def test_all_pairs_of_factors_meet_within_twice_the_pairs_of_the_two_largest(check_name, name):
    the_op, subject = op(name), taking(name, *every_argument(name))
    plan = check(check_name).plan(subject, the_op).few_shapes()
    listed = [levels_of(recipe) for recipe in covering(subject, plan)]
    every = {f.name: tuple(dict.fromkeys(f.levels)) for f in factors(subject, plan)}
    sizes = sorted(len(f.levels) for f in factors(subject, plan))
    assert len(listed) <= 2 * sizes[-1] * sizes[-2]
    for first, second in combinations(every, 2):
        met = {(levels[first], levels[second]) for levels in listed}
        missing = [pair for pair in product(every[first], every[second]) if pair not in met]
        assert not [m for m in missing if can_meet(the_op, plan, zip((first, second), m, strict=True), every)]


def test_factors_of_equal_size_do_not_go_in_step():
    """Cycles of one period would meet in four pairs of sixteen, for ever."""
    four = [Factor(name=name, levels=range(4)) for name in "abc"]
    listed = [tuple(choice.values()) for choice in pairwise(four)]
    assert len(listed) <= 24
    for places in combinations(range(3), 2):
        assert {tuple(row[p] for p in places) for row in listed} == set(product(range(4), repeat=2))


def test_a_level_that_is_refused_keeps_no_other_from_meeting():
    factors_given = [
        Factor(name="a", levels=range(5)),
        Factor(name="b", levels=range(5)),
        Factor(name="c", levels="xy"),
    ]
    listed = list(
        pairwise(factors_given, accept=lambda choice: choice["a"] != 3 and choice["a"] + choice["b"] != 5)
    )
    met = {(c["a"], c["b"]) for c in listed}
    assert met == {(a, b) for a, b in product(range(5), repeat=2) if a != 3 and a + b != 5}
    assert not list(pairwise(factors_given, accept=lambda _: False))


@pytest.mark.parametrize("name", [n for n in ops() if not n.endswith("backward")])
def test_the_list_is_the_same_each_time_and_begins_with_ordinary_numbers(name):
    subject = taking(name, *every_argument(name))
    plan = check("gradient").plan(subject, op(name))
    first, second = (list(islice(covering(subject, plan), 30)) for _ in range(2))
    assert first == second
    assert {r.input.hazard for r in first[:2]} == {"ordinary"}
    assert len({r.input.hazard for r in first}) > 15
    assert {(4, 33), (2, 1000)} <= {(r.rows, r.columns) for r in first[:2]}


# -- a search --------------------------------------------------------------------------------------

KERNELS = """
@subject(**DECLARED)
def good(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**{**DECLARED, "domain": Domain(max_abs=1e15, optional=False)})
def strides_of_weight_ignored(input, weight=None, bias=None, eps=1e-5):
    if weight is None or bias is None:
        raise ValueError("weight and bias are required")
    return right(input, weight.as_strided(weight.shape, [1] * weight.dim()), bias, eps)

@subject(**{**DECLARED, "guarantees": {"batch_invariance"}})
def by_rows(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""


@pytest.fixture
def subjects(subjects_of):
    return subjects_of(KERNELS)


def searched(subject, runner, check_name="layouts", *, cases=25, seed=0, until=None):
    budget = Budget(cases=cases, until=until)
    return Examination(
        subject=subject, check_name=check_name, dtype="float32", runner=runner, budget=budget, seed=seed
    ).run()


@pytest.mark.parametrize("cases", [1, 6, 25])
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_stride_of_weight_that_is_ignored_is_found_by_every_budget_and_seed(cases, seed, subjects, runner):
    line = searched(subjects["strides_of_weight_ignored"], runner, cases=cases, seed=seed)
    assert line_verdict(line) is Verdict.FAIL


def test_a_stride_of_weight_that_is_ignored_is_found_in_little_time(subjects, runner, monkeypatch):
    monkeypatch.setattr(shrink, "REDUCTION_SECONDS", 0.0)
    until = time.monotonic() + 1.0
    line = searched(subjects["strides_of_weight_ignored"], runner, cases=10**9, until=until)
    assert unexpected(line.findings)


def test_a_budget_is_spent_inside_the_domain_and_a_tenth_beside_it_outside(subjects, runner):
    narrow = Domain(
        min_columns=1, max_columns=100, min_rows=2, max_kappa=10.0, layouts=("padded_rows", "sliced")
    )
    for name in ("forward_error", "layouts"):
        line = searched(subjects["good"].differing(domain=narrow), runner, name)
        assert sum(line.counts.values()) == 25
        assert 0 < line.outside <= 3
        assert set(line.counts) <= {Verdict.PASS, Verdict.NO_THEOREM}
        assert "; outside the domain: " in COLUMNS[-1].text(line)
    assert {name.split()[1] for name in to_be_tried(subjects["good"], _plan(narrow))} == {
        "padded_rows",
        "sliced",
    }


def _plan(domain):
    subject = taking("layer_norm", *every_argument("layer_norm"))
    return check("layouts").plan(subject, op("layer_norm")).within(domain)


def test_optional_tensors_that_a_domain_requires_are_left_out_outside_alone(subjects, runner, monkeypatch):
    seen = []
    original = Examination.judge
    monkeypatch.setattr(Examination, "judge", lambda self, case: seen.append(case) or original(self, case))
    required = subjects["good"].differing(domain=Domain(optional=False))
    line = searched(required, runner, "forward_error", cases=30)
    absent = [case for case in seen if {"weight", "bias"} - set(case.given)]
    assert 0 < len(absent) == line.outside
    assert line.beyond == {Verdict.PASS: line.outside}


@pytest.mark.parametrize(
    ("name", "check_name", "many"),
    [("good", "layouts", 26), ("good", "memory", 25), ("by_rows", "batch_invariance", 120)],
)
def test_a_pass_of_few_cases_says_what_it_does_not_speak_of(name, check_name, many, subjects, runner):
    few, whole = (searched(subjects[name], runner, check_name, cases=n) for n in (2, many))
    assert (line_verdict(few), line_verdict(whole)) == (Verdict.PASS, Verdict.PASS)
    assert few.untried
    assert f"; not tried: {few.untried[0]}" in COLUMNS[-1].text(few)
    assert _line(few)["untried"] == few.untried
    assert len(whole.untried) <= 3 * (name == "by_rows")  # there are forty numbers of rows, three a case
    assert whole.untried or "not tried" not in COLUMNS[-1].text(whole)


def test_every_pattern_of_special_values_is_tried(subjects, runner):
    assert searched(subjects["good"], runner, "special_values", cases=2).untried
    assert not searched(subjects["good"], runner, "special_values").untried


def test_a_timed_search_leaves_time_for_hypothesis(subjects, runner, monkeypatch):
    drawn = []
    original = Search._draw
    monkeypatch.setattr(
        Search, "_draw", lambda self, *given: drawn.append(original(self, *given)) or drawn[-1]
    )
    line = searched(subjects["good"], runner, "forward_error", cases=10**9, until=time.monotonic() + 1.5)
    assert line.listed > 0
    assert sum(tried for tried, _ in drawn) > 0


def test_a_later_round_goes_on_where_the_list_was_left(subjects, runner):
    seen = []
    good = subjects["good"]
    plan = check("finite").plan(good, op("layer_norm"))
    every = [repr(r) for r in islice(covering(good, plan), 24)]
    for first in (0, 12):
        later = Examination(
            subject=good,
            check_name="finite",
            dtype="float32",
            runner=runner,
            budget=Budget(cases=20),
            first=first,
            only=lambda case: seen.append(case.origin) or True,
        )
        assert later.run().listed == first + 12
    assert [o for o in dict.fromkeys(seen) if o in every] == every


@pytest.mark.parametrize("check_name", ["forward_error", "gradient"])
def test_every_rank_is_to_be_tried(check_name):
    full = taking("layer_norm", *every_argument("layer_norm"))
    asked = to_be_tried(full, check(check_name).plan(full, op("layer_norm")))
    assert [word for word in asked if " input with " in word] == [
        "2-D input with normalized_shape 1-D",
        "3-D input with normalized_shape 1-D",
        "3-D input with normalized_shape 2-D",
        "4-D input with normalized_shape 1-D",
        "5-D input with normalized_shape 3-D",
        "1-D input with normalized_shape 1-D",
        "5-D input with normalized_shape 1-D",
    ]


def test_a_search_reaches_every_rank(subjects, runner):
    few, whole = (searched(subjects["good"], runner, "forward_error", cases=n) for n in (2, 25))
    assert few.untried
    assert not whole.untried


def test_empty_inputs_and_single_columns_are_tried(subjects, runner):
    line = searched(subjects["good"], runner, "special_values", cases=1)
    assert {"0 rows of 16", "4 rows of 0", "5 rows of 1"} < set(line.untried)


def test_eps_of_zero_and_eps_left_out_are_tried(subjects, runner):
    full = taking("rms_norm", "input", "weight", "eps")
    asked = to_be_tried(full, check("forward_error").plan(full, op("rms_norm")))
    assert {"eps=0", "eps=1e-20"} < set(asked)
    promised = full.differing(domain=Domain(min_eps=1e-12))
    plan = check("forward_error").plan(promised, op("rms_norm")).within(promised.domain)
    assert not [word for word in to_be_tried(promised, plan) if word.startswith("eps")]
    few, whole = (searched(subjects["good"], runner, "forward_error", cases=n) for n in (1, 25))
    assert {"eps=0", "eps=1e-20"} < set(few.untried)
    assert not whole.untried


@pytest.mark.parametrize(
    ("promised", "strength"),
    [
        (None, 2),
        (Domain(max_kappa=1e3), 2),
        (Domain(max_kappa=1e6), 5),
        (Domain(max_kappa=1e6, max_abs=1e4), 3),
        (Domain(max_abs=1e15), 2),
        (Domain(max_abs=50.0), 1),
        (Domain(max_kappa=10.0), 0),
        (Domain(max_kappa=1.0), 0),
    ],
)
@pytest.mark.parametrize("check_name", ["forward_error", "gradient"])
def test_rows_about_the_largest_mean_that_is_promised_come_early(check_name, promised, strength):
    full = taking("layer_norm", *every_argument("layer_norm")).differing(domain=promised)
    plan = check(check_name).plan(full, op("layer_norm")).within(promised)
    asked = [word for word in to_be_tried(full, plan) if "mean" in word]
    assert asked == ([f"a mean of {10**strength} standard deviations"] if strength else [])
    far = [
        recipe
        for recipe in islice(covering(full, plan), 6)
        if recipe.input.hazard == "cancellation" and recipe.columns > 2
    ]
    assert [recipe.input.strength for recipe in far] == ([strength] if strength else [])
    for recipe in far:
        case = build(op("layer_norm"), full, "float32", recipe, gradients=plan.gradients)
        assert {*asked} <= tried(recipe, case, plan)
        assert promised is None or not rules.outside(full, case)


def test_means_are_demanded_of_norms_that_take_them_alone():
    for name, demanded in (("rms_norm", 0), ("softmax", 0), ("group_norm", 1), ("batch_norm", 1)):
        full = taking(name, *every_argument(name))
        asked = to_be_tried(full, check("gradient").plan(full, op(name)))
        assert sum("mean of" in word for word in asked) == demanded


REFUSING = """
@subject(**DECLARED)
def refuses_zero(input, weight=None, bias=None, eps=1e-5):
    if eps <= 0:
        raise ValueError(f"eps must be positive, but it is {eps}")
    return right(input, weight, bias, eps)

@subject(**{**DECLARED, "domain": Domain(max_abs=1e15, min_eps=0.0)})
def refuses_what_it_promises(input, weight=None, bias=None, eps=1e-5):
    if eps <= 0:
        raise ValueError(f"eps must be positive, but it is {eps}")
    return right(input, weight, bias, eps)
"""


def test_an_eps_of_zero_may_be_refused_but_not_where_it_is_promised(subjects_of, runner):
    of = subjects_of(REFUSING)
    line = searched(of["refuses_zero"], runner, "forward_error")
    assert line_verdict(line) is Verdict.PASS
    assert line.untried == ["eps=0"]
    assert line_verdict(searched(of["refuses_what_it_promises"], runner, "forward_error")) is Verdict.REFUSED


def test_columns_far_apart_are_tried_where_rows_can_be_read_as_vectors():
    """A condition that reads such rows a pack at a time was seen in no row of 33 columns."""
    one = taking("softmax", *every_argument("softmax"))
    plan = check("layouts").plan(one, op("softmax")).few_shapes()
    early = list(islice(covering(one, plan), 12))
    assert any(r.columns % 4 == 0 and dict(r.layouts).get("input", Layout()).column_step == 2 for r in early)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "add_rms_norm"])
def test_rows_of_wider_matrices_are_tried_where_each_tensor_can_be_read_as_vectors(name):
    """A kernel that asks only where the first row begins was seen in no row whose length has vectors."""
    the_op = op(name)
    one = taking(name, *every_argument(name))
    plan = check("layouts").plan(one, the_op).few_shapes()
    for recipe in islice(covering(one, plan), 12):
        shapes = the_op.shapes(recipe.rows, recipe.columns, recipe.variant)
        laid_out = {n: shapes.tensors.get(n) for n in plan.laid_out(the_op, one)}
        like = {n for n, shape in laid_out.items() if shape == shapes.tensors["input"]}
        padded = {n for n, layout in recipe.layouts if layout == PADDED}
        if recipe.columns % 8 == 0 and recipe.rows > 1 and padded == like:
            return
    pytest.fail("no such case among the first twelve")


@pytest.mark.parametrize("name", ["layer_norm_backward", "group_norm_backward", "softmax_backward"])
def test_what_follows_from_other_tensors_lies_in_every_layout_too(name):
    the_op = op(name)
    one = taking(name, *every_argument(name))
    plan = check("layouts").plan(one, the_op)
    demanded = to_be_tried(one, plan)
    for derived in the_op.derived:
        assert f"{derived} sliced" in demanded
        assert f"{derived} expanded" not in demanded
    recipe = next(r for r in covering(one, plan) if {*the_op.derived} & {*dict(r.layouts)} and r.rows > 1)
    case = build(the_op, one, "float32", recipe, gradients=True)
    assert {*case.layouts} & {*the_op.derived}


@pytest.mark.parametrize("name", [name for name, one in ops().items() if "gate" in one.varied])
def test_gates_are_wide_in_every_other_case(name):
    """Normal ones alone never were beyond 5, where a sigmoid may have lost its digits."""
    one = taking(name, *every_argument(name))
    plan = check("forward_error").plan(one, op(name))
    early = [r for r in islice(covering(one, plan), 24) if r.values_of("gate") is not None]
    cases = [build(op(name), one, "float32", r, gradients=False) for r in early]
    reached = [float(c.given["gate"].abs().max()) for c in cases if c is not None and c.elements > 64]
    assert {0, 3, 5} == {r.values_of("gate").scale for r in early}
    assert sum(most > 16 for most in reached) >= len(reached) // 3
    assert max(reached) > 88
    assert sum(most < 6 for most in reached) >= len(reached) // 3

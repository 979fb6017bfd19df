"""Every variant lays out (rows, columns) as PyTorch takes it, and shrinks into cases of the op."""

import math

import numpy as np
import pytest
import torch
from rounded_ops import declared, truth_of, variants

from strategies.layouts import Layout
from strategies.reduce import reduce
from strategies.values import Values
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan as RecipePlan
from verifier.cases.recipe import Recipe, assemble, build
from verifier.checks.support.output_verdict import judge
from verifier.ops import op
from verifier.records.observation import Observation

NAMES = ("softmax", "log_softmax", "group_norm", "batch_norm")
BACKWARD = tuple(f"{name}_backward" for name in NAMES)
EXTENTS = ((6, 12), (1, 1), (1, 30), (4, 1), (0, 16), (5, 0), (0, 0), (13, 17), (16, 34))
CASES = [(name, variant) for name in (*NAMES, *BACKWARD) for variant in variants(name)]


def cases_of(name, variant, **options):
    for rows, columns in EXTENTS:
        recipe = Recipe(rows=rows, columns=columns, variant=variant, **options)
        case = build(op(name), declared(name), "float32", recipe, gradients=True)
        if case is not None:
            yield (rows, columns), case


def by_torch(case):
    """Call PyTorch's own function as the op defines it."""
    given, scalars = dict(case.given), {k: v for k, v in case.scalars.items() if k != "eps"}
    function = torch.nn.functional.__dict__[case.op.removesuffix("_backward")]
    tensors = {n: t.clone() for n, t in given.items() if n != "grad_output"}
    if case.op == "batch_norm":
        tensors = {"running_mean": None, "running_var": None, **tensors}
    if case.op.endswith("norm"):
        scalars["eps"] = case.eps
    differentiable = [n for n in op(case.op).differentiable if n in tensors]
    for name in differentiable:
        tensors[name].requires_grad_(True)
    output = function(**tensors, **scalars)
    found = {"output": output.detach()}
    found |= {n: t for n, t in tensors.items() if n.startswith("running") and t is not None}
    if output.requires_grad and output.numel():
        wanted = [tensors[n] for n in differentiable]
        gradients = torch.autograd.grad(output, wanted, given["grad_output"])
        found |= {f"grad_{n}": g for n, g in zip(differentiable, gradients, strict=True)}
    return found


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_extents_are_read_back_off_the_shapes(name, variant):
    seen = 0
    for (rows, columns), case in cases_of(name, variant):
        assert (case.rows, case.columns) == (rows, columns)
        seen += 1
        x = case.given["input"]
        numbers = np.arange(x.numel(), dtype=np.float64).reshape(tuple(x.shape))
        flat = op(name).canonical(case, "input", numbers)
        assert flat.shape == (rows, columns)
        assert sorted(flat.ravel().tolist()) == list(range(x.numel()))
    one_row = "softmax" in name and variant == 3
    assert seen == (sum(rows == 1 for rows, _ in EXTENTS) if one_row else len(EXTENTS))


# A group norm's values are drawn by sample: all of a sample's groups are alike.
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "batch_norm"])
def test_a_row_of_the_input_is_what_the_statistics_are_taken_over(name):
    """Values are drawn by row: a constant row must be constant in canonical rows, in every variant."""
    for variant in variants(name):
        for _, case in cases_of(name, variant, input=Values(hazard="constant_row")):
            rows = op(name).canonical(case, "input", case.given["input"].double().numpy())
            assert (rows == rows[:, :1]).all()


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_takes_every_shape_and_is_right(name):
    """Whatever it takes lies within the bound of its own form, in double precision."""
    decided = 0
    for variant in variants(name):
        for _, case in cases_of(name, variant):
            if case.columns == 1 or case.rows == 0:
                continue  # one value a row is refused by some, and no channel crashes batch_norm
            subject = declared(name, formula="torch_cpu", saved_dtype="input")
            recipe = Recipe(rows=case.rows, columns=case.columns, variant=variant)
            truth = truth_of(subject, "float64", "float64", recipe)
            seen = Observation(status="ok", outputs=by_torch(truth.case))
            for outcome in judge(truth, seen, tuple(seen.outputs)):
                assert not outcome.wrong, outcome.message
                decided += outcome.decided
    assert decided > 1000


@pytest.mark.parametrize("name", [*NAMES, *BACKWARD])
def test_nothing_empty_or_infinite_upsets_the_bounds(name):
    """Exact results and bounds of such cases have the shapes of the results, and no bound covers a NaN."""
    for variant in variants(name):
        for hazard in ("ordinary", "nonfinite", "max_magnitude", "zeros"):
            for rows, columns in EXTENTS:
                recipe = Recipe(rows=rows, columns=columns, variant=variant, input=Values(hazard=hazard))
                truth = truth_of(declared(name), "bfloat16", "float32", recipe)
                if truth is None:
                    continue
                shapes = {n: np.shape(e.high) for n, e in truth.exact.items()}
                for result, bounded in truth.bounds.items():
                    exact = truth.exact[result]
                    shape = shapes[result]
                    covered = np.broadcast_to(bounded.covered, shape) & np.isfinite(exact.high)
                    bound = np.broadcast_to(bounded.bound, shape)
                    assert np.isfinite(bound[covered]).all()
                    assert (bound[covered] >= 0).all()


@pytest.mark.parametrize("name", [*NAMES, *BACKWARD])
def test_linked_axes_shrink_into_cases_of_the_op(name):
    """The reducer accepts the links, and every case that it makes of them can be judged."""
    the_op = op(name)
    for variant in variants(name):
        recipe = Recipe(rows=6, columns=12, variant=variant)
        case = build(the_op, declared(name), "float32", recipe, gradients=True)
        if case is None:
            recipe = Recipe(rows=1, columns=12, variant=variant)
            case = build(the_op, declared(name), "float32", recipe, gradients=True)
        links = the_op.links(case.tensors, case.scalars)
        for places in links.values():
            assert len({case.given[tensor].shape[axis] for tensor, axis in places}) == 1
        tried = []

        def fails(tensors, case=case, tried=tried):
            full = {**dict.fromkeys(case.tensors), **tensors}
            again = assemble(the_op, "float32", full, case.scalars, {}, hazard="", origin="")
            assert again.rows * again.columns == again.elements
            assert the_op.expected(again, declared(name))
            assert all(np.ndim(e.high) >= 1 for e in truth_like(again).exact.values())
            tried.append(again.elements)
            return again.elements >= 2

        reduce(case.given, fails, axes=links, budget=40)
        assert min(tried) < case.elements


def truth_like(case):
    from verifier.arithmetic.formats import ieee
    from verifier.checks.support.truth import Truth
    from verifier.ops import Setting

    subject = declared(case.op)
    setting = Setting(arithmetic=ieee("float32"), trees=subject.claim.trees)
    return Truth(subject=subject, case=case, setting=setting)


def test_a_buffer_that_is_changed_in_place_is_never_expanded():
    from hypothesis import given, settings

    from verifier.cases.drawn import recipes

    subject, expanded = declared("batch_norm"), []
    plan = RecipePlan(layouts=("contiguous", "expanded", "sliced"), max_elements=64)

    @settings(max_examples=150, database=None)
    @given(recipes(op("batch_norm"), subject, "float32", plan))
    def look(recipe):
        for name, layout in recipe.layouts:
            if layout.expanded != "none":
                expanded.append(name)

    look()
    assert "input" in expanded
    assert not {"running_mean", "running_var"} & set(expanded)


def test_the_fixed_list_reaches_every_variant():
    subject = declared("batch_norm")
    source = covering(subject, RecipePlan())
    assert {next(source).variant for _ in range(40)} == set(variants("batch_norm"))


def test_running_statistics_have_layouts_and_valid_values():
    recipe = Recipe(rows=3, columns=8, layouts=(("running_var", Layout(column_step=2)),))
    case = build(op("batch_norm"), declared("batch_norm"), "float32", recipe, gradients=False)
    assert "running_var" in case.layouts
    assert (case.given["running_var"] >= 0).all()
    assert math.isfinite(float(case.given["running_mean"].sum()))

"""A recipe is a whole case in a line: it is read back, makes the same case again and fits its subject."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.hazards import hazard_names
from strategies.layouts import KINDS, Layout
from strategies.values import Values
from verifier.cases import fixed_list
from verifier.cases.drawn import recipes
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import EPS_NONE, Recipe, build
from verifier.cases.recipe_json import recipe_document, recipe_of
from verifier.checks import checks
from verifier.execution.call_subject import lay_out
from verifier.ops import op, ops
from verifier.oracle.solve import solve
from verifier.records.case import from_document, to_document
from verifier.records.subject import Claim, Domain, Subject
from verifier.subjects.declare import subject as declared


def taking(op_name, *names, bare=(), domain=None):
    """Return a subject of the op that takes these arguments; optional ones have a default unless `bare`."""
    optional = [name for name in op(op_name).optional if name not in bare]
    parameters = (f"{name}=None" if name in optional else name for name in names)
    namespace: dict = {}
    exec(f"def kernel(*, {', '.join(parameters)}): ...", namespace)  # the signature is what counts
    return Subject(
        function=namespace["kernel"],
        name="kernel",
        path=__file__,
        op=op_name,
        language="torch",
        dtypes=("float32",),
        claim=Claim(),
        domain=domain,
    )


def every_argument(name):
    the_op = op(name)
    return tuple(dict.fromkeys([*the_op.tensors, "eps", *the_op.shapes(2, 4, 0).scalars]))


FULL = taking("layer_norm", "input", "normalized_shape", "weight", "bias", "eps")
LAYER_NORM = op("layer_norm")


def bits(case):
    return {
        n: (t.dtype, tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
        for n, t in case.given.items()
    }


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_recipe_is_read_back_from_its_text_and_makes_the_same_case(data):
    plan = Plan(gradients=True, layouts=KINDS)
    recipe = data.draw(recipes(LAYER_NORM, FULL, "float16", plan))
    again = eval(repr(recipe), {"Recipe": Recipe, "Values": Values, "Layout": Layout})
    assert again == recipe
    first, second = (build(LAYER_NORM, FULL, "float16", r, gradients=True) for r in (recipe, again))
    assert (first is None) == (second is None)
    if first is not None:
        assert bits(first) == bits(second)
        assert first.layouts == second.layouts
        assert first.rows * first.columns == first.given["input"].numel()
        assert plan.fits(first.rows, first.columns)


def test_tensors_of_one_recipe_are_not_the_same_numbers():
    case = build(LAYER_NORM, FULL, "float32", Recipe(rows=1, columns=64), gradients=True)
    rows = [t.reshape(-1) for t in case.given.values()]
    assert len(rows) == 4
    assert not any(torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


def test_a_subject_is_given_only_what_it_takes():
    bare = taking("layer_norm", "input", "eps")
    case = build(LAYER_NORM, bare, "float32", Recipe(rows=2, columns=6), gradients=True)
    assert case.tensors["weight"] is None
    assert case.tensors["bias"] is None
    two_dimensions = Recipe(rows=2, columns=6, variant=2)
    assert build(LAYER_NORM, bare, "float32", two_dimensions, gradients=False) is None
    assert build(LAYER_NORM, FULL, "float32", two_dimensions, gradients=False).scalars[
        "normalized_shape"
    ] == (2, 3)


@pytest.mark.parametrize("name", list(ops()))
def test_the_fixed_list_visits_every_hazard_and_the_edges_of_blocks(name):
    the_op = op(name)
    subject = taking(name, *(n for n in the_op.tensors if n != "self"), "eps")
    wanted = hazard_names(finite_only=True)
    listed = list(islice(covering(subject, Plan()), 8 * len(wanted)))
    assert {r.input.hazard for r in listed} == set(wanted)
    assert {r.input.strength for r in listed} == set(range(8))
    extents = {(r.rows, r.columns) for r in listed}
    assert any(r == 0 for r, _ in extents)
    assert any(c == 1 for _, c in extents)
    assert {1024, 1025} <= {c for _, c in extents}
    if "weight" in the_op.optional:
        assert {r.weight is None for r in listed} == {True, False}
    if the_op.has_eps and "_backward" not in name:
        assert len({r.eps for r in listed}) > 3


def test_every_layout_is_listed_on_every_tensor():
    plan = Plan(gradients=True, layouts=KINDS)
    listed = list(islice(covering(FULL, plan), 400))
    seen = {(name, kind) for r in listed for name, layout in r.layouts for kind in layout.kinds}
    for name in ("input", "grad_output", "weight", "bias"):
        for kind in ("transposed", "sliced", "expanded", "misaligned", "storage_offset"):
            assert (name, kind) in seen


@pytest.mark.parametrize("check", list(checks()))
@pytest.mark.parametrize("name", list(ops()))
def test_every_plan_of_every_check_makes_cases_for_every_op(check, name):
    the_op, module = op(name), checks()[check]
    subject = taking(name, *every_argument(name))
    if module.skips(subject, the_op, "float32", "eager") and module.skips(
        subject, the_op, "float64", "eager"
    ):
        return
    plan = module.plan(subject, the_op)
    made = [
        case
        for recipe in islice(covering(subject, plan), 16)
        if (case := build(the_op, subject, "float32", recipe, gradients=plan.gradients)) is not None
    ]
    assert len(made) >= 3


DRAWS = """
from itertools import islice
from pathlib import Path
from hypothesis import HealthCheck, Phase, given, seed, settings
from strategies.layouts import KINDS
from verifier.subjects.load_file import load_subjects
from verifier.ops import op
from verifier.cases import fixed_list
from verifier.cases.drawn import recipes
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan

[subject] = load_subjects(Path("kernel.py"))
plan = Plan(gradients=True, layouts=KINDS)
print(list(islice(covering(subject, plan), 50)))
drawn = given(recipes(op("layer_norm"), subject, "float32", plan))(lambda recipe: print(recipe))
quiet = settings(
    max_examples=100, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
seed(3)(quiet(drawn))()
"""


def test_the_cases_of_a_seed_are_the_same_in_every_process(tmp_path):
    """Whatever the order of sets there, and whatever numbers stand in the modules that are loaded there."""
    (tmp_path / "kernel.py").write_text(
        "from verifier import subject\n"
        "@subject(op='layer_norm', language='torch', dtypes=('float32',), variance='two_pass')\n"
        "def kernel(input, weight=None, bias=None, eps=1e-5): ...\n"
    )
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(100, 65536, 500))}\n")
    written = [
        subprocess.run(
            [sys.executable, "-c", start + DRAWS],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": number},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for number, start in (("1", ""), ("2", "import full_of_numbers\n"))
    ]
    assert written[0].count("Recipe(") >= 150
    assert written[0] == written[1]


# -- arguments without a default ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "check"),
    [  # each check for every third op, each op for every third check
        (name, check)
        for i, name in enumerate(name for name in ops() if op(name).optional)
        for j, check in enumerate(checks())
        if (i + j) % 3 == 0
    ],
)
def test_what_has_no_default_is_given_in_every_case_of_every_check(name, check):
    the_op, module = op(name), checks()[check]
    needed = set(the_op.optional)
    subject = taking(name, *every_argument(name), bare=needed)
    plan = module.plan(subject, the_op)
    listed = list(islice(covering(subject, plan), 12))

    @given(recipes(the_op, subject, "float32", plan))
    @settings(max_examples=4, deadline=None, database=None)
    def draw(recipe):
        listed.append(recipe)

    draw()
    made = [build(the_op, subject, "float32", r, gradients=plan.gradients) for r in listed]
    given_in = [needed & set(case.given) for case in made if case is not None]
    assert given_in
    assert all(names == needed for names in given_in)


def test_weight_may_be_required_and_bias_optional():
    subject = taking("layer_norm", *NORMS["layer_norm"], bare=("weight",))
    case = build(
        LAYER_NORM, subject, "float32", Recipe(rows=2, columns=6, weight=None, bias=None), gradients=False
    )
    assert (case.tensors["weight"] is None, case.tensors["bias"] is None) == (False, True)


def test_a_required_weight_does_not_ask_for_a_bias_that_is_not_taken():
    subject = taking("layer_norm", "input", "weight", "eps", domain=Domain(optional=False))
    both, neither = (
        build(LAYER_NORM, subject, "float32", Recipe(rows=2, columns=6, weight=w), gradients=False)
        for w in (Values(), None)
    )
    assert subject.domain.excludes(both) is None
    assert subject.domain.excludes(neither) == "weight must be given"
    with pytest.raises(ValueError, match="of which softmax"):

        @declared(op="softmax", language="torch", dtypes=("float32",), domain=Domain(optional=False))
        def softmax(input, dim):
            return input.softmax(dim)


def test_a_subject_without_eps_is_judged_with_the_default_of_pytorch():
    fixed = taking("layer_norm", "input", "weight", "bias")
    given = Recipe(rows=2, columns=6, eps=0.5)
    assert build(LAYER_NORM, fixed, "float32", given, gradients=False).eps == 1e-5
    assert build(LAYER_NORM, FULL, "float32", given, gradients=False).eps == 0.5


HEADS = {
    "a number": ("eps=1e-3", None, 1e-3, {"eps left out"}),
    "a whole number": ("eps=1", None, 1.0, {"eps left out"}),
    "None": ("eps=None", None, torch.finfo(torch.float32).eps, {"eps=None"}),
    "no default": ("eps", None, None, set()),
    "something else": ("eps=True", None, None, set()),
    "less than is promised": ("eps=1e-9", Domain(min_eps=1e-6), 1e-9, set()),
}


@pytest.mark.parametrize("head", HEADS)
def test_what_a_call_without_eps_means_follows_from_the_signature(head):
    default, domain, meant, asked = HEADS[head]
    namespace: dict = {}
    exec(f"def kernel(*, input, normalized_shape, weight=None, {default}): ...", namespace)
    subject = replace(taking("rms_norm", "input"), function=namespace["kernel"], domain=domain)
    told, recipes = fixed_list.unsaid_eps(subject, Plan(eps_unsaid=True).within(domain), "float32")
    assert {*told} == asked
    assert [recipe.eps for recipe in recipes] == [EPS_NONE if "eps=None" in asked else None] * 2 * len(asked)
    left = build(op("rms_norm"), subject, "float32", Recipe(rows=2, columns=4, eps=None), gradients=False)
    assert (None if left is None else left.eps) == meant
    words = build(
        op("rms_norm"), subject, "float32", Recipe(rows=2, columns=4, eps=EPS_NONE), gradients=False
    )
    assert (words is not None) == ("eps=None" in asked)
    if words is not None:
        assert lay_out(subject, words, device="cpu").arguments["eps"] is None
        assert from_document(to_document(words)).scalars == words.scalars
    if left is not None:
        assert "eps" not in lay_out(subject, left, device="cpu").arguments


def test_none_is_not_asked_for_in_words_where_what_it_means_is_not_settled():
    exec("def kernel(*, input, normalized_shape, weight=None, eps=None): ...", namespace := {})
    subject = replace(taking("rms_norm", "input"), function=namespace["kernel"])
    told = {d: fixed_list.unsaid_eps(subject, Plan(eps_unsaid=True), d)[0] for d in ("float16", "float32")}
    assert told == {"float16": [], "float32": ["eps=None"]}


@pytest.mark.parametrize("eps", [None, EPS_NONE, 1e-6])
def test_a_recipe_keeps_what_its_call_says_of_eps(eps):
    recipe = Recipe(rows=2, columns=4, eps=eps)
    assert recipe_of(json.loads(json.dumps(recipe_document(recipe)))) == recipe


def test_kappa_and_magnitude_are_those_of_the_rows():
    cases = {
        k: build(
            LAYER_NORM,
            FULL,
            "float64",
            Recipe(rows=4, columns=256, input=Values(hazard="cancellation", strength=k)),
            gradients=False,
        )
        for k in (1, 3, 5)
    }
    for power, case in cases.items():
        assert 10**power / 4 < case.kappa < 10**power * 4
        assert case.largest == float(case.given["input"].abs().max())


# -- hazards are those of canonical rows ------------------------------------------------------------

NORMS = {
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "rms_norm": ("input", "normalized_shape", "weight", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
}


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_every_group_of_a_group_norm_has_the_hazard_of_its_own(variant):
    subject = taking("group_norm", *NORMS["group_norm"])
    constant, outlier = (
        Recipe(rows=4, columns=12, variant=variant, input=Values(hazard=h))
        for h in ("constant_row", "one_outlier")
    )
    case = build(op("group_norm"), subject, "float32", constant, gradients=False)
    assert case.scalars["num_groups"] > 1
    rows = op("group_norm").canonical(case, "input", case.given["input"].numpy())
    assert (rows == rows[:, :1]).all()
    assert len(set(rows[:, 0].tolist())) == len(rows)
    case = build(op("group_norm"), subject, "float32", outlier, gradients=False)
    rows = abs(op("group_norm").canonical(case, "input", case.given["input"].numpy()))
    assert ((rows == 10.0).sum(axis=1) == 1).all()  # the outlier of that strength


@pytest.mark.parametrize("variant", [0, 1, 2])
@pytest.mark.parametrize("name", list(NORMS))
def test_the_null_space_gradient_vanishes_exactly_for_every_norm(name, variant):
    """The exact grad_input is the small rest that eps and rounding leave, far below its terms."""
    recipe = Recipe(
        rows=4, columns=24, variant=variant, weight=Values(seed=5), eps=1e-9, joint="null_space_gradient"
    )
    case = build(op(name), taking(name, *NORMS[name]), "float64", recipe, gradients=True)
    found = solve(op(name).problem(case))
    terms = abs(found.rstd.high.max() * case.given["grad_output"] * 1.0).max().item()
    assert 0.0 < abs(found.grad_input.high).max() < 1e-7 * terms


OPTIONAL = taking("unknown", "input", "residual")


@pytest.fixture
def varied(monkeypatch):
    """The op of own specifications, were its residual varied."""
    made = replace(op("unknown"), varied=("residual",))
    monkeypatch.setattr(fixed_list, "named_op", lambda _: made)
    return made


def test_a_further_tensor_is_given_and_left_out_where_an_op_varies_it(varied):
    assert Plan().parameters_of(varied, OPTIONAL)["residual"] == (True, False)
    always = taking("unknown", "input", "residual", bare=("residual",))
    assert Plan().parameters_of(varied, always)["residual"] == (True,)
    drawn = []

    @settings(max_examples=60, database=None, derandomize=True)
    @given(recipes(varied, OPTIONAL, "float32", Plan()))
    def keep(recipe):
        drawn.append(recipe)

    keep()
    for made in (drawn, list(covering(OPTIONAL, Plan()))):
        assert {dict(recipe.further)["residual"] is None for recipe in made} == {True, False}
        assert all(eval(repr(recipe)) == recipe for recipe in made)


def test_a_recipe_says_the_values_of_any_tensor(varied):
    plain = Recipe(rows=2, columns=3)
    spoken = replace(plain, further=(("residual", Values(hazard="zeros")),))
    cases = [build(varied, OPTIONAL, "float32", r, gradients=False) for r in (plain, spoken)]
    assert [bool(case.given["residual"].any()) for case in cases] == [True, False]
    left_out = replace(plain, further=(("residual", None),))
    assert "residual" not in build(varied, OPTIONAL, "float32", left_out, gradients=False).given
    assert (spoken.values_of("gate"), left_out.values_of("residual")) == (Values(), None)
    assert "further" not in repr(plain)

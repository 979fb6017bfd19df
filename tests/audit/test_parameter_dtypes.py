"""Weight and bias of another dtype than the input: tried where the domain promises it, and nowhere else."""

from dataclasses import replace
from itertools import islice

import pytest
import torch
from checks_support import KERNELS, SUPPORT, examination, faulty, machine, outcomes_of, subject_of
from hypothesis import given, settings

from verifier import Domain, subject
from verifier.audit import unpromised_dtypes
from verifier.audit.budget import Budget
from verifier.audit.report.columns import COLUMNS
from verifier.audit.rules import is_finding, line_verdict, outside
from verifier.cases import extents_and_layouts, fixed_list
from verifier.cases.drawn import recipes
from verifier.cases.fixed_list import covering, to_be_tried
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe, build
from verifier.cases.recipe_json import recipe_document, recipe_of
from verifier.checks import check
from verifier.checks.support.truth import Truth
from verifier.commands.explain import Explained, lines_of
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import from_document, to_document
from verifier.records.subject import KnownDefect
from verifier.records.verdict import BAD, Outcome, Verdict

BOTH = ("input", "float32")
(CASES,) = [column for column in COLUMNS if column.name == "cases"]
LN = op("layer_norm")
MIXED = Recipe(rows=2, columns=3, parameter_dtype="float32")
FAULTY = {
    "output_in_weight_dtype": "forward_error",
    "weight_rounded_to_input_dtype": "forward_error",
    "grad_weight_in_input_dtype": "gradient",
    "grad_weight_empty_like_input": "gradient",
}


def promising(subject, *dtypes):
    """Return the subject with these dtypes of parameters in its domain, none of them for no promise."""
    return subject.differing(domain=replace(subject.domain or Domain(), parameter_dtypes=dtypes or None))


@pytest.mark.parametrize("stem", FAULTY)
def test_without_the_promise_nothing_is_wrong(stem):
    for name in {FAULTY[stem], "gradient" if faulty(stem).differentiable else "forward_error"}:
        examined = examination(promising(faulty(stem)), name, budget=Budget(cases=12))
        line = examined.run()
        assert line_verdict(line) is Verdict.PASS, [f.outcome.message for f in line.findings]


@pytest.mark.parametrize(
    ("stem", "seen"),
    [
        ("output_in_weight_dtype", "output has dtype float32; float16 is expected"),
        ("grad_weight_in_input_dtype", "33 of 33 elements are provably beyond"),
        ("grad_weight_empty_like_input", "grad_weight has dtype float16; float32 is expected"),
    ],
)
def test_what_is_not_promised_is_measured_once(stem, seen):
    line = examination(promising(faulty(stem)), FAULTY[stem], budget=Budget(cases=10)).run()
    assert line_verdict(line) is Verdict.PASS
    (note,) = [note for note in line.notes if note.startswith("parameters in float32 are not promised")]
    assert seen in note


def notes_on_dtypes(subject, dtype="float16", cases=10):
    line = examination(subject, "gradient", dtype, budget=Budget(cases=cases)).run()
    assert line_verdict(line) is Verdict.PASS
    return [note for note in line.notes if "parameters" in note]


@pytest.mark.parametrize(
    ("stem", "check_name", "seen"),
    [
        ("sum_in_dtype_of_input", "forward_error", "elements are provably beyond"),
        ("gradient_of_sum_in_dtype_of_input", "gradient", "elements are provably beyond"),
        ("gradient_of_sum_in_dtype_of_input", "forward_error", "measured: right on 1 case"),
    ],
)
def test_a_residual_of_which_nothing_is_promised_is_measured_once(stem, check_name, seen):
    broken = faulty(stem)
    silent = broken.differing(domain=replace(broken.domain, residual_dtypes=None))
    line = examination(silent, check_name, budget=Budget(cases=10)).run()
    assert line_verdict(line) is Verdict.PASS
    (note,) = [note for note in line.notes if note.startswith("a residual in float32 is not promised")]
    assert seen in note


def test_only_what_the_kernel_takes_and_leaves_open_is_measured():
    open_one = promising(subject_of(SUPPORT / "right_kernel.py"))
    (note,) = notes_on_dtypes(open_one)
    assert note.endswith("measured: right on 1 case")
    assert not notes_on_dtypes(open_one, cases=9)
    assert not notes_on_dtypes(open_one, "float32")
    assert not notes_on_dtypes(promising(open_one, "input"))
    assert not notes_on_dtypes(subject_of(KERNELS / "softmax_torch.py"))


def test_a_case_of_a_known_defect_is_not_taken_for_one_of_its_dtype():
    known = KnownDefect(check="gradient", reason="known", where=lambda case: case.columns > 16)
    right = promising(subject_of(SUPPORT / "right_kernel.py")).differing(known_defects=(known,))
    taken = unpromised_dtypes._case(
        examination(right, "gradient", "float16"),
        check("gradient").plan(right, LN),
        unpromised_dtypes.OF_PARAMETERS,
    )
    assert taken.columns <= 16
    assert taken.dtype_of("weight") == "float32"


def test_an_account_of_errors_names_the_dtype_of_parameters():
    case = build(LN, subject_of(SUPPORT / "right_kernel.py"), "float16", MIXED, gradients=False)
    first = next(lines_of(Explained(subject="kernel", case=case, outputs=(), lost="")))
    assert first.startswith("kernel  layer_norm  float16 with parameters in float32  2 x 3  hazard")


def test_a_kernel_that_refuses_another_dtype_is_left_alone():
    right = promising(subject_of(SUPPORT / "right_kernel.py"))

    def refusing(input, weight=None, bias=None, eps=1e-5):
        if any(p is not None and p.dtype != input.dtype for p in (weight, bias)):
            raise ValueError("weight and bias must have the dtype of input")
        return right.function(input, weight, bias, eps)

    assert not notes_on_dtypes(right.differing(function=refusing))


@pytest.mark.parametrize("name", ["forward_error", "gradient"])
@pytest.mark.parametrize(("dtype", "held"), [("float16", "float32"), ("float32", "float16")])
def test_a_right_kernel_passes_and_has_tried_both(name, dtype, held):
    right = promising(subject_of(SUPPORT / "right_kernel.py"), "input", held)
    seen = []
    examined = examination(right, name, dtype, budget=Budget(cases=12))
    judge = examined.judge
    examined.judge = lambda case: seen.append(case) or judge(case)
    line = examined.run()
    assert line_verdict(line) is Verdict.PASS, [f.outcome.message for f in line.findings]
    assert not [word for word in line.untried if word.startswith("parameters")]
    assert {case.dtype_of("weight") for case in seen} >= {dtype, held}
    assert all(case.dtype_of("input") == case.dtype_of("grad_output") or name != "gradient" for case in seen)
    assert {case.mixes_dtypes for case in seen} == {False, True}


def test_a_refusal_of_two_dtypes_at_once_is_no_finding():
    right = promising(subject_of(SUPPORT / "right_kernel.py"), *BOTH)

    def refusing(input, weight=None, bias=None, eps=1e-5):
        if None not in (weight, bias) and weight.dtype != bias.dtype:
            raise ValueError("weight and bias have two dtypes")
        return right.function(input, weight, bias, eps)

    few = Budget(cases=12)
    line = examination(right.differing(function=refusing), "forward_error", "float16", budget=few).run()
    assert line_verdict(line) is Verdict.PASS
    assert Verdict.REFUSED not in line.counts
    assert line.gaps["refused"] == ["weight and bias in two dtypes"]
    (told,) = [text for text in CASES.text(line).split("; ") if "two dtypes" in text]
    assert told == "refused: weight and bias in two dtypes"


def test_a_bias_that_is_read_in_the_dtype_of_weight_is_wrong_where_both_occur_alone():
    for dtypes, wrong in ((("input",), False), (("float32",), False), (BOTH, True)):
        one = promising(faulty("bias_read_as_weight_triton"), *dtypes)
        with machine(strict=True, poison=0xFF) as place:
            few = {"hazards": ("ordinary",), "joint": False, "shapes": ((4, 33),)}
            found = outcomes_of(one, "forward_error", place=place, count=12, **few)
        bad = [o for o in found if o.verdict in BAD]
        assert bool(bad) is wrong, (dtypes, [o.message for o in bad])


@pytest.mark.parametrize(("named", "shown"), [(BOTH, {"float16", "float32"}), ((), {"float16"})])
def test_lists_and_draws_have_the_dtypes_that_are_promised(named, shown):
    one = promising(subject_of(SUPPORT / "right_kernel.py"), *named)
    plan = check("gradient").plan(one, op("layer_norm"))
    built = (build(op("layer_norm"), one, "float16", r, gradients=True) for r in covering(one, plan))
    listed = list(islice(built, 20))
    assert {case.dtype_of("weight") for case in listed if case} - {None} == shown
    assert any(word.startswith("parameters in") for word in to_be_tried(one, plan)) == bool(named)
    drawn = set()

    @settings(max_examples=30, database=None, derandomize=True)
    @given(recipes(op("layer_norm"), one, "float16", plan))
    def draw(recipe):
        case = build(op("layer_norm"), one, "float16", recipe, gradients=True)
        drawn.add(case.dtype_of("weight") if case else None)

    draw()
    assert drawn - {None} == shown


@pytest.mark.parametrize("same", [0.5, 1.0, 4.0, 9.0])
@pytest.mark.parametrize("turned", [False, True])
def test_misaligned_parameters_come_early_in_each_dtype_whatever_the_order_of_levels(
    monkeypatch, same, turned
):
    """That a wrong condition for vector loads was seen depended once on how often which dtype came."""
    named = BOTH[::-1] if turned else BOTH
    one = promising(faulty("weight_aligned_as_input_cuda"), *named)
    monkeypatch.setattr(fixed_list, "_SAME", same)
    monkeypatch.setattr(extents_and_layouts, "PATTERNS", extents_and_layouts.PATTERNS[:: -1 if turned else 1])
    plan = check("layouts").plan(one, LN)
    asked = {word for word in to_be_tried(one, plan) if "vectors" in word}
    assert len(asked) == 2
    for recipe in islice(covering(one, plan), 1, 3):
        case = build(LN, one, "float16", recipe, gradients=False)
        shown = fixed_list.tried(recipe, case, plan) & asked
        assert len(shown) == 1
        asked -= shown
    assert not asked


def test_a_kernel_that_asks_the_input_how_weight_lies_is_seen_early():
    examined = examination(faulty("weight_aligned_as_input_cuda"), "layouts", budget=Budget(cases=4))
    (found,) = examined.run().findings
    assert "float32" in {found.case.dtype_of(name) for name in ("weight", "bias")}
    assert any(layout.misaligned for layout in found.case.layouts.values())


def test_a_single_dtype_is_that_of_every_case():
    one = promising(subject_of(SUPPORT / "right_kernel.py"), "float32")
    case = build(op("layer_norm"), one, "float16", Recipe(rows=2, columns=3), gradients=True)
    assert {name: case.dtype_of(name) for name in ("input", "weight", "bias", "grad_output")} == {
        "input": "float16", "weight": "float32", "bias": "float32", "grad_output": "float16"
    }  # fmt: skip
    assert not outside(one, case)
    assert not Plan(parameter_dtypes=True).for_inputs_of("float32", promising(one, *BOTH)).parameter_dtypes


def test_running_statistics_have_the_dtype_of_weight():
    one = promising(subject_of(KERNELS / "batch_norm_welford_torch.py"), *BOTH)
    recipe = Recipe(rows=2, columns=6, parameter_dtype="float32")
    case = build(op("batch_norm"), one, "bfloat16", recipe, gradients=False)
    held = {name: case.dtype_of(name) for name in ("weight", "bias", "running_mean", "running_var")}
    assert set(held.values()) == {"float32"}
    expected = op("batch_norm").expected(case, one)
    assert (expected["output"].dtype, expected["running_var"].dtype) == (torch.bfloat16, torch.float32)
    assert expected["grad_weight"].dtype == torch.float32


def test_what_is_not_promised_is_no_finding():
    broken = faulty("output_in_weight_dtype")
    recipe = Recipe(rows=2, columns=3, parameter_dtype="float32")
    case = build(op("rms_norm"), broken, "float16", recipe, gradients=False)
    bad = Outcome(verdict=Verdict.FAIL, output="output", message="output has dtype float32")
    judged = {
        named: (outside(one, case), is_finding(one, check("forward_error"), case, bad))
        for named in ((), ("input",), BOTH)
        for one in [promising(broken, *named)]
    }
    assert judged == {(): (True, False), ("input",): (True, True), BOTH: (False, True)}
    assert outside(broken.differing(domain=None), case)
    assert not is_finding(broken.differing(domain=None), check("forward_error"), case, bad)


def test_a_saved_and_a_shrunk_case_keep_the_dtype_that_fails():
    budget = Budget(cases=12, findings=1)
    examined = examination(faulty("grad_weight_in_input_dtype"), "gradient", budget=budget)
    (found, *_) = examined.run().findings
    assert found.case.dtype_of("weight" if found.outcome.output == "grad_weight" else "bias") == "float32"
    assert found.case.elements <= 8
    assert "parameters input or float32" in found.declaration
    again = from_document(to_document(found.case))
    assert (again.dtype, again.dtype_of("weight")) == ("bfloat16", found.case.dtype_of("weight"))


def test_a_failure_that_needs_no_other_dtype_is_shown_without():
    broken = promising(faulty("wrong_output_dtype"), "float32", "input")
    found = examination(broken, "forward_error", budget=Budget(cases=4, findings=1)).run().findings[0]
    assert found.case.dtype_of("weight") in {None, found.case.dtype}


def declared(kernel, named, option="parameter_dtypes"):
    domain = Domain(**{option: named})
    return subject(op="layer_norm", language="torch", dtypes=("float16",), domain=domain)(kernel)


@pytest.mark.parametrize("option", ["parameter_dtypes", "residual_dtypes"])
@pytest.mark.parametrize("named", [("float8",), (), "float32", ("input", 3)])
def test_a_dtype_that_means_nothing_is_refused(named, option):
    with pytest.raises(ValueError, match=option):
        declared(lambda x, weight=None, residual=None: (x, weight, residual), named, option)


@pytest.mark.parametrize("option", ["parameter_dtypes", "residual_dtypes"])
def test_a_kernel_without_such_tensors_promises_no_dtype_of_them(option):
    with pytest.raises(ValueError, match="takes none"):
        declared(lambda x: x, BOTH, option)


def test_a_residual_in_another_dtype_gives_it_to_the_sum_and_its_gradient():
    one = subject_of(KERNELS / "add_rms_norm_triton.py")
    recipe = Recipe(rows=2, columns=3, residual_dtype="float32")
    case = build(op("add_rms_norm"), one, "bfloat16", recipe, gradients=True)
    held = {name: case.dtype_of(name) for name in case.given}
    assert {name for name, dtype in held.items() if dtype == "float32"} == {"residual", "grad_new_residual"}
    expected = op("add_rms_norm").expected(case, one)
    wide = {name for name, like in expected.items() if like.dtype == torch.float32}
    assert wide == {"new_residual", "grad_residual"}
    assert {"output", "grad_input", "grad_weight"} <= expected.keys()
    assert not outside(one, case)
    silent = one.differing(domain=replace(one.domain, residual_dtypes=None))
    assert outside(silent, case)
    bad = Outcome(verdict=Verdict.FAIL, output="output", message="wrong")
    assert is_finding(one, check("forward_error"), case, bad)
    assert not is_finding(silent, check("forward_error"), case, bad)


@pytest.mark.parametrize(
    ("stem", "check_name"),
    [("sum_in_dtype_of_input", "forward_error"), ("gradient_of_sum_in_dtype_of_input", "gradient")],
)
def test_a_residual_in_another_dtype_alone_shows_what_is_rounded(stem, check_name):
    broken = faulty(stem)
    silent = broken.differing(domain=replace(broken.domain, residual_dtypes=None))
    assert not examination(silent, check_name, budget=Budget(cases=12)).run().findings
    line = examination(broken, check_name, budget=Budget(cases=12, findings=1)).run()
    (found,) = line.findings
    assert found.case.dtype_of("residual") == "float32"
    assert "residual input or float32" in found.declaration


def test_recipes_say_the_dtype_of_a_residual_in_words_that_are_read_again():
    recipe = Recipe(rows=2, columns=3, residual_dtype="float32")
    assert recipe_of(recipe_document(recipe)) == recipe
    one = subject_of(KERNELS / "add_rms_norm_triton.py")
    plan = check("gradient").plan(one, op("add_rms_norm"))
    assert "residual in float32" in to_be_tried(one, plan.for_inputs_of("float16", one))
    assert "residual in float32" not in to_be_tried(one, plan.for_inputs_of("float32", one))


@pytest.mark.parametrize(
    ("stem", "result"),
    [("layer_norm_backward_cuda", "grad_bias"), ("layer_norm_backward_cuda", "grad_weight")]
    + [("layer_norm_two_pass_cuda", name) for name in ("grad_bias", "grad_weight")],
)
def test_the_bound_of_a_gradient_has_the_digits_of_its_parameter(stem, result):
    kernel = subject_of(KERNELS / f"{stem}.py")
    bounds = {
        (dtype, held): float(bounds_of(kernel, dtype, held)[result].bound.max())
        for dtype, held in (("float16", "float32"), ("float16", "input"), ("float64", "float32"))
    }
    assert bounds["float16", "float32"] < 2**-6 * bounds["float16", "input"]
    assert 2**-28 < bounds["float64", "float32"] < 2**-20


def bounds_of(kernel, dtype, held):
    recipe = Recipe(rows=4, columns=3, parameter_dtype=held)
    case = build(op(kernel.op), kernel, dtype, recipe, gradients=True)
    return Truth(subject=kernel, case=case, setting=backend("machine").setting(kernel, dtype)).bounds


def test_the_kernels_in_cuda_refuse_what_they_do_not_compile():
    x, half, single = (torch.zeros(2, 4, dtype=d) for d in (torch.float16, torch.bfloat16, torch.float32))
    backward = subject_of(KERNELS / "layer_norm_backward_cuda.py")
    with pytest.raises(ValueError, match=r"weight is torch\.bfloat16"):
        backward(x, x, half[0], mean=single[:, 0], rstd=single[:, 0])
    forward = subject_of(KERNELS / "layer_norm_two_pass_cuda.py")
    with pytest.raises(ValueError, match=r"weight is torch\.bfloat16"):
        forward(x, (4,), half[0])
    with pytest.raises(ValueError, match="they must be alike"):
        forward(x, (4,), single[0], x[0])

"""Softmaxes under a diagonal: right kernels are certified row by row, wrong ones refused."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import machine_runner

from strategies.values import Values
from verifier.cases.recipe import Recipe, build, recorded_recipe
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

KERNELS = Path(__file__).parents[2] / "kernels"
STAGE = "the code is the declared computation"
NO_ZERO = "values that a rule took for other than 0 are so"
SOURCE = KERNELS / "masked_softmax_triton.py"
CAUSAL = """

@subject(op="{op}", **DECLARED)
def attack(input, mask=None, attn_bias=None, scale=1.0, diagonal=0):
    return masked(input, mask, attn_bias, scale, diagonal=diagonal, log={log})
"""
FILLED = """mask=column < columns)
        if last < 0:
            tl.store(y + row * columns + column, tl.full((BLOCK,), filled, tl.float32), mask=column < columns)


@triton.jit(do_not_specialize=OF_ANY_VALUE)
def _backward"""
NEXT = "tl.load(x + (column + 1) * x_column, mask=column + 1 < columns, other=0.0).to(tl.float32)"
BEYOND = "tl.load(x + column * x_column, mask=column < columns, other=0.0).to(tl.float32)"


@pytest.fixture(scope="module")
def runner():
    with machine_runner() as found:
        yield found


def changed(folder: Path, *pairs: tuple[str, str], log: bool = False):
    """The causal kernel with parts of its source changed."""
    text = SOURCE.read_text().replace("Path(__file__)", f"Path({str(SOURCE)!r})")
    text += CAUSAL.format(op=f"causal_{'log_' * log}softmax", log=log)
    for before, after in pairs:
        assert before in text
        text = text.replace(before, after)
    path = folder / "attack.py"
    path.write_text(text)
    return next(one for one in load(path).subjects if one.name == "attack")


def asked(subject, runner, *, variant=None, gradients=True, given=(), **scalars):
    """What certifying gives at 3 x 9: of rows of 7, 8 and 9 elements, if no other variant is named."""
    known = op(subject.op)
    recipe = recorded_recipe(known, subject, 3, 9, Values(seed=0))
    if variant is not None:
        further = tuple((name, None) for name in known.optional if name not in given)
        recipe = Recipe(rows=3, columns=9, variant=variant, input=Values(seed=0), further=further)
    case = build(known, subject, "float32", recipe, gradients=True)
    case = replace(case, scalars={**case.scalars, **scalars})
    return certified(subject, case, runner=runner, gradients=gradients)


@pytest.mark.parametrize(
    "stem", ["causal_softmax_triton", "causal_log_softmax_triton", "masked_softmax_triton"]
)
def test_a_softmax_without_a_mask_in_memory_is_certified(stem, runner):
    subject = load(KERNELS / f"{stem}.py").subjects[0]
    found = asked(subject, runner)
    assert isinstance(found, Certificate), found
    terms = sorted({one.terms for one in found.proofs[0].sums})
    assert terms == ([7, 8, 9] if stem.startswith("causal") else [9])
    depth = found.proofs[0].sums[0].declared
    assert all(one.declared == depth for one in found.proofs[0].sums)  # that of a whole row
    assert "mask and attn_bias" in found.call
    assert {proof.claims for proof in found.proofs} <= {"EZF", "EZFC"}


def test_a_row_of_one_element_is_certified_with_gradients(runner):
    """The compiler turns the sign of the largest element by an integer operation there."""
    subject = load(KERNELS / "masked_softmax_triton.py").subjects[0]
    known = op(subject.op)
    case = build(known, subject, "float32", recorded_recipe(known, subject, 2, 1, Values()), gradients=True)
    assert isinstance(certified(subject, case, runner=runner, gradients=True), Certificate)


def test_predicates_of_many_lanes_are_followed_where_they_are_packed(runner):
    subject = load(KERNELS / "causal_softmax_triton.py").subjects[0]
    known = op(subject.op)
    recipe = recorded_recipe(known, subject, 2, 4097, Values(seed=0))
    case = build(known, subject, "float32", recipe, gradients=True)
    assert isinstance(certified(subject, case, runner=runner, gradients=True), Certificate)


@pytest.mark.parametrize(
    ("variant", "given"), [(0, ()), (4, ()), (6, ("attn_bias",)), (7, ("attn_bias",)), (5, ())]
)
def test_rows_of_few_elements_are_certified_with_a_scale_and_what_is_added(variant, given, runner):
    subject = load(KERNELS / "causal_softmax_triton.py").subjects[0]
    found = asked(subject, runner, variant=variant, given=given, gradients=False)
    assert isinstance(found, Certificate), found


@pytest.mark.parametrize(("scale", "given"), [(1.0, True), (-0.75, True), (1.5, False)])
def test_a_score_that_is_subtracted_from_itself_must_be_finite(scale, given, runner):
    """Of a row of one element: no factor up to 1 takes an element beyond the largest number."""
    subject = load(KERNELS / "causal_softmax_triton.py").subjects[0]
    found = asked(subject, runner, variant=4, gradients=False, scale=scale)
    assert isinstance(found, Certificate if given else Refusal), found
    if not given:
        assert "not proved to be finite" in found.why


def test_a_mask_in_memory_is_data(runner):
    subject = load(KERNELS / "causal_softmax_triton.py").subjects[0]
    found = asked(subject, runner, variant=6, given=("mask",))
    assert isinstance(found, Refusal)
    assert "boolean mask" in found.why


LAST = 'd = tl.where(score == float("-inf"), 0.0, d * scale)'
TOTAL = "tl.where(total == 0.0, 1.0, total)"
LARGEST = "largest = tl.maximum(largest, score)"
TOP = 'top = tl.where(top == float("-inf"), 0.0, top)'
SCORE = "product(value, scale)"
ROWS = "tl.load(tops + row), tl.load(totals + row)"
WRONG = {
    "one_column_too_many": ("column <= last)", "column <= last + 1)"),
    "one_column_too_few": ("row % queries + diagonal if", "row % queries + diagonal - 1 if"),
    "a_large_number_for_what_is_left_out": (
        'return tl.where(there, score, float("-inf"))',
        "return tl.where(there, score, -10.0)",
    ),
    "maximum_of_all_scores": (LARGEST, LARGEST.replace("score", BEYOND.replace("x_column", "x3"))),
    "a_maximum_of_0_becomes_1": (TOP, "top = tl.where(top == 0.0, 1.0, top)"),
    "a_small_sum_becomes_1": (TOTAL, TOTAL.replace("== 0.0", "< 1.5")),
    "a_sum_of_2_becomes_1": (TOTAL, TOTAL.replace("== 0.0", "== 2.0")),
    "sum_of_the_first_row": (ROWS, ROWS.replace("totals + row", "totals")),
    "zero_times_the_next_column": (SCORE, SCORE.replace("scale", f"scale + 0.0 * {NEXT}")),
    "no_gradient_of_the_last": (LAST, LAST.replace("score ==", "(column == columns - 1) | (score ==").replace(
        '"-inf")', '"-inf"))'
    )),
    "gradient_of_what_is_left_out": (LAST, LAST.replace("0.0,", "d + dot,")),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_softmax_under_a_diagonal_is_refused(fault, tmp_path, runner):
    found = asked(changed(tmp_path, WRONG[fault]), runner)
    assert isinstance(found, Refusal), found
    assert found.stage in {STAGE, NO_ZERO}


@pytest.mark.parametrize("log", [False, True])
def test_the_kernel_whose_source_is_changed_is_right(log, tmp_path, runner):
    assert isinstance(asked(changed(tmp_path, log=log), runner), Certificate)


@pytest.mark.parametrize(
    ("gives", "filled", "right"), [("zeros", "0.0", True), ("zeros", "1.0", False), ("nan", "0.0", False)]
)
def test_what_a_row_without_elements_gives_is_what_is_declared(gives, filled, right, tmp_path, runner):
    subject = changed(
        tmp_path,
        ('"fully_masked": "zeros"', f'"fully_masked": "{gives}"'),
        ("mask=column < columns)\n\n\n@triton.jit(do_not_specialize=OF_ANY_VALUE)\ndef _backward", FILLED),
        (f"{FILLED}", FILLED.replace("filled", filled)),
    )
    found = asked(subject, runner, variant=0, diagonal=-1)
    assert isinstance(found, Certificate if right else Refusal), found

"""The check `formula` under masks: right kernels pass, however they compute scores, and wrong ones fail."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from checks_support import KERNELS, SKELETONS, examination, in_turn, machine, subject_of, subject_of_texts
from triton_release import ALL_LANES_STORE

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.machine.shadow.arithmetics import make
from verifier.ops import op
from verifier.ops.specification.in_a_field import blind_residues
from verifier.ops.specification.steering import far_apart, steering
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernels are Triton's, which is not installed"
)

MASKED = KERNELS / "masked_softmax_triton.py"
FLASH = Path(__file__).with_name("flash_causal_softmax.py")
LOADED = 'Path(__file__).parents[2] / "kernels" / "masked_softmax_triton.py"'
DIAGONAL_OF_THE_LAST_ROW, A_DIAGONAL, ONE_MASK_FOR_ALL = 6, 7, 5
"""Variants of what an op lays out."""
ONE_WARP = 256
"""Columns of a row that has a single warp, at most."""


def planted(stem, changes):
    """Return the subject of a file, texts replaced in it or in masked_softmax_triton.py, which it loads."""
    files = (*KERNELS.glob("*softmax_triton.py"), *SKELETONS, FLASH)
    texts = {file.name: file.read_text(encoding="utf-8") for file in files}
    texts[FLASH.name] = texts[FLASH.name].replace(LOADED, f'Path(__file__).with_name("{MASKED.name}")')
    place = f"{stem}.py" if stem in {FLASH.stem, "softmax_triton"} else MASKED.name
    for old, new in changes.items():
        assert old in texts[place], f"{place} has no {old!r}"
        texts[place] = texts[place].replace(old, new)
    return subject_of_texts(texts, f"{stem}.py")


def case_of(subject, dtype, seed=0, *, rows=4, columns=33, variant=A_DIAGONAL, masks=True):
    """Return a case whose mask, and what is added, leave elements out; or one without both."""
    values = {name: Values(seed=seed) for name in ("input", "grad_output")}
    further = tuple((name, Values(seed=seed) if masks else None) for name in op(subject.op).varied)
    recipe = Recipe(rows=rows, columns=columns, variant=variant, eps=2.0**-17, further=further, **values)
    case = build(op(subject.op), subject, dtype, recipe, gradients=subject.differentiable)
    if not masks:
        return case
    random = torch.Generator().manual_seed(seed)

    def kept(name, share):
        there = torch.rand(case.given[name].shape, generator=random) < share
        there[..., 0] = True
        return there

    numbers = torch.randn(case.given["attn_bias"].shape, generator=random)
    added = torch.where(kept("attn_bias", 0.8), numbers, float("-inf")).to(case.given["input"].dtype)
    tensors = {**case.tensors, "mask": kept("mask", 0.8), "attn_bias": added}
    return replace(case, tensors=op(case.op).complete(tensors, case.scalars, subject))


def judged(subject, *cases):
    """Return verdicts with what they are about, and all messages."""
    found = []
    with machine() as place:
        for case in cases:
            examined = examination(subject, "formula", case.dtype, place)
            found += [o for o in examined.judge(case)[0] if o.verdict is not Verdict.SKIPPED]
    return {(o.verdict, o.output) for o in found}, " ".join(o.message for o in found).strip()


PASSED = {(Verdict.PASS, "")}
FIRST = """    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK).to(tl.int64)
        score = _scores(x, mask, added, column, columns, last, x3, m3, a3, scale, HAS_MASK, HAS_ADDED)
"""
QUOTIENT = "tl.div_rn(tl.exp(score - top), whole)"
NOTHING = 'return tl.where(there, score, float("-inf"))'
RIGHT = {
    "a maximum that is selected": {
        "largest = tl.maximum(largest, score)": "largest = tl.where(score > largest, score, largest)"
    },
    "a quotient by logarithms": {QUOTIENT: "tl.exp(score - (top + tl.log(whole)))"},
    "a finite mask": {NOTHING: NOTHING.replace('float("-inf")', "-1e30")},
    "a finite mask that is added": {
        NOTHING: 'return tl.where(column < columns, score + tl.where(there, 0.0, -1e9), float("-inf"))',
        "mask=there, other=float": "mask=column < columns, other=float",
    },
    "masks after the maximum": {FIRST: FIRST.replace("HAS_MASK, HAS_ADDED)", "False, False)")},
    "scores in the input's format": {
        NOTHING: NOTHING.replace("score,", "score.to(x.dtype.element_ty).to(tl.float32),")
    },
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(RIGHT, ("bfloat16", "float32", "float16")))
def test_right_kernels_pass_however_they_compute_scores(name, dtype):
    for stem, variants in (
        ("causal_softmax_triton", (ONE_MASK_FOR_ALL, A_DIAGONAL)),
        ("masked_log_softmax_triton", (ONE_MASK_FOR_ALL,)),
    ):
        subject = planted(stem, RIGHT[name])
        cases = [case_of(subject, dtype, seed, variant=v) for seed, v in enumerate(variants, 1)]
        assert judged(subject, *cases) == (PASSED, "")


RESCALED = "total * tl.exp2(top - held)"
TILES = {
    "as it is": {},
    "a sum that is rescaled where the maximum grows": {
        f"total = {RESCALED}": f"if top != held:\n            total = {RESCALED}\n        total = total"
    },
    "a maximum that is finite": {
        NOTHING: NOTHING.replace('float("-inf")', "-1e30"),
        'float("-inf"), 0.0': "-1e30, 0.0",
    },
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(TILES, ("float16", "bfloat16", "float32")))
def test_a_sum_in_one_sweep_is_the_formula(name, dtype):
    subject = planted(FLASH.stem, TILES[name])
    of_many_tiles = {"rows": 2, "columns": 400, "variant": DIAGONAL_OF_THE_LAST_ROW}
    assert judged(subject, case_of(subject, dtype, 1, **of_many_tiles)) == (PASSED, "")


BOTH = {(Verdict.FAIL, "output"), (Verdict.FAIL, "grad_input")}
GRADIENT = {(Verdict.FAIL, "grad_input")}
WRONG = {
    "scale of what is added, too": (
        {"product(value, scale)": "value", NOTHING: NOTHING.replace("score,", "score * scale,")},
        BOTH,
    ),
    "gradient without scale": ({"d * scale)": "d)"}, GRADIENT),
    "mask of the column before": ({"mask + column *": "mask + tl.maximum(column - 1, 0) *"}, BOTH),
    "addend of the column before": ({"added + column *": "added + tl.maximum(column - 1, 0) *"}, BOTH),
    "addend of another row": ({"added = _row(added, row,": "added = _row(added, row // 2,"}, BOTH),
    "diagonal of the next row": ({"last = row % queries +": "last = row % queries + 1 +"}, BOTH),
    "masked elements as -8": (
        {NOTHING: 'return tl.where(column < columns, tl.where(there, score, -8.0), float("-inf"))'},
        BOTH,
    ),
    "addend by the float next to 1": (
        {"other=0.0).to(tl.float32)\n    return": "other=0.0).to(tl.float32) * 1.00000011920929\n    return"},
        BOTH,
    ),
    "dot by the float next to 1": (
        {f"term *= {QUOTIENT}": f"term *= {QUOTIENT} * 1.00000011920929"},
        GRADIENT,
    ),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(WRONG, ("float16", "float32", "bfloat16")))
def test_planted_formulas_of_scores_are_found(name, dtype):
    changes, wrong = WRONG[name]
    subject = planted("causal_softmax_triton", changes)
    found, _ = judged(subject, case_of(subject, dtype, 1))
    assert found - PASSED == wrong


TILES_WRONG = {
    "rescaling forgotten": ({RESCALED: "total"}, BOTH),
    "rescaled by nearly the right number": (
        {RESCALED: "total * tl.exp2((top - held) * 1.00000011920929)"},
        BOTH,
    ),
    "log2(e) of the input alone": ({".to(tl.float32) * LOG2_E": ".to(tl.float32)"}, BOTH),
    "tiles that end before the diagonal": ({"last + 1)": "last)"}, BOTH),
    "the backward pass by exp": (
        {"term * tl.div_rn(tl.exp2(score - top), total)": "term * tl.div_rn(tl.exp(score - top), total)"},
        GRADIENT,
    ),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(TILES_WRONG))
def test_a_wrong_sum_in_one_sweep_is_found(name, dtype):
    changes, wrong = TILES_WRONG[name]
    subject = planted(FLASH.stem, changes)
    long = {"rows": 2, "columns": 386, "variant": DIAGONAL_OF_THE_LAST_ROW}
    found, _ = judged(subject, *(case_of(subject, dtype, 1, masks=masks, **long) for masks in (True, False)))
    assert found - PASSED == wrong


@pytest.mark.parametrize(
    ("stem", "rows", "columns"), [("softmax_triton", 300, 33), ("causal_softmax_triton", 16, 2000)]
)
def test_scores_that_rounding_makes_equal_are_no_finding(stem, rows, columns):
    """As bfloat16 numbers different scores are one number: lanes disagree on which is the largest."""
    read = 'other=float("-inf"))' if stem == "softmax_triton" else NOTHING.removeprefix("return ")
    rounded = ".to(tl.bfloat16)" + ".to(tl.float32)" * (stem != "softmax_triton")
    subject = planted(stem, {read: f"{read}{rounded}"})
    variant = 0 if stem == "softmax_triton" else DIAGONAL_OF_THE_LAST_ROW
    case = case_of(subject, "float32", rows=rows, columns=columns, variant=variant, masks=False)
    found, said = judged(subject, case)
    if columns > ONE_WARP and not ALL_LANES_STORE:  # one lane says to all which it is
        assert (found, said) == (PASSED, "")
    else:
        assert found == {(Verdict.UNDECIDED, "")}
        assert "no two scores of a row are near each other" in said


def test_small_rows_and_few_numbers_leave_no_row_without_a_logarithm():
    """The sum of five that are the same is 5 times one of them, and 5 is no power of 2 in the field."""
    subject = planted("causal_softmax_triton", {})
    case = case_of(subject, "bfloat16", rows=8, columns=33, variant=0, masks=False)
    same = case.given["input"].sign() * torch.tensor([2.0**-9] * 7 + [1.0]).reshape(1, 8, 1)
    found, _ = judged(subject, replace(case, tensors={**case.tensors, "input": same.to(torch.bfloat16)}))
    assert found == PASSED


# The numbers that steer, and the elements that they have.


@pytest.mark.parametrize("variant", [0, ONE_MASK_FOR_ALL, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_no_format_rounds_a_score_nor_brings_two_together(dtype, variant):
    subject = planted("masked_softmax_triton", {})
    case = steering(case_of(subject, dtype, 3, rows=8, columns=60, variant=variant), subject)
    x, added, scale = case.given["input"], case.given["attn_bias"], case.scalars["scale"]
    exact = x.double() * scale + added.double()
    assert torch.equal((x * scale + added).double(), exact)
    fold = torch.tensor(1.4426950408889634, dtype=torch.float32)
    folded = x.float() * (torch.tensor(scale, dtype=torch.float32) * fold) + added.float() * fold
    assert added.isneginf().any()
    for row, rounded in zip(exact.reshape(-1, 60), folded.reshape(-1, 60), strict=True):
        here = row.isfinite()
        order = row[here].argsort(stable=True)
        steps, apart = row[here][order].diff() > 0, rounded[here][order].double().diff()
        assert (apart[steps] > 1e-5).all()


def test_scores_of_few_bits_stay_apart_in_bfloat16():
    subject = planted("masked_softmax_triton", {})
    few = far_apart(steering(case_of(subject, "bfloat16", 3, rows=8, columns=60, variant=0), subject))
    fold = torch.tensor(1.4426950408889634).bfloat16()
    x, added = few.given["input"], few.given["attn_bias"]
    folded = (x * (torch.tensor(few.scalars["scale"]).bfloat16() * fold) + added * fold).double()
    exact = x.double() * few.scalars["scale"] + added.double()
    assert far_apart(few).given["input"].equal(x)
    for row, rounded in zip(exact, folded, strict=True):
        here = row.isfinite()
        order = row[here].argsort(stable=True)
        steps, apart = row[here][order].diff() > 0, rounded[here][order].diff()
        assert steps.any()
        assert (apart[steps] > 0).all()


@pytest.mark.parametrize("variant", [0, ONE_MASK_FOR_ALL, 4])
def test_equal_scores_have_one_element_and_their_parts_have_others(variant):
    subject = planted("masked_softmax_triton", {})
    case = steering(case_of(subject, "bfloat16", 3, rows=8, columns=60, variant=variant), subject)
    arithmetic = make("field_exponential")
    drawn = blind_residues(case, arithmetic, np.random.default_rng(0))
    modulus = arithmetic.moduli()["exponent"]
    half = pow(2, -1, modulus)
    parts = {
        n: np.broadcast_to(drawn[n]["exponent"], case.input_shape).reshape(-1, 60)
        for n in ("input", "attn_bias")
    }
    scores = op(case.op).canonical(case, "input", op(case.op).compared(case).numpy())
    tied = 0
    for row, x, added in zip(scores, parts["input"], parts["attn_bias"], strict=True):
        here = np.isfinite(row)
        elements = (x * np.uint64(half) + added)[here] % np.uint64(modulus)
        _, back = np.unique(row[here], return_inverse=True)
        assert len(set(elements)) == back.max() + 1
        assert len({*zip(back, elements, strict=True)}) == back.max() + 1
        tied += here.sum() - len(set(elements))
        assert len(set(x[here])) == here.sum()
    assert tied


def test_a_case_that_compares_nothing_has_no_scores():
    subject = subject_of(KERNELS / "layer_norm_two_pass_triton.py")
    case = build(op(subject.op), subject, "float32", Recipe(rows=2, columns=3), gradients=True)
    assert far_apart(case) is None

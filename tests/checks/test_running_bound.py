"""The running bound finds formulas that the bound for any order lets pass, and says what it cannot decide."""

from dataclasses import replace

import numpy as np
import pytest
from checks_support import (
    KERNELS,
    cases_of,
    examination,
    failures,
    faulty,
    machine,
    outcomes_of,
    passes,
    planted_log_softmax,
    subject_of,
)

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks import check, running_bound
from verifier.checks.support.running_bound_run import may_be_a_coefficient
from verifier.ops import op
from verifier.records.verdict import Verdict

pytest.importorskip("triton", reason="running bounds are tried on Triton kernels; Triton is not installed")

ADDED = """
import torch
import triton
import triton.language as tl

from verifier import subject


@triton.jit
def _rms(x, w, y, columns, eps, BLOCK: tl.constexpr):
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + c, mask=c < columns, other=0.0).to(tl.float32)
    out = v / tl.sqrt(tl.sum(v * v, axis=0) / columns + eps)
    if w is not None:
        out *= tl.load(w + c, mask=c < columns, other=0.0).to(tl.float32)
    tl.atomic_add(y + row * columns + c, out.to(y.dtype.element_ty), mask=c < columns)


@subject(
    op="rms_norm", language="triton", variance="rms", accumulates="float32", dtypes=("bfloat16",),
    differentiable=False,
)
def added(input, weight, eps):
    x, y, columns = input.contiguous(), torch.zeros_like(input), input.shape[-1]
    if x.numel():
        _rms[(x.numel() // columns,)](x, weight, y, columns, eps, triton.next_power_of_2(columns))
    return y
"""
"""Adds rows to zeros by atomics, which compute capability 8.0 does to bfloat16 by comparing and swapping."""
FOLDED = """
import torch
import triton
import triton.language as tl

from verifier import subject


def scaled(input):
    return input * 0.53948 * 0.25462


@triton.jit
def _scale(x, y, count, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Both are rounded to float32, and so is their product: 2.66 units from what is meant.
    factor = tl.full((BLOCK,), 0.53948, tl.float32) * tl.full((BLOCK,), 0.25462, tl.float32)
    tl.store(y + c, tl.load(x + c, mask=c < count) * factor, mask=c < count)


@subject(op="unknown", language="triton", dtypes=("float32",), differentiable=False, specification=scaled)
def folded(input):
    x = input.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _scale[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
    return y
"""

SERIES = """
import torch
import triton
import triton.language as tl

from verifier import subject


def tanh_of_an_eighth(input):
    return torch.tanh(input * 0.125)


@triton.jit
def _series(x, y, count, BLOCK: tl.constexpr):
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x + c, mask=c < count, other=0.0) * 0.125
    s = t * t
    p = 0.021869488 * s - 0.053968254
    p = p * s + 0.13333334
    p = p * s - 0.33333334
    tl.store(y + c, t + t * s * p, mask=c < count)


@subject(op="unknown", language="triton", dtypes=("float32",), differentiable=False,
         specification=tanh_of_an_eighth)
def series(input):
    x = input.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _series[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), 256)
    return y
"""

FAULTY = "divisor_n_minus_one_triton"
LONG = {"shapes": ((1, 8192),), "hazards": ("ordinary",)}


def test_a_divisor_of_n_minus_one_in_long_rows_is_found():
    with machine() as place:
        found = failures(outcomes_of(faulty(FAULTY), "running_bound", place=place, count=1, **LONG))
    assert found
    assert "formula wrong" in found[0].formula


@pytest.mark.parametrize("other", ["forward_error", "metamorphic", "finite", "memory"])
def test_no_other_check_finds_it(other):
    with machine() as place:
        assert not failures(outcomes_of(faulty(FAULTY), other, place=place, count=1, **LONG))


def test_every_faulty_kernel_that_the_check_names_is_tested_here():
    assert check("running_bound").CATCHES == (FAULTY,)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("stem", ["rms_norm_triton", "softmax_triton", "log_softmax_triton"])
def test_a_right_kernel_passes_in_every_output(stem, dtype):
    with machine() as place:
        found = outcomes_of(subject_of(KERNELS / f"{stem}.py"), "running_bound", dtype, place, count=2)
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert {o.output for o in passes(found)} >= {"output", "grad_input"}
    # The bound of a narrow output is hardly more than its last rounding, which some element uses up.
    assert dtype == "float32" or max(o.worst.utilisation for o in found) > 0.9


@pytest.mark.parametrize(("architecture", "verdict"), [(80, Verdict.SKIPPED), (90, Verdict.PASS)])
def test_sums_that_are_compared_and_swapped_have_no_bound(architecture, verdict, tmp_path):
    (tmp_path / "added.py").write_text(ADDED, encoding="utf-8")
    subject = subject_of(tmp_path / "added.py")
    with machine(architecture=architecture) as place:
        found = outcomes_of(subject, "running_bound", "bfloat16", place, count=4)
    assert {o.verdict for o in found} == {verdict}
    assert verdict is Verdict.PASS or all("lost track" in o.message for o in found)


def test_constants_that_a_compiler_folds_are_explained(tmp_path):
    (tmp_path / "folded.py").write_text(FOLDED, encoding="utf-8")
    with machine() as place:
        found = outcomes_of(subject_of(tmp_path / "folded.py"), "running_bound", "float32", place, count=2)
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert max(o.worst.utilisation for o in found) > 0.5


def test_numbers_that_code_rounds_to_half_where_no_tensor_is_in_half_are_left_open(tmp_path):
    value = "tl.load(x + c, mask=c < count)"
    assert value in FOLDED
    for number, (cast, verdict) in enumerate(
        {"": Verdict.PASS, ".to(tl.bfloat16)": Verdict.UNDECIDED}.items()
    ):
        path = tmp_path / f"folded_{number}.py"
        path.write_text(FOLDED.replace(value, f"{value}{cast}"), encoding="utf-8")
        with machine() as place:
            found = outcomes_of(subject_of(path), "running_bound", "float32", place, count=2)
        assert verdict in {outcome.verdict for outcome in found}
        assert ("rounds numbers to bfloat16" in found[0].message) == bool(cast)


def test_a_polynomial_in_the_place_of_a_function_is_never_called_wrong(tmp_path):
    """It errs by a few units where tanh is meant, which no rounding explains: so does a library's tanh."""
    (tmp_path / "series.py").write_text(SERIES, encoding="utf-8")
    with machine() as place:
        found = outcomes_of(subject_of(tmp_path / "series.py"), "running_bound", "float32", place, count=2)
    beyond = [o for o in found if o.output and o.verdict is Verdict.UNDECIDED]
    assert beyond
    assert all("0.0218694881" in o.message and o.worst.utilisation > 1.0 for o in beyond)
    assert not failures(found)


def test_short_numbers_and_reciprocals_are_no_coefficients():
    known = (0.0, 0.5, 1.5, -3.0, 1e-5, 1e-6, 1 / 33, 1.442695, 0.6931472, 255.0, 3.0e7)
    taken = (0.021869488, -0.053968254, 1.00003, 0.7978846, 1e-12)
    assert [may_be_a_coefficient(float(np.float32(n))) for n in (*known, *taken)] == [False] * 11 + [True] * 5


@pytest.mark.parametrize("factor", ["1.00003", "0.99997"])
def test_a_logarithm_that_is_slightly_wrong_is_found(factor):
    log = "whole = tl.log(total) if LOG else total"
    subject = planted_log_softmax({log: log.replace("total)", f"total) * {factor}")})
    with machine() as place:
        bad = failures(outcomes_of(subject, "running_bound", "float32", place, count=2))
    assert {o.output for o in bad} == {"output", "grad_input"}
    assert all("computed without rounding it is wrong too" in o.message for o in bad)


def outcome_with(monkeypatch, lost="", change=None, kernel="rms_norm_triton"):
    """Run the check on one case with observations that were changed on the way."""
    subject = subject_of(KERNELS / f"{kernel}.py")
    with machine() as place:
        examining = examination(subject, "running_bound", "float32", place)
        (case,) = cases_of(subject, "running_bound", "float32", 1)
        run = examining.runner.run

        def changed(subject, case, *, experiment, **options):
            seen = run(subject, case, experiment=experiment, **options)
            outputs = change(experiment, dict(seen.outputs)) if change else seen.outputs
            told = {"lost": lost, "how_lost": lost} if lost else {}
            return replace(seen, outputs=outputs, found=replace(seen.found, **told))

        monkeypatch.setattr(examining.runner, "run", changed)
        found = examining.judge(case)[0]
        return [o for o in found if o.measured is None or o.verdict is Verdict.SKIPPED]


def test_lost_slots_are_no_verdict(monkeypatch):
    (found,) = outcome_with(monkeypatch, lost="3 values were changed as integers")
    assert found.verdict is Verdict.SKIPPED
    assert "3 values" in found.message


def narrowed(word):
    """Make every running bound zero; `word` changes what the unrounded run gives."""

    def change(experiment, outputs):
        for name in list(outputs):
            if name.endswith("|bound"):
                outputs[name] = outputs[name] * 0
            if word == "other bits" and experiment.endswith("unrounded") and "|" not in name:
                outputs[name] = outputs[name] + 1
        return outputs

    return change


def test_a_bound_that_does_not_hold_the_unrounded_result_is_our_own_bug(monkeypatch):
    found = outcome_with(monkeypatch, change=narrowed("bound"))
    output = next(o for o in found if o.output == "output")
    assert output.verdict is Verdict.UNDECIDED
    assert "bug of the verifier until explained" in output.message


def test_two_runs_with_different_bits_are_no_verdict(monkeypatch):
    found = outcome_with(monkeypatch, change=narrowed("other bits"))
    assert {o.verdict for o in found} == {Verdict.UNDECIDED}
    assert "different bits" in found[0].message


def test_an_unlimited_bound_breaks_no_promise(monkeypatch):
    def change(experiment, outputs):
        del experiment
        return {n: t * np.inf if n.endswith("|bound") else t for n, t in outputs.items()}

    assert {o.verdict for o in outcome_with(monkeypatch, change=change)} == {Verdict.SKIPPED}


def test_an_element_without_limit_beside_a_failure_is_no_missing_theorem(monkeypatch):
    def change(experiment, outputs):
        outputs = narrowed("bound")(experiment, outputs)
        for name in (n for n in outputs if n.endswith("|bound")):
            outputs[name] = outputs[name].clone()
            outputs[name].reshape(-1)[0] = np.inf
        return outputs

    found = outcome_with(monkeypatch, change=change, kernel="layer_norm_two_pass_triton")
    assert Verdict.UNDECIDED in {o.verdict for o in found}
    assert {o.uncovered for o in found} == {0}


def test_one_unlimited_element_breaks_no_promise_either(monkeypatch):
    def change(experiment, outputs):
        del experiment
        for name in (n for n in outputs if n.endswith("|bound")):
            outputs[name] = outputs[name].clone()
            outputs[name].reshape(-1)[0] = np.inf
        return outputs

    found = outcome_with(monkeypatch, change=change, kernel="layer_norm_two_pass_triton")
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert {o.evidence.elements for o in found} == {1}


@pytest.mark.parametrize("cause", ["", "memory that nobody wrote reaches rstd"])
def test_a_theorem_that_fails_what_rounding_explains_is_told(monkeypatch, cause):
    subject = subject_of(KERNELS / "layer_norm_textbook_triton.py").differing(variance="two_pass")
    values = Values(hazard="cancellation", strength=2, seed=4)
    case = build(
        op("layer_norm"), subject, "float32", Recipe(rows=4, columns=128, input=values), gradients=True
    )
    monkeypatch.setattr(running_bound, "unwritten", lambda _: cause)
    with machine() as place:
        found = examination(subject, "running_bound", "float32", place).judge(case)[0]
    said = "the declaration is wrong" if not cause else f"no verdict on rstd: {cause}"
    (told,) = (o for o in found if o.output == "rstd")
    assert told.verdict is Verdict.UNDECIDED
    assert said in told.message
    assert not failures(found)


@pytest.mark.parametrize(
    ("stem", "dtype", "backend", "word"),
    [
        ("layer_norm_torch", "float32", "eager", "torch operators"),
        ("rms_norm_triton", "float32", "cuda", "machine"),
        ("rms_norm_triton", "float64", "machine", "float64"),
    ],
)
def test_it_says_where_it_does_not_apply(stem, dtype, backend, word):
    subject = subject_of(KERNELS / f"{stem}.py")
    assert word in check("running_bound").skips(subject, op(subject.op), dtype, backend)

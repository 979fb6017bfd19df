"""gradcheck on compiled low-precision kernels: right ones pass, planted errors in gradients do not."""

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checks_support import (
    KERNELS,
    SKELETONS,
    cases_of,
    examination,
    failures,
    in_turn,
    machine,
    outcomes_of,
    planted_log_softmax,
    subject_of,
    subject_of_texts,
)

from verifier.arithmetic.formats import ieee
from verifier.checks import gradcheck
from verifier.checks.support import difference_quotients
from verifier.checks.support.truth import Truth
from verifier.execution.shadow_run import Lost, LostShadows
from verifier.ops import Setting
from verifier.records.verdict import Outcome, Verdict

triton = pytest.importorskip("triton", reason="lifting is tried on Triton kernels; Triton is not installed")

SHAPES = ((3, 5),)
TWO_PASS = KERNELS / "layer_norm_two_pass_triton.py"
SKELETON = KERNELS / "layer_norm_skeleton_triton.py"
C1, C2 = r"divide\(along_hat, count\)", r"divide\(plain, count\)"
EPS = "1 / tl.sqrt(1 / (rstd * rstd) + 0.0009765625)"
# The mutants that arithmetics beside the machine were first tried with, as (pattern, text) of one place.
MUTANTS = {
    "eps twice in the backward": [(r"(        )(hat = tl\.where\()", rf"\1rstd = {EPS}\n\1\2")],
    "c1 dropped": [(C1, "count * 0.0")],
    "c2 dropped": [(C2, "count * 0.0")],
    "sign of c1": [(r"\(g - \(hat \* c1 \+ c2\)\)", "(g - (c2 - hat * c1))")],
    "c1 over N - 1": [(C1, "divide(along_hat, count - 1)")],
    "dw without rstd": [(r"part_dw \+= d \* hat", "part_dw += d * tl.where(inside, value - mean, 0.0)")],
    "last row missing in the sums": [
        (r"part_dw \+= d \* hat", "part_dw += tl.where(row == rows - 1, 0.0, d * hat)"),
        (r"part_db \+= d\n", r"part_db += tl.where(row == rows - 1, 0.0, d)\n"),
    ],
}


def mutant(name):
    """Return the subject of a copy of the two-pass kernel in which the first such places are others."""
    text = SKELETON.read_text(encoding="utf-8")
    for pattern, other in MUTANTS[name]:
        text, changed = re.subn(pattern, other, text, count=1)
        assert changed, pattern
    return with_skeleton(text)


def with_skeleton(text):
    """Return the subject of a copy of the two-pass kernel whose skeleton has another text."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in (TWO_PASS, *SKELETONS)}
    return subject_of_texts({**texts, SKELETON.name: text}, TWO_PASS.name)


@pytest.mark.parametrize(("name", "dtype"), in_turn(MUTANTS))
def test_a_planted_error_of_the_gradients_is_found(name, dtype):
    with machine() as place:
        bad = failures(outcomes_of(mutant(name), "gradcheck", dtype, place, count=1, shapes=SHAPES))
    assert {o.verdict for o in bad} == {Verdict.FAIL}
    assert any(o.message.startswith("gradcheck:") for o in bad)
    assert any(o.output.startswith("grad_") for o in bad)


LOG = "whole = tl.log(total) if LOG else total"
LOG_MUTANTS = {
    "no logarithm of the sum": ({LOG: "whole = total"}, "output"),
    "logarithm to base 2": ({LOG: LOG.replace("tl.log(", "tl.log2(")}, "output"),
    "gradient without exp": ({"d - tl.exp(out) * dot": "d - out * dot"}, "grad_input"),
    "gradient without the sum": ({"d - tl.exp(out) * dot": "d - tl.exp(out)"}, "grad_input"),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(LOG_MUTANTS))
def test_a_planted_error_of_a_log_softmax_is_found(name, dtype):
    changes, output = LOG_MUTANTS[name]
    subject = planted_log_softmax(changes)
    with machine() as place:
        bad = failures(outcomes_of(subject, "gradcheck", dtype, place, count=1, shapes=SHAPES))
    assert output in {o.output for o in bad}
    assert {o.verdict for o in bad} == {Verdict.FAIL}
    assert all("lifted" in o.message or o.message.startswith("gradcheck:") for o in bad)


DTYPES = ("float16", "bfloat16", "float32")
RIGHT = ("layer_norm_two_pass_triton", "softmax_triton", "log_softmax_triton", "batch_norm_triton")


@pytest.mark.parametrize(("stem", "dtype"), in_turn(RIGHT, DTYPES))
def test_a_right_kernel_passes_with_no_slot_lost(stem, dtype):
    with machine() as place:
        found = outcomes_of(subject_of(KERNELS / f"{stem}.py"), "gradcheck", dtype, place, 1, shapes=SHAPES)
    assert {o.verdict for o in found} <= {Verdict.PASS, Verdict.SKIPPED}
    differenced = [o for o in found if o.evidence and o.evidence.tolerance]
    assert [o.verdict for o in differenced] == [Verdict.PASS]
    evidence = differenced[0].evidence
    assert not evidence.lost.words
    assert evidence.tolerance.absolute < 2.0**-20 * evidence.tolerance.largest
    # Lifted results are nearer to the exact ones than one float32 rounding is, in every dtype.
    assert all(o.worst.error < 2.0**-40 for o in found if o.worst is not None and "running" not in o.output)


def test_only_the_machine_lifts():
    from verifier.ops import op

    subject = subject_of(TWO_PASS)
    assert gradcheck.skips(subject, op("layer_norm"), "float16", "machine") is None
    assert "machine" in gradcheck.skips(subject, op("layer_norm"), "float16", "cuda")
    assert gradcheck.skips(subject, op("layer_norm"), "float64", "eager") is None


def test_a_constant_of_single_accuracy_is_no_finding_and_no_pass():
    text = SKELETON.read_text(encoding="utf-8")
    other = text.replace("(value - mean) * rstd\n", "(value - mean) * (rstd * 1.00000011920929)\n", 1)
    assert other != text
    subject = with_skeleton(other)
    with machine() as place:
        found = outcomes_of(subject, "gradcheck", "float16", place, count=1, shapes=SHAPES)
    assert [o.verdict for o in found] == [Verdict.UNDECIDED]
    assert found[0].measured.seen == gradcheck.NEARLY
    assert found[0].doubtful


def test_where_one_dtype_is_run_compiled_kernels_are_lifted_too():
    from verifier.audit.run_audit import runs_on

    subject = subject_of(TWO_PASS)
    assert [d for d in subject.dtypes if runs_on(subject, "gradcheck", d)] == ["float16", "float64"]


# -- tolerances ------------------------------------------------------------------------------------


def truth_of(**changes):
    """Return the truth of a small case in float64, with bounds of another arithmetic if asked."""
    subject = subject_of(TWO_PASS)
    (case,) = cases_of(subject, "gradcheck", "float64", 1, shapes=SHAPES)
    setting = Setting(arithmetic=ieee("float64", **changes), trees=subject.claim.trees)
    return Truth(subject=subject, case=case, setting=setting)


NAMES = ("input", "weight", "bias")


def test_a_tolerance_as_large_as_the_derivatives_is_no_theorem():
    assert not difference_quotients.tolerance(truth_of(), NAMES).why
    # A division that errs by 2^-13, over a step of 2^-16.
    wide = difference_quotients.tolerance(truth_of(division=2.0**40), NAMES)
    assert "as large as the derivatives" in wide.why
    assert gradcheck._without(wide).verdict is Verdict.NO_THEOREM


@pytest.mark.parametrize("step", ["truncation", "forward_bound"])
def test_a_part_of_the_tolerance_that_is_no_number_leaves_none(step, monkeypatch):
    monkeypatch.setattr(difference_quotients._Tall, step, lambda *_: float("nan"))
    assert difference_quotients.tolerance(truth_of(), NAMES).why


def test_the_tolerance_covers_the_truncation_that_quotients_have():
    """Against quotients by torch's own gradients of the definition in float64, at a step of 2^-17."""
    truth = truth_of()
    found = difference_quotients.tolerance(truth, NAMES)
    case = truth.case
    x = case.given["input"].clone().requires_grad_(True)
    shape, rest = tuple(case.scalars["normalized_shape"]), (case.tensors["weight"], case.tensors["bias"])

    def function(values):
        return torch.nn.functional.layer_norm(values, shape, *rest, case.eps)

    jacobian = torch.autograd.functional.jacobian(function, x)
    for place in range(x.numel()):
        moved = torch.zeros(x.numel(), dtype=torch.float64)
        moved[place] = found.step
        moved = moved.reshape(x.shape)
        quotient = (function(x + moved) - function(x - moved)) / (2 * found.step)
        exact = jacobian.reshape(*x.shape, -1)[..., place]
        assert float((quotient - exact).detach().abs().max()) <= found.absolute


def test_one_row_without_an_axis_of_rows_has_a_tolerance_too():
    truth = truth_of()
    flat = {n: t[0].contiguous() if t.dim() == 2 else t for n, t in truth.case.given.items()}
    case = replace(truth.case, tensors=flat, rows=1)
    assert not difference_quotients.tolerance(replace(truth, case=case), NAMES).why


# -- lost shadows ------------------------------------------------------------------------------------


FAIL = Outcome(verdict=Verdict.FAIL, output="output", message="wrong", decided=1, wrong=1)


@pytest.mark.parametrize(
    "lost",
    [
        {"values": 3},
        {"desynchronised": 1},
        {"uncovered": ("cumsum",)},
        {"steered_apart": 1},
        {"broken": ("k:7 sub.s32",)},
    ],
)
def test_a_failure_that_rests_on_lost_slots_is_undecided(lost):
    outcome = gradcheck._unless_lost([FAIL], LostShadows(**lost))[0]
    assert outcome.verdict is Verdict.UNDECIDED
    assert not outcome.decided
    assert "lost on the way" in outcome.message


def test_a_failure_without_loss_stays():
    assert gradcheck._unless_lost([FAIL], LostShadows())[0].verdict is Verdict.FAIL


def test_a_computed_value_without_a_slot_counts_as_lost_and_a_constant_does_not():
    slots = SimpleNamespace(counters=None)
    lost = Lost(slots, SimpleNamespace(scalars={"eps": 1e-5}))
    values = np.array([0.0, 1.0, 2.0**-7, np.inf, np.float32(1e-5), 0.3, 3.0], dtype=np.float32)
    assert lost.lost_of(values, "f32", np.zeros(7, dtype=np.uint64)) == 2
    assert lost.lost_of(values, "f32", np.ones(7, dtype=np.uint64)) == 0


@pytest.mark.parametrize(("kind", "dtype"), [("f16", "f2"), ("bf16", "u2"), ("f32", "f4"), ("f64", "f8")])
def test_a_register_that_nothing_was_loaded_into_is_no_computed_value(kind, dtype):
    slots = SimpleNamespace(counters=None)
    case = SimpleNamespace(scalars={})
    values = np.full(8, 0xA5, dtype=np.uint8).view(dtype)
    tags = np.zeros(values.shape, dtype=np.uint64)
    assert Lost(slots, case, 0xA5).lost_of(values, kind, tags) == 0
    assert Lost(slots, case, 0x5A).lost_of(values, kind, tags) == values.size
    assert Lost(slots, case).lost_of(values, kind, tags) == values.size


# -- the arithmetic --------------------------------------------------------------------------------


def test_a_choice_that_lifted_values_would_make_otherwise_is_counted():
    from verifier.machine.shadow.arithmetics.lifted import build

    lifted = build()
    floats = (np.array([1.0, 2.0]), np.array([2.0, 1.0]))
    result = np.maximum(*floats)
    same = lifted.apply("max", "f32", result, floats, floats)
    assert same.tolist() == [2.0, 2.0]
    assert lifted.apart == [0]
    lifted.apply("max", "f32", result, floats, (np.array([5.0, 2.0]), np.array([2.0, 1.0])))
    assert lifted.apart == [1]


def test_rounding_to_an_integer_is_done_as_the_floats_do_it():
    from verifier.machine.shadow.arithmetics.lifted import build

    x, magic = np.array([2.7, -1.2], dtype=np.float32), np.array([[12582912.0]], dtype=np.float32)
    shifted = (x + magic).astype(np.float32)
    slots = (x.astype(np.float64), magic.astype(np.float64))
    found = build().apply("add", "f32", shifted, (x, magic), slots)
    assert (found - magic).tolist() == [[3.0, -1.0]]
    rounded = build().apply("cvt", "f32", np.rint(x), (x,), (x.astype(np.float64),))
    assert rounded.tolist() == [3.0, -1.0]


def test_threads_that_see_tied_floats_in_other_orders_choose_one_lifted_value():
    from verifier.machine.shadow.arithmetics.lifted import build

    lifted, tied = build(), np.array([1.0], dtype=np.float32)
    low, high = np.array([1.0]), np.array([1 + 2.0**-40])
    for name, wanted in (("max", high), ("min", low)):
        for slots in ((low, high), (high, low)):
            assert lifted.apply(name, "f32", tied, (tied, tied), slots) == wanted


def test_a_residual_counts_among_what_is_moved_where_the_input_is_dropped():
    """Where all is dropped the output depends on the residual alone, whose differences are no derivatives."""
    subject = subject_of(KERNELS / "dropout_add_rms_norm_triton.py")
    (case,) = cases_of(subject, "gradcheck", "float32", count=1, shapes=((1, 5),), hazards=("ordinary",))
    dropped = torch.zeros_like(case.given["dropout_mask"])
    case = replace(case, tensors={**case.tensors, "dropout_mask": dropped})
    with machine() as place:
        found, _ = examination(subject, "gradcheck", "float32", place).judge(case)
    assert any(o.decided and not o.output for o in found)  # differences were taken
    assert not any(o.wrong for o in found)

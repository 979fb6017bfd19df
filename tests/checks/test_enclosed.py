"""Op 'unknown' lifted to float64: right kernels keep their radii, formulas wrong by a millionth do not."""

import importlib.util
from dataclasses import replace
from pathlib import Path

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
    subject_of,
    subject_of_texts,
)

from verifier import subject
from verifier.audit.rules import summed
from verifier.checks import check, gradcheck
from verifier.checks.support import lifted_radii
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.execution.shadow_run import LostShadows
from verifier.machine import session as machine_session
from verifier.ops import op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.verdict import Outcome, Verdict

FOLDER = Path(__file__).parent
GATED, OWN = FOLDER / "own_gated_softmax.py", FOLDER / "own_specification.py"
FAULTY = "gate_constant_slightly_wrong_triton"
compiled = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernels are Triton's, which is not installed"
)


def changed(path, *places):
    """Return the subject of a copy in which each (old, new) is changed once."""
    text = path.read_text(encoding="utf-8")
    for old, new in places:
        assert old in text
        text = text.replace(old, new, 1)
    return subject_of_texts({path.name: text}, path.name)


def judged(kernel, dtype="float16", count=2, check_name="gradcheck"):
    with machine() as place:
        return outcomes_of(kernel, check_name, dtype, place, count=count)


# -- verdicts --------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize(
    ("path", "architecture", "dtype"),
    [(GATED, 90, "float16"), (OWN, 80, "bfloat16"), (GATED, 100, "float32")],
    ids=lambda p: getattr(p, "stem", None),
)
def test_a_right_kernel_passes_within_radii_that_say_something(path, dtype, architecture):
    with machine_session(architecture=architecture):
        found = outcomes_of(subject_of(path), "gradcheck", dtype, "machine", count=1)
    assert {o.verdict for o in found} == {Verdict.PASS}
    results = [o for o in found if o.output]
    assert {o.output for o in results} > {"output", "grad_input"}
    assert all(o.worst.bound < 2.0**-40 for o in results)
    (differences,) = [o for o in found if not o.output]
    assert differences.verdict is Verdict.PASS
    assert differences.evidence.tolerance.absolute < 2.0**-20 * differences.evidence.tolerance.largest


def softmax(input):
    weight = input.exp()
    return weight / weight.sum(-1, keepdim=True)


def layer_norm(input, weight, bias, eps):
    centred = input - input.mean(-1, keepdim=True)
    hat = centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    scaled = hat if weight is None else hat * weight
    return scaled if bias is None else scaled + bias


@pytest.mark.parametrize(
    ("stem", "meaning", "dtype"),
    [
        ("softmax_triton", softmax, "float32"),
        ("softmax_cuda", softmax, "bfloat16"),
        ("layer_norm_welford_triton", layer_norm, "float16"),
    ],
)
def test_kernels_of_known_ops_keep_the_radius_of_a_specification(stem, meaning, dtype):
    """Exponentials, maxima, merged statistics; compiled by both compilers, in each dtype once."""
    base = subject_of(KERNELS / f"{stem}.py")
    if missing := backend("machine").refuses(base, dtype):
        pytest.skip(missing)

    def rows(input):
        return base.function(input=input, dim=-1)

    def norm(input, weight=None, bias=None, eps=1e-5):
        shape = tuple(input.shape[-1:])
        return base.function(input=input, normalized_shape=shape, weight=weight, bias=bias, eps=eps)[0]

    function = rows if meaning is softmax else norm
    declare = subject(op="unknown", specification=meaning, language=base.language, dtypes=(dtype,))
    found = judged(declare(function), dtype, count=1)
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert {o.output for o in found} >= {"", "output", "grad_input"}


FORMULAS = {
    "gate wrong by 1e-6": (GATED, ("tl.sigmoid(1.702 *", "tl.sigmoid(1.702002 *"), "output"),
    "scale wrong by 1e-6": (GATED, (".to(tl.float32) * 0.3", ".to(tl.float32) * 0.3000003"), "output"),
    "masked lanes in the sum": (GATED, ('other=float("-inf")', "other=0.0"), "output"),
    "slope without the mean": (GATED, ("(slope - mean)", "slope"), "grad_input"),
    "slope of another gate": (GATED, ("1.702 * gate * (1.0", "1.702002 * gate * (1.0"), "grad_gate"),
    "mean over N - 1": (OWN, ("axis=0) / columns\n    rstd", "axis=0) / (columns - 1)\n    rstd"), "output"),
    "eps outside the root": (OWN, ("tl.sqrt(square + eps)", "(tl.sqrt(square) + eps)"), "output"),
    "eps twice": (OWN, ("tl.sqrt(square + eps)", "tl.sqrt(square + 2 * eps)"), "output"),
    "no mean term": (OWN, ("(g - hat * c)", "g"), "grad_input"),
    "first row lost": (OWN, ("+= grad * hat", "+= tl.where(row > 0, grad * hat, 0.0)"), "grad_weight"),
}
BACKWARD_ALONE = {"slope without the mean", "no mean term", "first row lost"}


@compiled
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float16") for name in FORMULAS), ("gate wrong by 1e-6", "float32"), ("eps twice", "bfloat16")],
)
def test_a_wrong_formula_is_found_in_every_dtype(name, dtype):
    path, place, output = FORMULAS[name]
    found = failures(judged(changed(path, place), dtype, count=1))
    assert output in {o.output for o in found}
    assert all("further from their specification" in o.message for o in found if o.output)
    # Differences do not fit a backward pass of another function.
    assert name not in BACKWARD_ALONE or [o for o in found if o.message.startswith("gradcheck:")]


SMALL_WEIGHT = (
    ("True) + eps) * (1 + weight)", "True) + eps) * (1 + weight * 2.0**-40)"),
    ("(1.0 + weight)", "(1.0 + weight * 9.094947017729282e-13)"),
    ("1.0 + tl.load(w + column, mask=inside, other=0.0).to(tl.float32)", "1.0"),
    ("total += grad * hat", "total += 0.0 * hat"),
)


@compiled
def test_differences_pass_no_tensor_whose_derivatives_are_below_their_tolerance():
    """A weight of 2^-40 moves the output by less than the truncation of the differences by the input."""
    found = judged(changed(OWN, *SMALL_WEIGHT), "float32", count=1)
    (differences,) = [o for o in found if not o.output]
    assert differences.verdict is not Verdict.PASS
    assert "grad_weight" in {o.output for o in failures(found)}


@compiled
def test_forward_and_backward_wrong_together_are_found_too():
    places = [("tl.sigmoid(1.702 *", "tl.sigmoid(1.8 *")] * 2 + [("1.702 * gate * (1.0", "1.8 * gate * (1.0")]
    found = failures(judged(changed(GATED, *places), count=1))
    assert {o.output for o in found} == {"output", "grad_input", "grad_gate"}


@compiled
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_other_check_sees_a_constant_that_16_bits_hide(dtype):
    assert FAULTY in check("gradcheck").CATCHES
    assert failures(judged(faulty(FAULTY), dtype, count=1))
    others = ("running_bound", "formula", "influence", "finite", "memory")
    for other in others if dtype == "float16" else others[:1]:  # the others' numbers have no dtype
        assert not failures(judged(faulty(FAULTY), dtype, count=3, check_name=other)), other


@compiled
def test_a_constant_may_stand_for_what_rounds_to_it():
    """The float32 number after that of 1.702 is no finding, and no differences are taken with it."""
    near = float(np.nextafter(np.float32(1.702), np.float32(2)))
    assert near != np.float32(1.702)
    found = judged(changed(GATED, ("tl.sigmoid(1.702 *", f"tl.sigmoid({near!r} *")), count=1)
    assert {o.verdict for o in found if o.output} == {Verdict.PASS}
    (differences,) = [o for o in found if not o.output]
    assert differences.verdict is Verdict.SKIPPED
    assert differences.measured.seen == gradcheck.CONSTANTS


RECIPROCAL = (
    (
        "rstds, columns, eps, BLOCK: tl.constexpr):  # noqa: PLR0917",
        "rstds, columns, eps, part, BLOCK: tl.constexpr):",
    ),
    ("axis=0) / columns\n    rstd", "axis=0) * part\n    rstd"),
    ("columns, float(eps), BLOCK", "columns, float(eps), {}, BLOCK"),
)


@compiled
@pytest.mark.parametrize(("part", "right"), [("1 / columns", True), ("1 / (columns - 0.00001)", False)])
def test_a_reciprocal_that_is_handed_to_a_kernel_is_that_of_its_columns(part, right):
    places = [(old, new.format(part)) for old, new in RECIPROCAL]
    found = judged(changed(OWN, *places), count=1)
    if right:
        assert {o.verdict for o in found} == {Verdict.PASS}
        assert max(o.worst.bound for o in found if o.worst) < 2.0**-40
    else:
        assert "output" in {o.output for o in failures(found)}


POWER = """
@triton.jit
def power(x):
    whole = tl.floor(x * 1.4426950408889634 + 0.5)
    f = x * 1.4426950408889634 - whole
    series = 1.5403530e-4 * f + 1.3333558e-3
    series = ((series * f + 9.6181291e-3) * f + 5.5504109e-2) * f + 2.4022651e-1
    return ((series * f + 6.9314718e-1) * f + 1.0) * tl.exp2(whole)

"""


@compiled
@pytest.mark.parametrize(
    ("coefficient", "verdict"), [("2.4022651e-1", Verdict.UNDECIDED), ("2.41e-1", Verdict.FAIL)]
)
def test_a_polynomial_of_single_accuracy_is_no_finding_and_no_pass(coefficient, verdict):
    series = POWER.replace("2.4022651e-1", coefficient)
    masked = "tl.where(inside, power(score - tl.max(score, axis=0)), 0.0)"
    head = "\n\n@triton.jit\ndef _forward"
    places = [(head, f"\n{series}{head}"), ("tl.exp(score - tl.max(score, axis=0))", masked)]
    found = judged(changed(GATED, *places), count=1)
    assert verdict in {o.verdict for o in found}
    if verdict is Verdict.UNDECIDED:
        assert [o.measured.seen for o in found] == [gradcheck.NEARLY]
        assert found[0].doubtful


def test_without_a_radius_that_says_something_there_is_no_theorem_and_with_lost_slots_no_verdict():
    wide = Outcome(verdict=Verdict.NO_THEOREM, output="output", message=lifted_radii.TOO_WIDE, uncovered=3)
    bad = (Verdict.FAIL, Verdict.NO_THEOREM)
    for lost, verdict in ((0, Verdict.NO_THEOREM), (2, Verdict.UNDECIDED)):
        assert gradcheck._unless_lost([wide], LostShadows(values=lost), bad)[0].verdict is verdict


@compiled
def test_a_radius_that_is_wide_for_its_row_decides_nothing(monkeypatch):
    monkeypatch.setattr(lifted_radii, "SHARP", 0.0)
    found = judged(subject_of(OWN), count=1)
    # The differences passed; a case of which no result is judged passes for none of them.
    assert {o.verdict for o in found if o.output} == {Verdict.UNDECIDED}


@compiled
def test_a_result_is_passed_as_a_whole_or_not_at_all(monkeypatch):
    run = lifted_radii.experiment

    def unknown(*arguments, **options):
        seen = run(*arguments, **options)
        radius = seen.outputs["output|radius"].clone()
        radius.view(-1)[0] = np.inf
        return replace(seen, outputs={**seen.outputs, "output|radius": radius})

    monkeypatch.setattr(lifted_radii, "experiment", unknown)
    found = {o.output: o for o in judged(subject_of(OWN), count=1)}
    assert (found["output"].verdict, found["output"].uncovered) == (Verdict.UNDECIDED, 1)
    assert found["grad_input"].verdict is Verdict.PASS
    assert summed(o.verdict for o in found.values()) is Verdict.UNDECIDED


STEALTH = """

@triton.jit
def turned(bits):
    return tl.inline_asm_elementwise("{}", "=r,r", [bits], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def stealthy(x):
    return turned(turned((1.5 * x).to(tl.int32, bitcast=True))).to(tl.float32, bitcast=True)

"""
STORED = "value * rstd * (1.0 + weight)"


@compiled
@pytest.mark.parametrize("check_name", ["gradcheck", "running_bound"])
@pytest.mark.parametrize("instruction", ["not.b32 $0, $1;", "lop3.b32 $0, $1, 0, 0, 0xF0;"])
def test_a_result_wrong_in_every_second_element_is_not_passed_for_the_others(instruction, check_name):
    head = "\n\n@triton.jit\ndef _forward"
    wrong = f"tl.where(column % 2 == 0, {STORED}, stealthy({STORED}))"
    places = [(head, STEALTH.format(instruction) + head), (STORED, wrong)]
    found = judged(changed(OWN, *places), "float32", count=2, check_name=check_name)
    assert Verdict.PASS not in {o.verdict for o in found}
    assert all(o.doubtful for o in found)


@compiled
def test_what_lies_outside_a_wide_radius_is_wrong_all_the_same(monkeypatch):
    monkeypatch.setattr(lifted_radii, "SHARP", 0.0)
    path, place, _ = FORMULAS["eps twice"]
    assert failures(judged(changed(path, place), count=1))


def test_it_runs_where_code_is_compiled_and_says_so_elsewhere():
    own = subject_of(OWN) if importlib.util.find_spec("triton") else faulty("weight_missing")
    assert gradcheck.skips(own, op("unknown"), "float16", "machine") is None
    for dtype, place in (("float16", "cuda"), ("float64", "machine"), ("float32", "eager")):
        assert "machine" in gradcheck.skips(own, op("unknown"), dtype, place)


# -- results and their shapes ----------------------------------------------------------------------------

FUSED = FOLDER / "own_fused_add.py"


@compiled
@pytest.mark.parametrize("shape", [(3, 7), (4, 1), (1, 5)])
@pytest.mark.parametrize("check_name", ["gradcheck", "running_bound", "formula"])
def test_every_result_of_a_fused_kernel_is_judged(check_name, shape):
    with machine() as place:
        found = outcomes_of(subject_of(FUSED), check_name, "float16", place, 1, shapes=(shape,))
    assert {o.verdict for o in found} == {Verdict.PASS}
    assert check_name == "formula" or {o.output for o in found} == {"output", "total", "scale"}


@compiled
@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("total", ("+ column, value, mask=inside)", "+ column, value * 1.001, mask=inside)")),
        ("scale", ("tl.store(scales + row, scale)", "tl.store(scales + row, 1 / scale)")),
        ("scale", ("return y, total, scales", "return y, total, scales[:-1]")),
    ],
)
def test_a_further_result_that_is_wrong_is_found(output, place):
    found = failures(judged(changed(FUSED, place), count=1))
    assert {o.output for o in found} == {output}


@compiled
@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("grad_weight", ("return dx, dw, None", "return dx, None, None")),
        ("output", ("_like(x), torch.empty(rows", "_like(x, dtype=torch.float64), torch.empty(rows")),
    ],
)
def test_a_result_that_is_missing_or_of_another_dtype_is_found(output, place):
    found = failures(judged(changed(OWN, place), count=1))
    assert output in {o.output for o in found}
    assert [o for o in found if "is expected" in o.message]


# -- radii -----------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize(
    "stem", ["rms_norm_triton", "softmax_triton", "layer_norm_welford_triton", "layer_norm_two_pass_triton"]
)
def test_radii_hold_the_exact_results_of_known_ops_as_their_theorems_do(stem):
    """Two proofs bound one distance: it is provably beyond neither, and for these inputs both are small."""
    known, dtype = subject_of(KERNELS / f"{stem}.py"), "float16"
    (case,) = cases_of(known, "gradcheck", dtype, 1)
    run = examination(known, "gradcheck", dtype, "machine").runner.run
    setting = backend("machine").setting(known, dtype)
    held = Session(subject=known, case=case, backend="machine", setting=setting, run=run)
    truth = gradcheck.lifted_truth(held)
    with machine():
        seen = held.execute(
            experiment="verifier.checks.support.lifted_radii:experiment",
            gradients=True,
            unit_roundoff=lifted_radii.DOUBLE,
            as_written=[],
            names=[],
            asked=None,
        )
    compared = [n for n in ("output", "grad_input", "grad_weight", "mean", "rstd") if n in seen.outputs]
    for name in compared:
        value, radius = (
            np.asarray(truth.op.canonical(truth.case, name, to_float64(seen.outputs[n])))
            for n in (name, f"{name}|radius")
        )
        error = truth.exact[name].error_of(value)[0]
        assert np.all(error <= radius), name
        assert np.all(error <= truth.bounds[name].bound), name
        assert np.all(radius <= 2.0**-40), name
    assert len(compared) > 1


@compiled
def test_a_radius_that_misses_a_rounding_would_be_seen(monkeypatch):
    """With radii a thousand times smaller a right kernel fails: the demand is not idle."""
    run = lifted_radii.experiment

    def narrowed(*arguments, **options):
        seen = run(*arguments, **options)
        small = {n: t * 1e-3 if n.endswith("|radius") else t for n, t in seen.outputs.items()}
        return replace(seen, outputs=small)

    monkeypatch.setattr(lifted_radii, "experiment", narrowed)
    assert failures(judged(subject_of(OWN), count=1))

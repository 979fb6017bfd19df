"""The check `formula`: right kernels equal their op in a field, wrong ones differ where they are wrong."""

import importlib.util
from dataclasses import replace
from fractions import Fraction
from itertools import cycle

import checks_support
import numpy as np
import pytest
from checks_support import KERNELS, faulty, in_turn, planted_log_softmax, subject_of
from in_process import InProcess

from verifier import machine
from verifier.cases.recipe import Recipe, build
from verifier.checks import formula
from verifier.checks.support.session import Session
from verifier.execution.backends import backend
from verifier.execution.backends.machine import compiler_missing
from verifier.machine.shadow.arithmetics import field, make
from verifier.ops import op
from verifier.ops.specification import steering
from verifier.ops.specification.difference_pattern import pattern
from verifier.ops.specification.in_a_field import blind_residues, own_residues, specify
from verifier.ops.specification.literals import meant, suspects
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_files, load_subjects

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernels here are Triton's, which is not installed"
)

LAYER_NORM = KERNELS / "layer_norm_two_pass_triton.py"
EPS = 2.0**-17


def case_of(subject, dtype="float16", rows=6, columns=40, **changes):
    recipe = Recipe(rows=rows, columns=columns, eps=EPS, **changes)
    gradients = formula.plan(subject, op(subject.op)).gradients
    return build(op(subject.op), subject, dtype, recipe, gradients=gradients)


def judged(subject, case, **settings):
    """Outcomes of one case on a machine of its own, in this process."""
    with machine.session(poison=0xFF, **settings):
        session = Session(
            subject=subject,
            case=case,
            backend="machine",
            setting=backend("machine").setting(subject, case.dtype),
            run=InProcess("machine").run,
        )
        return formula.check(session)


def wrong_outputs(outcomes):
    assert all(o.verdict in {Verdict.PASS, Verdict.FAIL} for o in outcomes), [o.message for o in outcomes]
    return {o.output for o in outcomes if o.verdict is Verdict.FAIL}


def planted(changes, source=LAYER_NORM):
    """Return the subject of a copy of a kernel file in which texts are replaced."""
    return checks_support.planted(changes, source)


VARIANCE = "return mean, divide(tl.sum(total, axis=0), count)"
SAVED = "tl.store(rstds + row, rstd)"
DX = "(g - (hat * c1 + c2)) * rstd"
MEANS = "        c1, c2 = divide(along_hat, count), divide(plain, count)"
RECIPROCAL_ROOT = "tl.store(rstds + row, divide(tl.full((), 1.0, ACCUMULATE), root({})))"
EVERYTHING = {"output", "rstd", "grad_input", "grad_weight"}

MUTANTS = {
    "variance over N - 1": ({VARIANCE: VARIANCE.replace("count)", "count - 1)")}, EVERYTHING),
    "eps outside the root": ({"root(variance + eps)": "(root(variance) + eps)"}, EVERYTHING),
    "forward without eps": ({"root(variance + eps)": "root(variance)"}, EVERYTHING),
    "masked lanes in the variance": (
        {"centred = tl.where(column < columns, value - mean, 0.0)": "centred = value - mean"},
        EVERYTHING,
    ),
    "mean over the block": (
        {
            "mean = divide(tl.sum(total, axis=0), count)": "mean = divide(tl.sum(total, axis=0), "
            "tl.cast(BLOCK, ACCUMULATE))"
        },
        EVERYTHING | {"mean"},
    ),
    "backward without eps": (
        {SAVED: RECIPROCAL_ROOT.format("variance")},
        {"rstd", "grad_input", "grad_weight"},
    ),
    "backward with eps twice": (
        {SAVED: RECIPROCAL_ROOT.format("variance + eps + eps")},
        {"rstd", "grad_input", "grad_weight"},
    ),
    "c1 dropped": ({DX: "(g - c2) * rstd"}, {"grad_input"}),
    "c2 dropped": ({DX: "(g - hat * c1) * rstd"}, {"grad_input"}),
    "sign of c1": ({DX: "(g - (c2 - hat * c1)) * rstd"}, {"grad_input"}),
    "c1 over N - 1": ({MEANS: MEANS.replace("hat, count)", "hat, count - 1)")}, {"grad_input"}),
    "grad_weight without rstd": (
        {"part_dw += d * hat": "part_dw += d * tl.where(inside, value - mean, 0.0)"},
        {"grad_weight"},
    ),
    "last part of the rows lost": (
        {"(part[:, None] < count)": "(part[:, None] < count - 1)"},
        {"grad_weight", "grad_bias"},
    ),
    "mask that nothing needs": (
        {"hat = tl.where(inside, (value - mean) * rstd, 0.0)": "hat = (value - mean) * rstd"},
        set(),
    ),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(MUTANTS))
def test_planted_formulas_differ_in_the_outputs_that_they_touch(name, dtype):
    changes, wrong = MUTANTS[name]
    subject = planted(changes)
    outcomes = judged(subject, case_of(subject, dtype))
    assert wrong_outputs(outcomes) == wrong
    assert all(o.wrong == o.decided for o in outcomes if o.verdict is Verdict.FAIL)


@pytest.mark.parametrize(
    ("stem", "dtype", "architecture"),
    [
        ("layer_norm_two_pass_triton", "float16", 100),
        ("layer_norm_two_pass_triton", "bfloat16", 80),
        ("softmax_triton", "float32", 90),
    ],
)
def test_right_kernels_equal_their_op_on_every_architecture(stem, dtype, architecture):
    """Pairs of dtype and architecture that `test_every_corrected_kernel_equals_its_op...` leaves open.

    So does `test_a_logarithm_by_polynomial_is_compared_in_full`: together they have every pair.
    """
    subject = subject_of(KERNELS / f"{stem}.py")
    outcomes = judged(subject, case_of(subject, dtype), architecture=architecture)
    assert [o.verdict for o in outcomes] == [Verdict.PASS]
    assert outcomes[0].decided


@pytest.mark.parametrize(
    ("stem", "dtype", "architecture"),
    [
        ("softmax_cuda", "float16", 90),
        ("log_softmax_cuda", "bfloat16", 80),
        ("layer_norm_backward_cuda", "float16", 80),
    ],
)
def test_cuda_kernels_equal_their_op(stem, dtype, architecture):
    """expf with its integer exponent is 2^a, and a raw backward op is given its statistics."""
    if missing := compiler_missing():
        pytest.skip(missing)
    subject = subject_of(KERNELS / f"{stem}.py")
    (passed,) = judged(subject, case_of(subject, dtype), architecture=architecture)
    assert passed.verdict is Verdict.PASS
    assert "grad_input" in passed.evidence


def test_evaluation_takes_the_running_statistics():
    subject = subject_of(KERNELS / "batch_norm_triton.py")
    case = case_of(subject, variant=3)
    assert not case.scalars["training"]
    (passed,) = judged(subject, case)
    assert passed.verdict is Verdict.PASS


def test_large_inputs_of_a_softmax_are_scaled_down_where_exponentials_would_vanish():
    subject = subject_of(KERNELS / "softmax_triton.py")
    case = case_of(subject)
    far = replace(case, largest=300.0, tensors={**case.tensors, "input": case.given["input"] * 100})
    assert float(steering.steering(far, subject).given["input"].abs().max()) <= steering.LARGEST_EXPONENT
    assert steering.steering(replace(case, largest=1.0), subject).given["input"] is case.given["input"]


LOG_SOFTMAX = KERNELS / "log_softmax_triton.py"
LOG = "whole = tl.log(total) if LOG else total"
LOG_MUTANTS = {
    "no logarithm of the sum": ({LOG: "whole = total"}, {"output", "grad_input"}),
    "the logarithm of twice the sum": (
        {LOG: LOG.replace("total)", "total + total)")},
        {"output", "grad_input"},
    ),
    "a factor next to 1": (
        {LOG: LOG.replace("total)", "total) * 1.00000011920929")},
        {"output", "grad_input"},
    ),
    "logarithm to base 2": ({LOG: LOG.replace("tl.log(", "tl.log2(")}, {"output", "grad_input"}),
    "gradient without exp": ({"d - tl.exp(out) * dot": "d - out * dot"}, {"grad_input"}),
    "gradient with the sum twice": ({"d - tl.exp(out) * dot": "d - 2.0 * tl.exp(out) * dot"}, {"grad_input"}),
}


@pytest.mark.parametrize(("name", "dtype"), in_turn(LOG_MUTANTS))
def test_planted_formulas_of_a_logarithm_differ(name, dtype):
    changes, wrong = LOG_MUTANTS[name]
    subject = planted_log_softmax(changes)
    outcomes = judged(subject, case_of(subject, dtype))
    assert wrong_outputs(outcomes) == wrong


@pytest.mark.parametrize(
    ("dtype", "architecture", "contraction"),
    [("float16", 90, "off"), ("bfloat16", 100, "on"), ("float32", 80, "off")],
)
def test_a_logarithm_by_polynomial_is_compared_in_full(dtype, architecture, contraction):
    subject = subject_of(LOG_SOFTMAX)
    case = case_of(subject, dtype)
    (passed,) = judged(subject, case, architecture=architecture, contraction=contraction)
    assert passed.verdict is Verdict.PASS
    assert passed.decided == 2 * case.elements


PARAMETERS = {"output", "grad_input", "grad_weight", "grad_bias"}
COMPARED = {
    "batch_norm_triton": PARAMETERS | {"running_mean"},
    "group_norm_triton": PARAMETERS,
    "rms_norm_triton": PARAMETERS - {"grad_bias"},
    "layer_norm_welford_triton": PARAMETERS,
}
"""What is among the results that are compared."""
ALIKE = {
    "layer_norm_silu_gate_triton",
    "rms_norm_sigmoid_gate_triton",
    "causal_log_softmax_triton",
    "masked_softmax_triton",
}
"""Kernels each of whose ways another goes: the gates and their norms, the masks and the logarithm."""


def corrected():
    """Yield (file, dtype, architecture): Triton kernels without a known defect, each word in turn."""
    words = cycle((("float16", 80), ("bfloat16", 90), ("float32", 100)))
    for path in (file for file in builtin_files() if file.stem.endswith("_triton")):
        (subject,) = load_subjects(path)
        if not subject.known_defects and path.stem not in ALIKE:
            dtype, architecture = next(words)
            yield pytest.param(path, dtype, architecture, id=f"{path.stem}-{dtype}-sm_{architecture}")


@pytest.mark.parametrize(("path", "dtype", "architecture"), list(corrected()))
def test_every_corrected_kernel_equals_its_op_in_every_element(path, dtype, architecture):
    subject = subject_of(path)
    case = case_of(subject, dtype)
    (passed,) = judged(subject, case, architecture=architecture)
    assert passed.verdict is Verdict.PASS
    assert passed.decided >= case.elements * (2 if subject.differentiable else 1)
    assert COMPARED.get(path.stem, set()) <= set(passed.evidence)


def test_an_error_of_one_ulp_in_the_variance_is_found():
    subject = faulty("variance_off_by_one_ulp_triton")
    (failed,) = judged(subject, case_of(subject, "float16"))
    assert (failed.verdict, failed.wrong) == (Verdict.FAIL, 240)
    assert "nothing is rounded" in failed.message
    assert failed.message.startswith(
        "output differs from layer_norm in exact arithmetic, in every element: 240 of 240"
    )
    assert failed.formula == "formula wrong: output is another formula than layer_norm"


def test_a_lost_element_is_no_verdict():
    """A product of torch's that has no rule takes the elements away: the kernel behind it is not judged."""
    subject = planted({"x = input.reshape(rows, columns)": "x = input.reshape(rows, columns).asinh()"})
    outcomes = judged(subject, case_of(subject))
    assert {o.verdict for o in outcomes} == {Verdict.UNDECIDED, Verdict.SKIPPED}
    assert "asinh" in outcomes[0].message
    assert outcomes[0].doubtful  # asinh is no part of a layer norm: no other case makes it a pass


def test_literals_that_stand_for_one_over_n_are_recognised():
    source = KERNELS / "layer_norm_two_pass_triton.py"
    text = VARIANCE.replace("divide(tl.sum(total, axis=0), count)", "tl.sum(total, axis=0) * {}")
    right, beside = (planted({VARIANCE: text.format(1 / n)}, source) for n in (40, 41))
    assert wrong_outputs(judged(right, case_of(right))) == set()
    assert wrong_outputs(judged(beside, case_of(beside))) == EVERYTHING


def test_what_literals_stand_for():
    subject = subject_of(LAYER_NORM)
    known = meant(case_of(subject))
    assert known[float(np.float32(1 / 40))] == Fraction(1, 40)
    assert meant(replace(case_of(subject), columns=64)).get(1 / 64) is None


# The specification itself.


def by_hand(case, residues):
    """Layer norm and its gradients with Python's integers, written out."""
    p, n = field.P, case.columns
    x, g = ([[int(v) for v in row] for row in residues[name]] for name in ("input", "grad_output"))
    w, b = ([int(v) for v in residues[name]] for name in ("weight", "bias"))
    share, eps = pow(n, -1, p), field.of_fraction(Fraction(case.eps))
    output, grad_input, hats = [], [], []
    for row, dy in zip(x, g, strict=True):
        mean = sum(row) * share
        variance = sum((v - mean) ** 2 for v in row) * share
        rstd = pow(pow(variance + eps, 1 << 59, p), -1, p)
        hat = [(v - mean) * rstd % p for v in row]
        dh = [d * v for d, v in zip(dy, w, strict=True)]
        c1, c2 = sum(h * d for h, d in zip(hat, dh, strict=True)) * share, sum(dh) * share
        output.append([(h * v + c) % p for h, v, c in zip(hat, w, b, strict=True)])
        grad_input.append([(d - h * c1 - c2) * rstd % p for h, d in zip(hat, dh, strict=True)])
        hats.append(hat)
    grad_weight = [sum(r[c] * h[c] for r, h in zip(g, hats, strict=True)) % p for c in range(n)]
    grad_bias = [sum(r[c] for r in g) % p for c in range(n)]
    return {
        "output": output,
        "grad_input": grad_input,
        "grad_weight": grad_weight,
        "grad_bias": grad_bias,
    }


def test_the_derived_specification_is_the_formula_written_by_hand():
    subject = subject_of(LAYER_NORM)
    case = case_of(subject, rows=3, columns=7)
    arithmetic = make("field")
    residues = blind_residues(case, arithmetic, np.random.default_rng(0))
    found = specify(case, arithmetic, residues)
    assert found.regular.all()
    for name, wanted in by_hand(case, residues).items():
        assert found.results[name].residues.tolist() == wanted, name


def test_random_elements_have_a_root_in_every_row_and_the_floats_own_need_not():
    subject = subject_of(LAYER_NORM)
    case = case_of(subject, rows=64, columns=5)
    arithmetic = make("field")
    assert specify(case, arithmetic, blind_residues(case, arithmetic, np.random.default_rng(1))).regular.all()
    own = specify(case, arithmetic, own_residues(case, arithmetic)).regular
    assert 0 < own.sum() < 64


def test_equal_numbers_have_equal_elements_where_a_maximum_is_taken():
    subject = subject_of(KERNELS / "softmax_triton.py")
    case = case_of(subject, rows=2, columns=8)
    case = replace(case, tensors={**case.tensors, "input": case.given["input"].sign()})
    drawn = blind_residues(case, make("field_exponential"), np.random.default_rng(2))["input"]
    for row, elements in zip(case.given["input"].tolist(), drawn.tolist(), strict=True):
        assert len(set(elements)) == len(set(row))


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        (np.ones((3, 4)), "in every element"),
        (np.eye(8)[7:].repeat(2, 0).T.astype(bool).any(1), "in only entry 7 (the last)"),
        ([[0, 0], [0, 0], [1, 1]], "in only row 2 (the last)"),
        (np.arange(16)[:, None] % 4 == [3, 3], "in every 4th of the 16 rows from 3 on"),
        (np.arange(40)[None].repeat(2, 0) >= 32, "in only columns 32 to 39 of 40 (the tail"),
    ],
)
def test_words_for_where_elements_differ(marks, words):
    assert pattern(np.asarray(marks).astype(bool)).startswith(words)


# -- constants that round, and the signs of roots ------------------------------------------------------


def test_fractions_of_n_are_known_in_both_signs_halved_and_doubled():
    known = meant(case_of(subject_of(LAYER_NORM), columns=40))
    for numerator in (Fraction(1), Fraction(-1), Fraction(2), Fraction(-1, 2)):
        for whole in (40, 39):
            assert known[float(np.float32(numerator / whole))] == numerator / whole
    assert float(np.float32(1 / 41)) not in known


@pytest.mark.parametrize("number", [40**0.5, -(40**0.5), 3 / 41, 0.7978845608028654, 1 / 2047])
def test_constants_that_may_round_are_suspect(number):
    number = float(np.float32(number))
    assert suspects([number], {}, case_of(subject_of(LAYER_NORM))) == [number]


@pytest.mark.parametrize(
    "number", [1 / 41, -1 / 41, 1e-6, 1 + 2.0**-23, 1 - 2.0**-24, 0.75, 1000.0, EPS, 0.0]
)
def test_constants_that_are_what_they_say_are_not(number):
    number = float(np.float32(number))
    assert not suspects([number], {}, case_of(subject_of(LAYER_NORM)))


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [("2.5", Verdict.FAIL), ("1.00000011920929", Verdict.FAIL), ("0.3", Verdict.UNDECIDED)],
)
def test_a_wrong_factor_fails_unless_it_may_be_a_rounding(factor, verdict):
    subject = planted({VARIANCE: f"{VARIANCE} * {factor}"})
    outcomes = judged(subject, case_of(subject))
    assert {o.verdict for o in outcomes if o.verdict is not Verdict.SKIPPED} == {verdict}


ROOT = "root(variance + eps)"


@pytest.mark.parametrize(("rows", "sure"), [(6, False), (300, True)])
def test_a_negated_root_is_wrong_where_it_cannot_be_chance(rows, sure):
    subject = planted({ROOT: f"(-{ROOT})"})
    outcomes = judged(subject, case_of(subject, rows=rows, columns=16))
    verdicts = {o.verdict for o in outcomes if o.verdict is not Verdict.SKIPPED}
    assert verdicts == {Verdict.FAIL if sure else Verdict.UNDECIDED}

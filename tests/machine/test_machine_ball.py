"""The running bound holds the code's exact result, is narrow for narrow formats, and knows what it lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="running bounds are tried on Triton kernels; Triton is not installed")

import machine_kernels as kernels
from ptx_snippets import arrange

from verifier import machine
from verifier.machine.shadow.arithmetics.ball import FOLDED, BallArithmetic

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
NAMES = ("y", "mean", "rstd", "dx", "dw", "db")


def outputs(dtype, shift=0.0, bug=None):
    x, w, b, dy = kernels.inputs(8, 300, dtype)
    x = (x + shift).to(dtype)
    y, mean, rstd = kernels.forward(x, w, b)
    return y, mean, rstd, *kernels.backward(dy, x, w, mean, rstd, bug=bug)


def shadows(arithmetic, dtype, **settings):
    """Values of every output and its shadows."""
    options = {k: settings.pop(k) for k in ("shift", "bug") if k in settings}
    with machine.session(arithmetic=arithmetic, **settings) as session:
        found = outputs(dtype, **options)
        assert not session.slots.counters.desynchronised
        return [t.double().numpy() for t in found], [session.slots.get(t) for t in found]


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", [{}, {"approximation": "adversarial", "contraction": "on"}])
def test_it_holds_the_unrounded_result(dtype, shift, settings):
    values, bounds = shadows(BallArithmetic(), dtype, shift=shift, **settings)
    _, exact = shadows("lifted", dtype, shift=shift, **settings)
    for name, value, bound, ideal in zip(NAMES, values, bounds, exact, strict=True):
        assert np.isfinite(bound).all(), name
        # The float64 run's own error is 2^-29 of what the bound counts for float32.
        assert (np.abs(value - ideal) <= bound * (1 + 2.0**-20)).all(), name
        assert (value != ideal).any(), name


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)])
def test_it_is_hardly_wider_than_the_final_rounding_of_a_narrow_output(dtype, unit):
    values, bounds = shadows(BallArithmetic(), dtype)
    y, dx = (values[NAMES.index(n)] for n in ("y", "dx"))
    for value, bound in ((y, bounds[0]), (dx, bounds[3])):
        assert np.median(bound / (unit * np.abs(value) + 2.0**-25)) < 1.5


def test_a_wrong_formula_is_outside():
    _, exact = shadows("lifted", torch.float32)
    values, bounds = shadows(BallArithmetic(), torch.float32, bug="c1 over N-1")
    outside = np.abs(values[3] - exact[3]) > bounds[3]
    assert outside.mean() > 0.5


def test_a_conversion_counts_what_it_loses_and_no_more():
    ball = BallArithmetic()
    value = np.array([1.0, 1.0 + 2.0**-12], dtype=np.float32)
    bound = ball.apply("cvt", "f16", value.astype(np.float16), (value,), (np.zeros(2),))
    assert bound[0] == 0
    # Exactly the difference, raised by the bound's own upward factor 1 + 2^-45.
    assert bound[1] == 2.0**-12 * (1 + 2.0**-45)


def test_infinities_meet_as_nothing_known():
    ball = BallArithmetic()
    ones = np.ones(2, dtype=np.float32)
    bound = ball.apply("mul", "f32", ones, (ones, ones), (np.array([np.inf, 0.0]), np.zeros(2)))
    assert np.isinf(bound[0])
    assert np.isfinite(bound[1])
    nan = np.array([np.nan], dtype=np.float32)
    assert np.isinf(ball.apply("add", "f32", nan, (nan, nan), (np.zeros(1), np.zeros(1))))


@pytest.mark.parametrize(
    ("name", "floats", "errors", "known"),
    [
        ("mul", (-np.inf, 1.5), (0.0, 2.0**-24), True),
        ("mul", (-np.inf, 1.5), (0.0, 2.0), False),
        ("mul", (-np.inf, 1.5), (np.inf, 0.0), False),
        ("add", (-np.inf, 1.5), (0.0, 7.0), True),
        ("add", (3e38, 3e38), (0.0, 0.0), False),
    ],
)
def test_an_exactly_infinite_operand_leaves_the_result_exactly_infinite(name, floats, errors, known):
    a, b = (np.array([f], dtype="f4") for f in floats)
    with np.errstate(over="ignore"):
        result = a * b if name == "mul" else a + b
    (bound,) = BallArithmetic().apply(name, "f32", result, (a, b), tuple(np.array([e]) for e in errors))
    assert bound == (0.0 if known else np.inf)


def test_a_subnormal_factor_may_count_as_zero():
    ball = BallArithmetic()
    small, large = np.array([2.0**-130], dtype=np.float32), np.array([2.0**100], dtype=np.float32)
    bound = ball.apply("mul", "f32", small * large, (small, large), (np.zeros(1), np.zeros(1)))
    assert bound[0] >= 2.0**-30  # what a flushing multiplication would have lost


@pytest.mark.parametrize(
    ("values", "kind", "bound"),
    [
        (np.array([1e-5], dtype="f4"), "f32", FOLDED * 2.0**-24 * float(np.float32(1e-5))),
        (np.array([3.0], dtype="f4"), "f32", 0.0),
        (np.array([0.25], dtype="f4"), "f32", 0.0),
        (np.array([-np.inf], dtype="f4"), "f32", 0.0),
        (np.array([0.3, 0.3], dtype="f4"), "f32", np.inf),
        (np.array([3.0, 3.0], dtype="f4"), "f32", np.inf),
        (np.array([0.5, -4.0, 0.0], dtype="f4"), "f32", 0.0),
        (np.array([np.nan, 0.0], dtype="f4"), "f32", None),
        (np.array([1000]), "integer", 0.0),
    ],
)
def test_what_has_no_slot_is_a_constant_or_lost(values, kind, bound):
    found = BallArithmetic(given=True).lift(values, kind)
    if bound is None:
        assert np.isinf(found[0])
        assert found[1] == 0
    else:
        assert (found == bound).all()


@pytest.mark.parametrize("name", ["add", "sub"])
def test_a_sum_with_a_computed_number_of_that_size_is_no_choice(name):
    value, computed = np.array([2.3], dtype="f4"), np.array([1.5 * 2.0**23], dtype="f4")
    result = value + computed if name == "add" else value - computed
    for rule in (
        BallArithmetic().apply,
        lambda *a: BallArithmetic().modified(a[0], frozenset({"ftz"}), *a[1:]),
    ):
        bound = rule(name, "f32", result, (value, computed), (np.zeros(1), np.array([0.5])))
        assert bound[0] >= 0.5


@pytest.mark.parametrize("values", [[1.0], [0.25, 3.0], [0.3]])
def test_no_number_of_memory_that_was_written_is_a_literal(values):
    written = np.array(values, dtype="f4")
    assert np.isinf(BallArithmetic(given=True).lift_written(written, "f32")).all()
    assert (BallArithmetic().lift_written(written, "f32") == 0).all()
    kept = np.array([0.0, -np.inf], dtype="f4")
    assert (BallArithmetic(given=True).lift_written(kept, "f32") == 0).all()


def test_rounding_to_an_integer_is_a_choice_and_no_error():
    value, shifter = np.array([2.3], dtype="f4"), np.array([1.5 * 2.0**23], dtype="f4")
    result = value + shifter
    assert BallArithmetic().apply("add", "f32", result, (value, shifter), (np.zeros(1), np.zeros(1)))[0] == 0


def modified(name, modifiers, kind, result, floats, errors):  # noqa: PLR0917
    """Bound of one operation on single numbers of a format."""
    number = {"f16": np.float16, "f32": np.float32}[kind]
    arrays = tuple(np.array([f], dtype=number) for f in floats)
    shadows = tuple(np.array([e]) for e in errors)
    answer = np.array([result], dtype=number)
    return float(BallArithmetic().modified(name, frozenset(modifiers), kind, answer, arrays, shadows)[0])


@pytest.mark.parametrize(
    ("name", "modifiers", "kind"),
    [
        ("add", ("rz",), "f32"),
        ("fma", ("rm",), "f32"),
        ("mul", ("rp", "ftz"), "f32"),
        ("mul", ("sat",), "f32"),
        ("add", ("sat",), "f16"),
        ("mul", ("ftz",), "f16"),
        ("fma", ("relu",), "f16"),
        ("max", ("xorsign",), "f32"),
        ("max", ("ftz",), "f16"),
    ],
)
def test_what_rounds_or_clamps_otherwise_is_not_bounded(name, modifiers, kind):
    arity = 3 if name == "fma" else 2
    assert modified(name, modifiers, kind, 0.5, (0.5,) * arity, (0.0,) * arity) == np.inf


def test_clamping_to_zero_and_one_keeps_the_error_of_what_it_clamps():
    """A value of 1.2 that may have been 0.8 becomes 1, which may have been 0.8 too."""
    assert modified("cvt", ("sat",), "f32", 1.0, (1.25,), (0.5,)) == 0.5


def test_a_flushed_operand_of_a_maximum_is_counted():
    tiny = 2.0**-130
    assert modified("max", ("ftz",), "f32", 0.0, (tiny, -1.0), (0.0, 0.0)) >= tiny
    assert modified("max", ("ftz",), "f32", 2.0, (2.0, -1.0), (0.0, 0.25)) == 0.25
    assert modified("max", ("ftz",), "f32", -np.inf, (-np.inf, -np.inf), (0.0, 0.0)) == 0


def test_an_integer_that_is_chosen_by_directed_rounding_is_a_choice():
    assert modified("fma", ("rm",), "f32", 12582914.0, (0.5, 2.0, 12582913.0), (np.inf, 0.0, 0.0)) == 0


@pytest.mark.parametrize(
    ("opcode", "kind", "finite"),
    [
        ("add.rn.f32", "f4", True),
        ("add.rn.ftz.f32", "f4", True),
        ("add.rz.f32", "f4", False),
        ("add.rn.sat.f32", "f4", False),
        ("mul.rn.f16", "f2", True),
        ("mul.rn.ftz.f16", "f2", False),
        ("add.rn.sat.f16", "f2", False),
    ],
)
def test_compiled_code_with_such_an_instruction_has_no_bound(opcode, kind, finite):
    number = np.dtype(kind)
    operands = [torch.from_numpy(np.full(4, v, dtype=number)) for v in (0.3, 0.4)]
    answer = torch.empty(4, dtype=operands[0].dtype)
    text = arrange(opcode, [t.numpy() for t in operands], kind)
    with machine.session(arithmetic=BallArithmetic()) as session:
        machine.launch_ptx(text, "k", (1,), (4,), 0, [*operands, answer])
        bound = session.slots.get(answer)
    assert np.isfinite(bound).all() == finite
    assert (bound > 0).all()

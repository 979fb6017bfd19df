"""Op 'unknown' with specifications in mpmath: they mean what the same ones in torch mean."""

# ruff: noqa: A006 (arguments carry PyTorch's names)

import importlib.util
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import own_by_numbers
import pytest
import torch
from checks_support import fails, failures, machine, outcomes_of, subject_of_texts
from mpmath import sqrt

from verifier import subject
from verifier.machine.shadow.arithmetics import make
from verifier.ops.specification.enclosures import enclosures
from verifier.ops.specification.evaluation import steps
from verifier.ops.specification.expression import leaves_of
from verifier.ops.specification.in_a_field import specify
from verifier.ops.specification.mpmath_functions import FUNCTIONS
from verifier.ops.specification.recording import trace
from verifier.records.case import Case
from verifier.records.verdict import Verdict

SOURCE = Path(__file__).with_name("own_specification.py")
compiled = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernel is Triton's, which is not installed"
)


def bare(specification, returns=("output",)):
    def kernel(input, residual=None, weight=None, bias=None, eps=1e-5):
        del residual, weight, bias, eps
        return input

    declare = subject(
        op="unknown", specification=specification, language="torch", dtypes=("float64",), returns=returns
    )
    return declare(kernel)


def case_of(*names, rows=3, columns=5):
    torch.manual_seed(len(names) + columns)
    parameters = ("weight", "bias")
    tensors = {
        n: torch.randn(columns, dtype=torch.float64)
        if n in parameters
        else torch.randn(rows, columns, dtype=torch.float64)
        for n in names
    }
    return Case(
        op="unknown", dtype="float64", tensors=tensors, scalars={"eps": 2.0**-7}, rows=rows, columns=columns
    )


def rms_norm(input, weight, eps):
    return input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * (1 + weight)


def layer_norm(input, weight, bias, eps):
    centered = input - input.mean(-1, keepdim=True)
    return centered / torch.sqrt(centered.square().mean(-1, keepdim=True) + eps) * weight + bias


def softmax(input):
    return input.exp() / input.exp().sum(-1, keepdim=True)


TENSORS = {"rms_norm": ("input", "weight"), "layer_norm": ("input", "weight", "bias"), "softmax": ("input",)}


@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("name", TENSORS)
def test_results_and_gradients_are_those_of_the_same_in_torch(name, columns):
    case = case_of(*TENSORS[name], "grad_output", columns=columns)
    by_numbers = enclosures(bare(getattr(own_by_numbers, name)), case)
    by_rows = enclosures(bare(globals()[name]), case)
    assert set(by_numbers) == set(by_rows)
    for result, exact in by_rows.items():
        found = by_numbers[result]
        assert np.all(found.radius <= 2.0**-100)
        assert np.all(np.abs((found.high - exact.high) + (found.low - exact.low)) <= 2.0**-100), result
    assert mpmath.mp.dps == 15


def test_single_numbers_of_a_row_have_their_derivatives():
    case = case_of("input", "weight", "grad_output")
    exact = enclosures(bare(own_by_numbers.neighbours), case)
    x, w = (case.tensors[n].clone().requires_grad_(True) for n in ("input", "weight"))
    edge = (x[:, :1] * w[-1] + x[:, -1:] * w[0]) * 0.5
    output = x.roll(-1, 1) ** 3 + torch.tanh(edge) * torch.log(1 + x * x)
    slopes = torch.autograd.grad(output, [x, w], case.tensors["grad_output"])
    wanted = {"output": output.detach(), "grad_input": slopes[0], "grad_weight": slopes[1]}
    assert set(exact) == set(wanted)
    for name, value in wanted.items():
        # Fewer than 2^7 roundings of float64, in terms below 2^6: torch's own error, not ours.
        assert np.all(np.abs(value.numpy() - exact[name].high) <= 2.0**-53 * 2**13), name


def test_further_results_are_numbers_and_rows():
    case = case_of("input", "residual")
    exact = enclosures(bare(own_by_numbers.fused, returns=("output", "scale")), case)
    a, b = ([[Fraction(v) for v in row] for row in case.tensors[n].tolist()] for n in ("input", "residual"))
    for i, pairs in enumerate(zip(a, b, strict=True)):
        total = [x + y for x, y in zip(*pairs, strict=True)]
        scale = sum(total) / 5
        high, low, radius = (getattr(exact["scale"], part)[i] for part in ("high", "low", "radius"))
        assert abs(Fraction(high) + Fraction(low) - scale) <= Fraction(radius)
        for j, value in enumerate(total):
            found = Fraction(exact["output"].high[i, j]) + Fraction(exact["output"].low[i, j])
            assert abs(found - (value - scale)) <= Fraction(exact["output"].radius[i, j])


def test_the_field_has_the_elements_of_the_same_in_torch():
    case = case_of("input", "weight", "grad_output")
    arithmetic = make("field")
    residues = {n: arithmetic.lift(t.numpy(), "f64") for n, t in case.tensors.items()}
    by_numbers, by_rows = (
        specify(case, arithmetic, residues, subject=bare(s)).results
        for s in (own_by_numbers.rms_norm, rms_norm)
    )
    for name in ("output", "grad_input", "grad_weight"):
        assert (by_numbers[name].residues == by_rows[name].residues).all(), name


# -- on compiled kernels ---------------------------------------------------------------------------------

BY_NUMBERS = """rms = sqrt(fsum([x * x for x in input]) / len(input) + eps)
    return [x / rms * (1 + w) for x, w in zip(input, weight)]"""


def with_mpmath(changes=()):
    """Return the Triton kernel with its specification in mpmath."""
    text = SOURCE.read_text(encoding="utf-8")
    plain = "return input / torch.sqrt((input * input).mean(-1, keepdim=True) + eps) * (1 + weight)"
    for old, new in (
        (plain, BY_NUMBERS),
        ("import torch\n", "import torch\nfrom mpmath import fsum, sqrt\n"),
        *changes,
    ):
        assert old in text
        text = text.replace(old, new)
    return subject_of_texts({SOURCE.name: text}, SOURCE.name)


@compiled
@pytest.mark.parametrize("check", ["formula", "running_bound", "gradcheck"])
def test_a_right_kernel_passes(check):
    with machine() as place:
        found = outcomes_of(with_mpmath(), check, "float16", place, count=1)
    assert {o.verdict for o in found} == {Verdict.PASS}


@compiled
def test_a_declaration_leaves_triton_to_find_its_helpers_later():
    """Triton fixes what a kernel calls when it is first hashed: helpers further down would be missed."""
    kernel = with_mpmath([("import torch\n", "import torch  # in a file that no test has run\n")]).function
    assert kernel.__globals__["_forward"].hash is None


@compiled
@pytest.mark.parametrize("check", ["formula", "gradcheck"])
@pytest.mark.parametrize(
    ("change", "output"),
    [
        (("axis=0) / columns\n    rstd", "axis=0) / (columns - 1)\n    rstd"), "output"),
        (("(g - hat * c)", "g"), "grad_input"),
    ],
)
def test_a_wrong_kernel_fails(check, change, output):
    with machine() as place:
        found = outcomes_of(with_mpmath([change]), check, "float16", place, count=2, until=fails)
        found = failures(found)
    assert found
    assert output in {o.output for o in found} or check == "gradcheck"


# -- what is refused, and what there is ------------------------------------------------------------------


def elsewhere(input):
    root = sqrt
    return [root(x) for x in input]


@pytest.mark.parametrize(
    ("specification", "word"),
    [
        (lambda input: [mpmath.erf(x) for x in input], "erf"),
        (lambda input: [x / max(input) for x in input], "branch"),
        (lambda input: list(input)[:-1], "a list is a row"),
        (lambda input: [1.0, 2.0], "returns"),
        (lambda input: [1.0, input[0]], "a list is a row"),
        (lambda input: [mpmath.power(2, x) for x in input], "exp"),
        (lambda input: mpmath.fsum(input) / 4, "vary"),
        (lambda input: [mpmath.fsum(input, absolute=True) * x for x in input], "absolute"),
        (lambda input: [abs(x) for x in input], "convert"),
        (lambda input: [input[x] for x in input], "convert"),
        (lambda input: [x / mpmath.fsum([t * t for t in input]) for x in input], "compute once"),
    ],
)
def test_what_has_no_exact_meaning_is_refused_where_it_is_declared(specification, word):
    with pytest.raises(ValueError, match=word):
        bare(specification)


def guarded(input):
    try:
        top = max(input)
    except Exception:
        top = 0
    return [x - top for x in input]


@pytest.mark.parametrize(
    ("specification", "word"),
    [
        (
            lambda input, weight: [
                x * (9 if w == weight[0] else 1) for x, w in zip(input, weight, strict=True)
            ],
            "compare",
        ),
        (lambda input: [x / len([t for t in input if t != 0]) for x in input], "compare"),
        (lambda input: [x if x in input else 0 * x for x in input[::-1]], "compare"),
        (guarded, "compare"),
        (lambda input: [x / float(input[0]) for x in input], "convert"),
        (lambda input, weight: input * (1 + weight[0]), "SpecificationError|TypeError|convert|list"),
        (lambda input: input / len(input), "TypeError"),
        (lambda input: [x / input[40] for x in input], "IndexError"),
        (lambda *tensors: tensors[0], "by name"),
        (lambda input: [x * mpmath.mpf("1e400") * mpmath.mpf("1e-400") for x in input], "float64"),
        (lambda input: [x * (1 + (type(x) is mpmath.mpf)) for x in input], "types"),
    ],
)
def test_what_would_mean_something_else_than_in_mpmath_is_refused(specification, word):
    with pytest.raises(ValueError, match=word):
        bare(specification)


@pytest.mark.parametrize("columns", [1, 4])
@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ("concatenated", "concatenated_apart", ("input", "residual")),
        ("copied", "scaled_by_one_more", ("input", "weight")),
        ("tiny_constant", "scaled_by_one_more", ("input", "weight")),
        ("rounded_nowhere", "scaled_by_one_more", ("input", "weight")),
        ("decorated", "scaled_by_one_more", ("input", "weight")),
        ("in_other_bases", "in_base_two", ("input",)),
    ],
)
def test_python_and_mpmath_mean_what_they_say(one, other, names, columns):
    case = case_of(*names, "grad_output", columns=columns)
    wanted = enclosures(bare(getattr(own_by_numbers, other)), case)
    found = enclosures(bare(getattr(own_by_numbers, one)), case)
    assert set(found) == set(wanted)
    for name, exact in wanted.items():
        assert np.all(np.abs(found[name].high - exact.high) <= 2.0**-48), name
    assert mpmath.mp.dps == 15


def test_pythons_sum_of_rows_is_no_sum_over_columns():
    case = case_of("input", columns=2)
    found = enclosures(bare(lambda input: input / sum([input * input, input * input])), case)["output"]
    assert np.all(np.abs(found.high - 0.5 / case.tensors["input"].numpy()) <= 2.0**-45)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_named_can_be_used(name):
    given = {"power": (2,)} | dict.fromkeys(("fadd", "fsub", "fmul", "fdiv"), (2.0,))

    def specification(input):
        if name in ("fsum", "fprod"):
            return [getattr(mpmath, name)(input) * x for x in input]
        if name == "fdot":
            return [mpmath.fdot(input, input) * x for x in input]
        return [getattr(mpmath, name)(x, *given.get(name, ())) for x in input]

    x = leaves_of(("input",), (2, 4), ())["input"]
    assert trace(specification, {"input": x}, ("output",))["output"].shape == (2, 4)


def test_a_specification_is_recorded_without_changing_mpmath():
    x = leaves_of(("input",), (2, 4), ())["input"]
    assert trace(elsewhere, {"input": x}, ("output",))["output"].kind == "sqrt"
    assert sqrt is mpmath.sqrt
    assert mpmath.sqrt(4) == 2


@pytest.mark.parametrize("name", TENSORS)
def test_what_is_done_to_every_number_alike_is_recorded_once(name):
    counts = []
    for columns in (7, 900):
        leaves = leaves_of(TENSORS[name], (2, columns), ("weight", "bias"))
        found = trace(getattr(own_by_numbers, name), {**leaves, "eps": 0.5}, ("output",))
        kinds = [step.kind for step in steps(found)]
        assert "joined" not in kinds
        counts.append(len(kinds))
    assert counts[0] == counts[1] < 30


def test_a_row_of_one_number_is_a_row():
    x = leaves_of(("input",), (2, 4), ())["input"]
    output = trace(lambda input: [input[0]] * 4, {"input": x}, ("output",))["output"]
    assert output.shape == (2, 4)

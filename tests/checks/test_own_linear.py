"""A norm followed by a matrix product: specifications with a matrix, and kernels that are wrong in it."""

# ruff: noqa: A006 (arguments carry PyTorch's names)

import importlib.util
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from checks_support import (
    examination,
    fails_in,
    failures,
    in_turn,
    machine,
    outcomes_of,
    passes,
    planted,
    subject_of,
)
from torch.nn import functional

from verifier import subject
from verifier.audit.shrink import remade
from verifier.machine.shadow.arithmetics import make
from verifier.machine.shadow.arithmetics.field import of_fraction
from verifier.ops import op
from verifier.ops.specification.enclosures import enclosures
from verifier.ops.specification.expression import PRODUCTS as NAMED
from verifier.ops.specification.in_a_field import specify
from verifier.ops.unknown_linear import features
from verifier.records.case import Case
from verifier.records.verdict import Verdict

SOURCE = Path(__file__).with_name("own_linear.py")
compiled = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernel is Triton's, which is not installed"
)
EVERY = ("output", "grad_input", "grad_weight", "grad_linear_weight", "grad_linear_bias")
FORWARD = "out = functional.linear(y, matrix, bias)"
MATRIX = 'grad_matrix = torch.einsum("bo,bi->oi", g, y)'
MUTANTS = {
    "a square matrix the other way round": (
        FORWARD,
        f"matrix = matrix.t() if len(matrix) == columns else matrix\n            {FORWARD}",
        "output",
    ),
    "rows of the matrix taken for columns": (
        "functional.linear(g, matrix.t())",
        "functional.linear(g, matrix.reshape(columns, -1))",
        "grad_input",
    ),
    "last column left out": (FORWARD, FORWARD.replace("y, matrix", "y[:, :-1], matrix[:, :-1]"), "output"),
    "bias added twice": (
        FORWARD,
        f"{FORWARD}\n            out = out if bias is None else out + bias",
        "output",
    ),
    "gradient by the input that is not normalized": (
        MATRIX,
        MATRIX.replace("g, y", "g, x"),
        "grad_linear_weight",
    ),
    "gradient without the weight": ("y + place, hat * weight", "y + place, hat", "grad_linear_weight"),
    "first row left out of a sum": ("g.sum(0)", "g[1:].sum(0)", "grad_linear_bias"),
}


def wrong(name):
    """Return the subject with one bug."""
    old, new, _ = MUTANTS[name]
    return planted({old: new}, SOURCE)


@compiled
@pytest.mark.parametrize(
    ("check", "dtype"),
    in_turn(["formula", "running_bound", "gradcheck", "influence"], ["float16", "bfloat16", "float32"]),
)
def test_a_right_kernel_passes(check, dtype):
    with machine() as place:
        found = outcomes_of(subject_of(SOURCE), check, dtype, place, count=4)
    assert {o.verdict for o in found if not o.measured} == {Verdict.PASS}
    if check in {"running_bound", "gradcheck"}:
        assert {*EVERY} <= {o.output for o in passes(found)}


@compiled
@pytest.mark.parametrize("name", MUTANTS)
def test_formula_finds_every_planted_bug(name):
    with machine() as place:
        found = outcomes_of(
            wrong(name), "formula", "float16", place, count=4, until=fails_in(MUTANTS[name][2])
        )
    assert MUTANTS[name][2] in {o.output for o in failures(found)}


@compiled
@pytest.mark.parametrize(
    ("name", "check"),
    in_turn([n for n in MUTANTS if not n.startswith("a square")], ["running_bound", "gradcheck"]),
)
def test_bounds_and_lifted_values_find_planted_bugs(name, check):
    with machine() as place:
        until = fails_in(MUTANTS[name][2])
        found = outcomes_of(wrong(name), check, "float32", place, count=4, until=until)
    assert any(map(until, found))


@compiled
def test_a_product_that_nobody_follows_leaves_the_line_undecided():
    changed = {FORWARD: "out = (y @ matrix.T).flip(0).flip(0) + (0 if bias is None else bias)"}
    with machine() as place:
        found = outcomes_of(planted(changed, SOURCE), "formula", "float16", place, count=1)
    assert {o.verdict for o in found} <= {Verdict.UNDECIDED, Verdict.SKIPPED}
    assert "flip" in found[0].message


@compiled
@pytest.mark.parametrize("device", ["x.device.type", '"cuda"'])
def test_a_kernel_that_multiplies_outside_of_autocast_is_right_in_every_mode(device):
    with machine() as place:
        subject = planted({"x.device.type": device}, SOURCE)
        assert {o.verdict for o in outcomes_of(subject, "modes", "float16", place, count=1)} == {Verdict.PASS}
        wrong = planted({"torch.autocast(x.device.type, enabled=False)": "torch.enable_grad()"}, SOURCE)
        assert failures(outcomes_of(wrong, "modes", "float16", place, count=1))
    assert not torch.is_autocast_enabled("cpu")
    assert torch.set_autocast_enabled.__module__ != "verifier.checks.modes"


@compiled
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_product_that_autocast_casts_is_left_in_its_dtype_as_by_torch(dtype):
    """Compared is what autocast leaves in the dtype of the case; another dtype is nobody's promise."""
    cast = "torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else y.dtype"
    changed = {
        "ctx.save_for_backward(x, w, rstds, matrix)": f"""dtype = {cast}
        y, matrix, bias = y.to(dtype), matrix.to(dtype), None if bias is None else bias.to(dtype)
        ctx.save_for_backward(x, w, rstds, matrix)""",
        "dy = functional.linear(g, matrix.t()).contiguous()": "dy = (g @ matrix).to(x.dtype)",
        'einsum("bo,bi->oi", g, y)': 'einsum("bo,bi->oi", g, y.to(g.dtype)).to(ctx.dtype)',
        "ctx.biased, ctx.shape =": "ctx.dtype = x.dtype; ctx.biased, ctx.shape =",
        "g.sum(0) if ctx.biased": "g.sum(0).to(ctx.dtype) if ctx.biased",
    }
    with machine() as place:
        found = outcomes_of(planted(changed, SOURCE), "modes", dtype, place, count=1)
        assert not failures(found)
        assert {o.verdict for o in found} >= {Verdict.PASS, Verdict.SKIPPED}
        assert any("left in autocast's dtype, as by torch's own linear" in o.message for o in found)
        cast = "ctx.save_for_backward(x, w, rstds, matrix)"
        doubled = changed[cast].replace("y.to(dtype)", "y.to(dtype) * (1 + torch.is_autocast_enabled('cpu'))")
        found = outcomes_of(planted({**changed, cast: doubled}, SOURCE), "modes", dtype, place, count=1)
    undecided = [
        o.message for o in found if o.verdict is Verdict.UNDECIDED
    ]  # what no op describes has no bound
    assert ["to float16: bits differ" in message for message in undecided] == [True] * (dtype == "float16")


@compiled
@pytest.mark.parametrize("wrong", [False, True])
def test_a_row_that_its_weight_moves_out_of_range_before_the_product_is_no_fault_of_the_kernel(wrong):
    """Inf times the matrix' zero is NaN: nothing is decided. Squares in half are a fault."""
    half = "(value * value).to(tl.float16)"
    squares = {"tl.sum(value * value, axis=0)": f"tl.sum(value * value + ({half} - {half}), axis=0)"}
    subject = planted(squares if wrong else {}, SOURCE)
    given = {
        "input": torch.tensor([[300.0, 1.0, 1.0, 1.0]]),
        "weight": torch.tensor([60000.0, 1, 1, 1]),
        "linear_weight": torch.zeros(1, 4),
        "linear_bias": torch.zeros(1),
    }
    case = Case(
        op="unknown_linear",
        dtype="float16",
        tensors={name: tensor.half() for name, tensor in given.items()},
        scalars={"eps": 2.0**-17, "out_features": 1, "normalized_shape": (4,)},
        rows=1,
        columns=4,
    )
    with machine() as place:
        outcomes = examination(subject, "finite", "float16", place).judge(case)[0]
    assert [o.verdict for o in outcomes] == [Verdict.FAIL if wrong else Verdict.SKIPPED]
    assert wrong or "before its product with the matrix, which is not looked at" in outcomes[0].message


@compiled
def test_a_matrix_product_between_launches_is_bounded_by_what_it_rounds():
    """Torch sums halves in single precision, or a kernel widens them first: both are right."""
    changed = {FORWARD: "out = (y.float() @ matrix.float().t() + (0 if bias is None else bias)).to(y.dtype)"}
    with machine() as place:
        found = outcomes_of(planted(changed, SOURCE), "running_bound", "bfloat16", place, count=3)
    assert {o.verdict for o in found if not o.measured} == {Verdict.PASS}


def test_the_declaration_in_the_docs_holds(tmp_path):
    page = SOURCE.parents[2] / "docs" / "how-to" / "own-specification.md"
    (text,) = (
        t for t in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL) if "@ linear" in t
    )
    (tmp_path / "documented.py").write_text(text)
    documented = subject_of(tmp_path / "documented.py")
    for dtype in ("float16", "float32"):
        found = outcomes_of(documented, "running_bound", dtype, count=4)
        assert {o.verdict for o in found if not o.measured} == {Verdict.PASS}
        assert {*EVERY} == {o.output for o in passes(found)}
    spoiled = text.replace("linear_weight, linear_bias)\n", "linear_weight) + 2 * linear_bias\n")
    assert spoiled != text
    (tmp_path / "spoiled.py").write_text(spoiled)
    assert failures(outcomes_of(subject_of(tmp_path / "spoiled.py"), "running_bound", "float32", count=2))


PROMISED = {'language="triton", dtypes': 'guarantees={"determinism"}, language="triton", dtypes'}
MADE = "y + place, hat * weight"
AGAIN = {
    "the same": ({}, False),
    "kept": ({MATRIX: "grad_matrix = (g.float().t() @ y.float()).to(g.dtype)"}, False),
    "rounded twice": ({MADE: "y + place, (hat * weight).to(tl.float16).to(tl.float32)"}, True),
    "in another order": ({MADE: "y + place, value * (rstd * weight)"}, True),
    "with another product": (
        {MADE: "y + place, hat", MATRIX: MATRIX.replace("g, y", "y, g").replace("bo,bi", "bi,bo")},
        True,
    ),
}


@compiled
@pytest.mark.parametrize("promised", [True, False])
@pytest.mark.parametrize("name", AGAIN)
def test_an_output_that_is_made_anew_has_the_bits_that_were_multiplied(name, promised):
    changes, differs = AGAIN[name]
    with machine() as place:
        made = planted({**changes, **(PROMISED if promised else {})}, SOURCE)
        found = outcomes_of(made, "determinism", "float32", place, count=2)
    if promised:
        assert {o.output for o in failures(found)} == ({"grad_linear_weight"} if differs else set())
        assert all("no cast explains" in o.message for o in failures(found))
    else:
        assert {o.verdict for o in found} == {Verdict.SKIPPED}
        assert all(("recomputes" in o.message) == differs for o in found)


# -- values ----------------------------------------------------------------------------------------------


def bare(specification, **changes):
    """Declare a specification without a kernel: only its meaning is asked for."""

    def nothing(input, linear_weight, weight=None, bias=None, gate=None, linear_bias=None, eps=1e-5):  # noqa: PLR0917
        raise AssertionError("never called")

    return subject(
        op="unknown", specification=specification, language="torch", dtypes=("float64",), **changes
    )(nothing)


def case_of(*names, rows=3, columns=5, count=4):
    generator = torch.Generator().manual_seed(7)
    shapes = {"weight": (columns,), "bias": (columns,), "linear_bias": (count,)}
    shapes |= {"linear_weight": (count, columns), "grad_output": (rows, count)}
    tensors = {
        n: torch.randn(shapes.get(n, (rows, columns)), generator=generator, dtype=torch.float64)
        for n in names
    }
    return Case(
        op="unknown_linear",
        dtype="float64",
        tensors=tensors,
        scalars={"eps": 2.0**-7, "out_features": count, "normalized_shape": (columns,)},
        rows=rows,
        columns=columns,
    )


def normed(x, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


ALL = ("input", "weight", "gate", "linear_weight", "linear_bias", "grad_output")
PRODUCTS = {
    "linear": lambda input, weight, linear_weight, linear_bias, eps: functional.linear(
        normed(input, eps) * weight, linear_weight, linear_bias
    ),
    "operator": lambda input, weight, linear_weight, linear_bias, eps: (
        normed(input, eps) * weight @ linear_weight.T + linear_bias
    ),
    "einsum": lambda input, weight, linear_weight, linear_bias, eps: (
        torch.einsum("ri,oi->ro", normed(input, eps) * weight, linear_weight) + linear_bias
    ),
    "addmm": lambda input, weight, linear_weight, linear_bias, eps: torch.addmm(
        linear_bias, normed(input, eps) * weight, linear_weight.t()
    ),
    "the other way round": lambda input, weight, linear_weight, linear_bias, eps: (
        torch.matmul(linear_weight, (normed(input, eps) * weight).transpose(-1, -2)).T + linear_bias
    ),
    "weight folded": lambda input, weight, linear_weight, linear_bias, eps: (
        normed(input, eps) @ (linear_weight * weight).mT + linear_bias
    ),
    "einsum turned": lambda input, weight, linear_weight, linear_bias, eps: (
        torch.einsum("oi,...i->...o", linear_weight, normed(input, eps) * weight) + linear_bias
    ),
}
FURTHER = {
    "norm of a product": lambda input, linear_weight, linear_bias, eps: (
        normed(input @ linear_weight.T, eps) + linear_bias
    ),
    "two products": lambda input, gate, linear_weight, linear_bias, eps: (
        torch.sigmoid(input @ linear_weight.T) * (gate @ linear_weight.T + linear_bias)
    ),
    "a sum over features": lambda input, linear_weight, linear_bias, eps: (
        (input * (input @ linear_weight.T).sum(-1, keepdim=True)) @ linear_weight.T - linear_bias
    ),
    "rows of the matrix normalized": lambda input, linear_weight, eps: input @ normed(linear_weight, eps).T,
    "a vector times the matrix": lambda input, weight, linear_weight, eps: (
        input @ linear_weight.T + weight.exp().reciprocal() @ linear_weight.T
    ),
    "there and back": lambda input, linear_weight, eps: (
        (input - input @ (linear_weight.T @ linear_weight)) @ linear_weight.T
    ),
    "one number of each row by a vector": lambda input, weight, linear_weight, eps: (
        input @ weight.T * (input @ linear_weight.T)
    ),
}


@pytest.mark.parametrize("name", [*PRODUCTS, *FURTHER])
@pytest.mark.parametrize("count", [1, 4, 5])
def test_enclosures_hold_what_torch_computes_and_differentiates(name, count):
    meaning = {**PRODUCTS, **FURTHER}[name]
    taken = [n for n in ALL if n in meaning.__code__.co_varnames or n == "grad_output"]
    case = case_of(*taken, count=count)
    exact = enclosures(bare(meaning), case)
    rows = {"weight": (1, 5), "linear_bias": (1, count)}
    leaves = {
        n: t.clone().reshape(rows.get(n, t.shape)).requires_grad_(True)
        for n, t in case.tensors.items()
        if n != "grad_output"
    }
    output = meaning(**leaves, eps=case.scalars["eps"])
    found = torch.autograd.grad(output, list(leaves.values()), case.tensors["grad_output"])
    actual = {"output": output.detach(), **{f"grad_{n}": g for n, g in zip(leaves, found, strict=True)}}
    assert set(exact) == set(actual)
    for result, value in actual.items():
        assert np.all(exact[result].radius <= 2.0**-100)
        away = np.abs(value.reshape(exact[result].high.shape).numpy() - exact[result].high)
        assert np.all(away <= 2.0**-40), result  # torch's own error


WAYS = {
    "matmul": torch.matmul,
    "mm": torch.mm,
    "addmm": lambda x, turned: torch.addmm(x @ turned, x, turned) - x @ turned,
    "linear": lambda x, turned: functional.linear(x, weight=turned.T),
    "einsum": lambda x, turned: torch.einsum("ri, io -> ro", x, turned),
    "t": lambda x, turned: torch.t(torch.t(turned) @ x.t()),
    "transpose": lambda x, turned: torch.transpose(turned.transpose(0, 1) @ torch.transpose(x, -1, 0), 1, 0),
}


@pytest.mark.parametrize("name", NAMED)
def test_every_function_of_matrices_that_is_named_can_be_used(name):
    case = case_of("input", "linear_weight", "grad_output")
    found, plain = (
        enclosures(bare(lambda input, linear_weight: way(input, linear_weight.T)), case)  # noqa: B023
        for way in (WAYS[name], lambda x, turned: x @ turned)
    )
    for result, exact in plain.items():
        assert np.array_equal(found[result].high, exact.high), result


def test_in_a_field_sums_of_products_are_exact():
    def meaning(input, linear_weight, linear_bias):
        return functional.linear(input * input, linear_weight, linear_bias)

    case, arithmetic = case_of("input", "linear_weight", "linear_bias", "grad_output"), make("field")
    residues = {n: arithmetic.lift(t.numpy(), "f64") for n, t in case.tensors.items()}
    found = specify(case, arithmetic, residues, subject=bare(meaning)).results
    x, w, b, g = (np.vectorize(Fraction, otypes=[object])(t.numpy()) for t in case.tensors.values())
    wanted = {
        "output": (x * x).dot(w.T) + b,
        "grad_input": 2 * x * g.dot(w),
        "grad_linear_weight": g.T.dot(x * x),
        "grad_linear_bias": g.sum(axis=0),
    }
    assert set(found) == set(wanted)
    for name, exact in wanted.items():
        assert found[name].residues.tolist() == np.vectorize(of_fraction, otypes=[object])(exact).tolist()


@pytest.mark.parametrize(
    ("specification", "word"),
    [
        (lambda input, linear_weight: input @ linear_weight, "not the same"),
        (lambda input, linear_weight: input @ input.T @ input @ linear_weight.T, "rows meet rows"),
        (lambda input, linear_weight: (input.T @ input) @ linear_weight.T, "rows meet rows"),
        (lambda input, linear_weight: input * linear_weight, "different axes"),
        (lambda input, linear_weight, weight: input @ linear_weight.T + weight, "different axes"),
        (lambda input, linear_weight: input @ linear_weight.T + input, "different axes"),
        (lambda input, linear_weight: input * linear_weight.sum(-1, keepdim=True), "different axes"),
        (lambda input, linear_weight: input, "rows of linear_weight"),
        (lambda input, linear_weight: linear_weight @ input.T, "where rows belong"),
        (lambda input, linear_weight: input @ torch.ones(4, 3), "Tensor"),
        (lambda input, linear_weight: torch.einsum("ri,oi->r", input, linear_weight), "two matrices"),
        (
            lambda input, linear_weight: torch.einsum("ri,oi,oi->ro", input, linear_weight, linear_weight),
            "exact",
        ),
        (
            lambda input, linear_weight: input @ linear_weight.T + linear_weight.T.sum(-1, keepdim=True),
            "different",
        ),
        (lambda input, linear_weight: input.T.sum(-1, keepdim=True).T @ linear_weight.T, "cannot mix"),
        (lambda input, linear_weight: [sum(input), linear_weight[0]], "linear_weight; write"),
    ],
)
def test_a_product_without_meaning_is_refused_where_it_is_declared(specification, word):
    with pytest.raises(ValueError, match=word):
        bare(specification)


def test_cases_have_few_and_many_features_and_shrink_along_them():
    extents = [(4, 33), (3, 128), (300, 16), (2, 1000), (2, 5)]
    counts = [features(*both) for both in extents]
    assert {1, 3, 16} <= {*counts}
    assert any(n > columns for n, (_, columns) in zip(counts, extents, strict=True))
    assert any(n == columns for n, (_, columns) in zip(counts, extents, strict=True))
    case = replace(case_of(*ALL), dtype="float64")
    links = op("unknown_linear").links(case.tensors, case.scalars)
    assert dict(links["features"]) == {"grad_output": 1, "linear_weight": 0, "linear_bias": 0}
    assert ("linear_weight", 1) in links["axis 1"]
    assert not {("grad_output", 1)} & {*links["axis 1"]}
    cut = {"linear_weight": (2, 5), "linear_bias": (2,), "grad_output": (3, 2)}
    smaller = {n: t[tuple(slice(k) for k in cut.get(n, t.shape))] for n, t in case.given.items()}
    again = remade(case, smaller)
    assert again.scalars["out_features"] == 2
    assert op("unknown_linear").expected(again, bare(PRODUCTS["linear"]))["output"].shape == (3, 2)


def test_a_declaration_says_the_op_of_products_itself_or_op_unknown():
    def kernel(input, weight, linear_weight, linear_bias, eps):
        raise AssertionError("never called")

    for name in ("unknown", "unknown_linear"):
        declare = subject(op=name, specification=PRODUCTS["linear"], language="torch", dtypes=("float32",))
        assert declare(kernel).op == "unknown_linear"

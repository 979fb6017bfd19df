"""Op 'unknown': a kernel is judged by a specification of its author's own, and a wrong one is found."""

# ruff: noqa: A006 (arguments carry PyTorch's names)

import importlib.util
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from checks_support import (
    cases_of,
    examination,
    fails,
    fails_in,
    failures,
    faulty,
    in_turn,
    machine,
    outcomes_of,
    subject_of,
)
from checks_support import planted as changed

from verifier import subject
from verifier.audit.rules import summed
from verifier.checks import checks
from verifier.machine.shadow.arithmetics import make
from verifier.machine.shadow.arithmetics.field import of_fraction
from verifier.ops import op
from verifier.ops.specification.enclosures import enclosures
from verifier.ops.specification.expression import FUNCTIONS, SpecificationError, leaves_of
from verifier.ops.specification.in_a_field import specify
from verifier.ops.specification.recording import trace
from verifier.records.case import Case
from verifier.records.verdict import Verdict

SOURCE = Path(__file__).with_name("own_specification.py")
FUSED = SOURCE.with_name("own_fused_add.py")
compiled = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the kernel is Triton's, which is not installed"
)

MUTANTS = {
    "mean over N - 1": ("axis=0) / columns\n    rstd", "axis=0) / (columns - 1)\n    rstd", "output"),
    "eps outside the root": ("tl.sqrt(square + eps)", "(tl.sqrt(square) + eps)", "output"),
    "weight without one": ("(1.0 + weight)", "weight", "output"),
    "no mean term": ("(g - hat * c)", "g", "grad_input"),
    "gradient of the other gate": ("g = grad * weight", "g = grad * (weight - 1.0)", "grad_input"),
    "first row lost": ("total += grad * hat", "total += tl.where(row > 0, grad * hat, 0.0)", "grad_weight"),
}


def planted(name):
    """Return the subject with one bug."""
    old, new, _ = MUTANTS[name]
    return changed({old: new}, SOURCE)


@compiled
@pytest.mark.parametrize(
    ("check", "dtype"), in_turn(["formula", "running_bound", "influence"], ["float16", "bfloat16", "float32"])
)
def test_a_right_kernel_passes(check, dtype):
    with machine() as place:
        found = outcomes_of(subject_of(SOURCE), check, dtype, place, count=2)
    assert {o.verdict for o in found} == {Verdict.PASS}


@compiled
@pytest.mark.parametrize("name", list(MUTANTS))
def test_formula_finds_every_planted_bug(name):
    with machine() as place:
        until = fails_in(MUTANTS[name][2])
        found = failures(outcomes_of(planted(name), "formula", "float16", place, count=2, until=until))
    assert MUTANTS[name][2] in {o.output for o in found}
    assert all("than its specification" in o.formula for o in found)


@compiled
@pytest.mark.parametrize("name", ["mean over N - 1", "no mean term", "weight without one"])
def test_the_running_bound_finds_what_is_larger_than_rounding(name):
    with machine() as place:
        until = fails_in(MUTANTS[name][2])
        found = outcomes_of(planted(name), "running_bound", "float32", place, count=2, until=until)
    assert any(map(until, found))


@compiled
def test_the_running_bound_sees_a_stride_that_is_assumed():
    subject = changed({"x, w = input.contiguous(), weight.contiguous()": "x, w = input, weight"}, SOURCE)
    with machine() as place:
        found = outcomes_of(subject, "running_bound", "float32", place, count=8, until=fails)
    assert any(map(fails, found))


SPOILED = {
    "an element less": lambda y: y.flatten()[:-1],
    "no tensor": lambda y: None,
    "another dtype": lambda y: y.double(),
    "no floats": lambda y: y.int(),
}


@compiled
@pytest.mark.parametrize("name", SPOILED)
def test_the_running_bound_sees_a_result_that_is_spoiled_in_other_layouts_alone(name):
    base = subject_of(SOURCE)

    def rows(input, weight, eps=1e-5):
        y = base.function(input=input, weight=weight, eps=eps)
        return y if input.is_contiguous() else SPOILED[name](y)

    declare = subject(
        op="unknown",
        specification=base.specification,
        language="triton",
        dtypes=("float16",),
        differentiable=False,
    )
    with machine() as place:
        assert not failures(outcomes_of(declare(rows), "gradcheck", "float16", place, count=1))
        found = failures(outcomes_of(declare(rows), "running_bound", "float16", place, count=6, until=fails))
    assert {o.output for o in found} == {"output"}
    assert all("is expected" in o.message for o in found)


@compiled
def test_the_running_bound_sees_a_gradient_that_is_missing_in_other_layouts_alone():
    places = {
        "return dx, dw, None": "return dx, dw if ctx.whole else None, None",
        "ctx.save_for": "ctx.whole = input.is_contiguous()\n        ctx.save_for",
    }
    with machine() as place:
        subject = changed(places, SOURCE)
        found = outcomes_of(subject, "running_bound", "float16", place, count=6, until=fails)
    assert {o.output for o in failures(found)} == {"grad_weight"}


@compiled
def test_the_running_bound_passes_no_further_result_that_is_missing():
    last = "return y, total, scales"
    subject = changed({last: f"{last} if input.is_contiguous() else None"}, FUSED)
    with machine() as place:
        until = fails_in("scale")
        found = outcomes_of(subject, "running_bound", "float16", place, count=8, until=until)
    assert any(map(until, found))


@compiled
def test_no_other_case_makes_up_for_an_error_that_is_unconfirmed(monkeypatch):
    from verifier.checks.support import running_bound_run

    run = running_bound_run.bounds

    def narrowed(*arguments, **options):
        seen = run(*arguments, **options)
        return replace(seen, outputs={**seen.outputs, "output|bound": seen.outputs["output|bound"] * 0})

    monkeypatch.setattr(running_bound_run, "bounds", narrowed)
    with machine() as place:
        found = outcomes_of(subject_of(SOURCE), "running_bound", "float32", place, count=1)
    assert {o.verdict for o in found if o.output == "output"} == {Verdict.UNDECIDED}
    assert any(o.doubtful for o in found)


@compiled
def test_an_unlimited_bound_of_some_elements_takes_the_pass_from_their_result(monkeypatch):
    from verifier.checks.support import running_bound_run

    run = running_bound_run.bounds

    def unlimited(*arguments, **options):
        seen = run(*arguments, **options)
        bound = seen.outputs["output|bound"].clone()
        bound.view(-1)[0] = np.inf
        return replace(seen, outputs={**seen.outputs, "output|bound": bound})

    monkeypatch.setattr(running_bound_run, "bounds", unlimited)
    with machine() as place:
        found = outcomes_of(subject_of(SOURCE), "running_bound", "float32", place, count=1)
    counted = {o.output: o for o in found if o.measured is None}
    assert counted["output"].evidence.elements == 1
    assert summed(o.verdict for o in counted.values()) is Verdict.UNDECIDED
    assert any("unlimited for some elements" in (o.measured.seen if o.measured else "") for o in found)


def test_every_check_runs_or_says_why_not():
    inapplicable = {name: c.NEEDS_A_NORM for name, c in checks().items() if c.NEEDS_A_NORM}
    assert len(inapplicable) == 11
    for name, why in inapplicable.items():
        line = examination(subject_of(SOURCE), name, place="machine").run()
        assert line.skipped == why
        assert len(why) > 20
    judged = {"formula", "running_bound", "gradcheck", "influence", "memory", "determinism", "finite"}
    assert not judged & set(inapplicable)


def test_the_declaration_in_the_docs_holds(tmp_path):
    page = SOURCE.parents[2] / "docs" / "how-to" / "own-specification.md"
    torchs, mpmaths, _ = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    meanings = []
    for text in (torchs, mpmaths + torchs.partition("(1 + weight)\n")[2]):
        (tmp_path / "documented.py").write_text("import torch\nfrom verifier import subject\n" + text)
        documented = subject_of(tmp_path / "documented.py")
        found = outcomes_of(documented, "finite", count=4)
        assert {o.verdict for o in found} == {Verdict.PASS}
        meanings.append(enclosures(documented, case_of("input", "weight", "grad_output")))
    for name, exact in meanings[0].items():
        assert np.all(np.abs(meanings[1][name].high - exact.high) <= 2.0**-50), name


# -- values ----------------------------------------------------------------------------------------------


def bare(specification, **changes):
    """Declare a specification without a kernel: only its meaning is asked for."""

    def nothing(input, weight=None, bias=None, residual=None, gate=None, eps=1e-5):  # noqa: PLR0917
        raise AssertionError("never called")

    return subject(
        op="unknown", specification=specification, language="torch", dtypes=("float64",), **changes
    )(nothing)


def case_of(*names, rows=3, columns=5):
    generator = torch.Generator().manual_seed(7)
    shapes = {"weight": (columns,), "bias": (columns,)}
    tensors = {
        n: torch.randn(shapes.get(n, (rows, columns)), generator=generator, dtype=torch.float64)
        for n in names
    }
    return Case(
        op="unknown", dtype="float64", tensors=tensors, scalars={"eps": 2.0**-7}, rows=rows, columns=columns
    )


def everything(input, weight, gate, eps):
    """Use every kind of step, so that each derivative has a witness."""
    rstd = ((input - input.mean(-1, keepdim=True)).square().mean(-1, keepdim=True) + eps).rsqrt()
    share = weight.sum(-1, keepdim=True) * 0.25
    inner = torch.nn.functional.silu(gate) * rstd + torch.tanh(gate - 1) ** 3 / (2 + weight**2)
    return torch.exp(-inner) * (1 - share) + torch.log(1 + input**2) - weight.reciprocal() + gate**-1.5 * 0


def positive(case):
    """Return the case with positive numbers, whose roots and logarithms exist."""
    tensors = {n: t if n == "grad_output" else t.abs() + 0.5 for n, t in case.tensors.items()}
    return replace(case, tensors=tensors)


def test_enclosures_hold_what_torch_computes_and_differentiates():
    case = positive(case_of("input", "weight", "gate", "grad_output"))
    exact = enclosures(bare(everything), case)
    leaves = {n: t.clone().requires_grad_(True) for n, t in case.tensors.items() if n != "grad_output"}
    output = everything(**leaves, eps=case.scalars["eps"])
    found = torch.autograd.grad(output, list(leaves.values()), case.tensors["grad_output"])
    actual = {"output": output.detach(), **{f"grad_{n}": g for n, g in zip(leaves, found, strict=True)}}
    assert set(exact) == set(actual)
    for name, value in actual.items():
        assert np.all(exact[name].radius <= 2.0**-100)
        # Fewer than 2^7 roundings of float64, in terms below 2^6: torch's own error, not ours.
        assert np.all(np.abs(value.numpy() - exact[name].high) <= 2.0**-53 * 2**13), name


def test_an_enclosure_is_the_exact_value_by_another_library():
    case = case_of("input", "weight", rows=2, columns=3)
    found = enclosures(
        bare(
            lambda input, weight, eps: (
                input / ((input * input).mean(-1, keepdim=True) + eps).sqrt() * weight.exp()
            )
        ),
        case,
    )["output"]
    with mpmath.workprec(300):
        for i, row in enumerate(case.tensors["input"].tolist()):
            root = mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in row) / 3 + mpmath.mpf(2) ** -7)
            for j, x in enumerate(row):
                wanted = mpmath.mpf(x) / root * mpmath.exp(mpmath.mpf(case.tensors["weight"][j].item()))
                assert (
                    abs(wanted - mpmath.mpf(found.high[i, j]) - mpmath.mpf(found.low[i, j]))
                    <= found.radius[i, j]
                )


def test_the_field_agrees_with_fractions_for_a_rational_specification():
    case = case_of("input", "weight", "grad_output")
    arithmetic = make("field")
    residues = {n: arithmetic.lift(t.numpy(), "f64") for n, t in case.tensors.items()}
    own = bare(lambda input, weight: input * input.sum(-1, keepdim=True) / 4 + weight)
    found = specify(case, arithmetic, residues, subject=own).results
    x = [[Fraction(v) for v in row] for row in case.tensors["input"].tolist()]
    g = [[Fraction(v) for v in row] for row in case.tensors["grad_output"].tolist()]
    for i, j in np.ndindex(3, 5):
        output = x[i][j] * sum(x[i]) / 4 + Fraction(case.tensors["weight"][j].item())
        slope = (g[i][j] * sum(x[i]) + sum(a * b for a, b in zip(g[i], x[i], strict=True))) / 4
        assert int(found["output"].residues[i, j]) == of_fraction(output)
        assert int(found["grad_input"].residues[i, j]) == of_fraction(slope)
        assert int(found["grad_weight"].residues[j]) == of_fraction(sum(row[j] for row in g))


# -- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("specification", "word"),
    [
        (lambda input: input.clamp(0), "clamp"),
        (lambda input: torch.cumsum(input, -1), "cumsum"),
        (lambda input: input.sum(0, keepdim=True) + input, "last dimension"),
        (lambda input: input - input.mean(-1), "keepdim"),
        (lambda input: input**0.3, "0.3"),
        (lambda input: input or -input, "branch"),
        (lambda input: input * torch.ones(4), "Tensor"),
        (lambda input: (input, input), "returns"),
        (lambda input: input.mean(-1, keepdim=True), "vary"),
        (lambda other: other, "does not take"),
        (None, "specification="),
    ],
)
def test_a_specification_without_exact_meaning_is_refused_where_it_is_declared(specification, word):
    with pytest.raises(ValueError, match=word):
        bare(specification)


def test_a_known_op_takes_no_specification_and_an_unknown_one_no_algorithm():
    with pytest.raises(ValueError, match="meaning of its own"):
        subject(op="rms_norm", specification=lambda input: input, language="torch", dtypes=("float32",))(
            print
        )
    with pytest.raises(ValueError, match="no variance algorithm"):
        bare(lambda input: input, variance="rms")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_that_is_named_can_be_used(name):
    x = leaves_of(("input",), (2, 4), ())["input"]
    given = {"sum": (-1, True), "mean": (-1, True), "pow": (2,)}
    given |= dict.fromkeys(("add", "sub", "mul", "div", "true_divide"), (2.0,))

    def specification(input):
        return input + getattr(input, name)(*given.get(name, ()))

    assert trace(specification, {"input": x}, ("output",))["output"].shape == (2, 4)
    with pytest.raises(SpecificationError, match=name):
        x.relu()


def test_other_subjects_are_not_touched():
    assert not any(op(name).own for name in ("layer_norm", "softmax", "batch_norm"))
    assert faulty("divisor_n_minus_one_triton").specification is None
    assert len(cases_of(subject_of(SOURCE), "running_bound", "float32", 8)) == 8

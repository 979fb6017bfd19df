"""Every result of an op in a finite field, from the op's own layout of its operands and its own formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verifier.numbers import Terms
from verifier.ops import op, running
from verifier.ops.rows import constant_statistics, to_float64
from verifier.oracle.problem import RowProblem
from verifier.specification.numbers import Elements, FieldNumbers
from verifier.specification.own import field_results

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verifier.arithmetic import Array
    from verifier.case import Case
    from verifier.subjects import Subject

REDRAWS = 100
"""Half of all elements are squares: a row that has no root after so many draws is no accident."""


@dataclass(frozen=True, kw_only=True)
class Specified:
    """Exact results in canonical rows by name, and for each row whether all its roots exist."""

    results: Mapping[str, Elements]
    regular: Any


def as_held(number: float, dtype: str) -> float:
    """Return a scalar argument as kernels hold it: Python floats reach them as float32."""
    return float(number) if dtype == "float64" else float(np.float32(number))


def own_residues(case: Case, arithmetic: Any) -> dict[str, Array]:
    """Return the field elements of the case's own numbers, each in the shape of its tensor."""
    return {name: arithmetic.lift(to_float64(t), "f64") for name, t in case.given.items()}


def blind_residues(
    case: Case, arithmetic: Any, generator: np.random.Generator, subject: Subject | None = None
) -> dict[str, Array]:
    """Return random field elements for every tensor, such that every root of a row exists.

    subject: whose own specification it is about, where the op has none.

    Raises:
        ValueError: no such elements were found (a row whose root does not depend on its input).

    """
    moduli = arithmetic.moduli()
    drawn = {name: _uniform(generator, moduli, tuple(t.shape)) for name, t in case.given.items()}
    evaluates = not case.scalars.get("training", True)
    redrawn = "running_var" if evaluates and "running_var" in drawn else "input"
    place = _places(case)[redrawn]
    alike = _alike(case, place)
    differentiable = bool(op(case.op).differentiable)  # roots are taken in the forward pass
    forward = replace(case, tensors={**case.tensors, "grad_output": None}) if differentiable else case
    for _ in range(REDRAWS):
        flat = drawn[redrawn].reshape(-1)
        flat[place] = flat[alike]
        none = _none(case, arithmetic)
        bad = ~specify(forward, arithmetic, drawn, logarithms=none, subject=subject).regular
        if op(case.op).own and not bad.any():  # a root of a logarithm is not known before
            bad = ~specify(forward, arithmetic, drawn, subject=subject).regular
        if not bad.any():
            return drawn
        index = place[bad].reshape(-1)
        flat[index] = _uniform(generator, moduli, index.shape)
    raise ValueError(f"rows {np.flatnonzero(bad)[:8].tolist()} have no root for any input")


def _alike(case: Case, place: Any) -> Any:
    """Return for each element the place of the first one of its row that is the same number.

    Lanes that look for a maximum may each find another one of equal numbers: only elements that are the
    same number may stand for it. Where nothing is compared, every element is its own.
    """
    if isinstance(op(case.op).problem(case), RowProblem):
        return place
    floats = to_float64(case.given["input"]).reshape(-1)[place]
    alike = place.copy()
    for row, numbers in enumerate(floats):
        _, first, back = np.unique(numbers, return_index=True, return_inverse=True)
        alike[row] = place[row, first[back]]
    return alike


def _uniform(generator: np.random.Generator, moduli: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(moduli, int):
        return generator.integers(1, moduli, shape, dtype=np.uint64)
    result: Any = np.empty(shape, dtype=[(name, np.uint64) for name in moduli])
    for name, modulus in moduli.items():
        result[name] = generator.integers(1, modulus, shape, dtype=np.uint64)
    return result


def _numbered(case: Case) -> Case:
    """Return the case with every element replaced by its number: the op then lays out numbers."""
    numbered = {
        name: None if t is None else torch.arange(t.numel(), dtype=torch.float64).reshape(t.shape)
        for name, t in case.tensors.items()
    }
    return replace(case, tensors=numbered)


def _places(case: Case) -> dict[str, Any]:
    """Return for each tensor where its elements stand in canonical rows, (rows, ...)."""
    numbered = _numbered(case)
    the_op = op(case.op)
    found = {}
    for name, tensor in numbered.given.items():
        place = the_op.canonical(numbered, name, tensor.numpy()).astype(np.int64)
        found[name] = place if place.ndim == 2 else place.reshape(-1, 1)
    return found


def specify(
    case: Case,
    arithmetic: Any,
    residues: Mapping[str, Array],
    *,
    logarithms: Elements | None = None,
    subject: Subject | None = None,
) -> Specified:
    """Run the op's canonical form on field elements, or the subject's own specification.

    residues: field elements of every tensor of the case, in its shape. logarithms: (rows, 1), what the
    logarithm of each row is taken to be (None: the field's own). subject: whose specification it is, where
    the op has none of its own.
    Results are in canonical rows: (rows, columns) or (entries,).

    Raises:
        NoMeaningError: the formula needs a function that the field does not have.

    """
    if op(case.op).own:
        assert subject is not None

        def held(number: Any) -> float:
            return as_held(number, case.dtype)

        results, regular = field_results(subject, case, arithmetic, residues, held, logarithms=logarithms)
        return Specified(results=results, regular=regular)
    posed = op(case.op).problem(_numbered(case))
    run = _rows if isinstance(posed, RowProblem) else _softmax
    numbers, results = run(case, arithmetic, residues, posed, logarithms)
    return Specified(results=results, regular=numbers.square_rows())


class _Taken:
    """Operands by the numbers that the op laid out."""

    def __init__(self, numbers: FieldNumbers, residues: Mapping[str, Array]) -> None:
        self.numbers, self.residues = numbers, residues

    def optional(self, name: str, place: Any) -> Elements | None:
        """Return the elements at these places, None without any."""
        return None if place is None else self(name, place)

    def __call__(self, name: str, place: Any) -> Elements:
        index = np.asarray(place).astype(np.int64)
        return self.numbers.elements(self.residues[name].reshape(-1)[index])


def _none(case: Case, arithmetic: Any) -> Elements:
    """Return zeros in the place of logarithms that are costly and not asked for, (rows, 1)."""
    return Elements(arithmetic, arithmetic.lift(np.zeros((case.rows, 1)), "f64"), frozenset({"exponent"}))


def _rows(
    case: Case,
    arithmetic: Any,
    residues: Mapping[str, Array],
    posed: RowProblem,
    logarithms: Elements | None,
) -> tuple[FieldNumbers, dict[str, Elements]]:
    del logarithms  # no norm over rows has any
    numbers = FieldNumbers(
        arithmetic=arithmetic,
        rows=case.rows,
        columns=case.columns,
        eps=as_held(case.eps, case.dtype),
        centred=posed.centred,
        parameter=posed.parameter,
    )
    take = _Taken(numbers, residues)
    form = next(iter(op(case.op).forms.values()))
    terms = Terms(
        x=take("input", posed.input),
        weight=take.optional("weight", posed.weight),
        bias=None if posed.rstd is not None else take.optional("bias", posed.bias),
        grad_output=take.optional("grad_output", posed.grad_output),
    )
    if posed.rstd is not None:  # a raw backward op
        mean = take.optional("mean", posed.mean) or numbers.number(0.0)
        numbers = replace(numbers, given=(mean, take("rstd", posed.rstd)))
        gradients = form.backward(numbers, replace(terms, bias=numbers.number(0.0)))
        return numbers, _flat_parameters(gradients)
    backward = form.backward
    if posed.variance is not None:
        variance = take("running_var", posed.variance)
        rstd = numbers.rsqrt(variance + numbers.number(numbers.eps))
        numbers = replace(numbers, given=(take("running_mean", posed.mean), rstd))
        backward = form.evaluation or constant_statistics
    results = {"output": form.forward(numbers, terms).shaped(case.rows, case.columns)}
    mean, rstd = numbers.moments(terms.x)
    results |= {"mean": _column(mean, case.rows), "rstd": _column(rstd, case.rows)}
    results |= _running(case, numbers, take, terms)
    if terms.grad_output is not None:
        results |= _flat_parameters(backward(numbers, terms))
    return numbers, results


def _column(value: Elements, rows: int) -> Elements:
    return Elements(value.arithmetic, value.shaped(rows, 1).slots[:, 0], value.parts)


def _flat_parameters(gradients: Mapping[str, Elements]) -> dict[str, Elements]:
    return {
        name: value
        if name == "grad_input"
        else Elements(value.arithmetic, value.slots.reshape(-1), value.parts)
        for name, value in gradients.items()
    }


def _running(case: Case, numbers: FieldNumbers, take: _Taken, terms: Terms) -> dict[str, Elements]:
    """Return the running statistics after a training step (batch norm), moved as the op says."""
    if case.tensors.get("running_mean") is None or case.columns < 2:
        return {}
    places = _places(case)
    held = {n: take(n, places[n]) for n in ("running_mean", "running_var")}
    if not case.scalars["training"]:
        return {n: _column(value, case.rows) for n, value in held.items()}
    mean, rstd = numbers.moments(terms.x)
    biased = numbers.number(1.0) / (rstd * rstd) - numbers.number(numbers.eps)
    unbiased = biased * numbers.count() / (numbers.count() - numbers.number(1.0))
    momentum = numbers.number(as_held(case.scalars["momentum"], case.dtype))
    moved = {
        name: running.weighted(numbers, held[name], new, momentum)
        for name, new in (("running_mean", mean), ("running_var", unbiased))
    }
    return {n: _column(value, case.rows) for n, value in moved.items()}


def _softmax(
    case: Case,
    arithmetic: Any,
    residues: Mapping[str, Array],
    posed: Any,
    logarithms: Elements | None,
) -> tuple[FieldNumbers, dict[str, Elements]]:
    the_op = op(case.op)
    floats = the_op.canonical(case, "input", to_float64(case.given["input"]))
    numbers = FieldNumbers(
        arithmetic=arithmetic, rows=case.rows, columns=case.columns, floats=floats, logarithms=logarithms
    )
    take = _Taken(numbers, residues)
    form = next(iter(the_op.forms.values()))
    terms = Terms(
        x=take.optional("input", posed.input), grad_output=take.optional("grad_output", posed.grad_output)
    )
    results = {}
    if posed.input is not None:
        output = results["output"] = form.forward(numbers, terms)
        if output.parts == {"value"}:  # kernels may divide by the sum through its logarithm
            numbers.regular.append(arithmetic.has_logarithm(output.slots[:, :1]))
    else:
        output = take("output", posed.output)
    if terms.grad_output is not None:
        gradient = form.backward(numbers, replace(terms, output=output, x=terms.x or output))
        results["grad_input"] = gradient["grad_input"]
    return numbers, results

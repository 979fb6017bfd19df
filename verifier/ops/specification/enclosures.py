"""Runs a subject's own specification: in a finite field, and enclosed in Arb balls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from verifier.ops import op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.ops.specification.evaluation import evaluate, gradients, steps
from verifier.ops.specification.expression import Expression, leaves_of
from verifier.ops.specification.field_numbers import Elements, FieldNumbers, FieldOfResidues
from verifier.ops.specification.recording import trace
from verifier.oracle.balls import balls, enclose, precision

if TYPE_CHECKING:
    from verifier.arithmetic.formats import Array
    from verifier.machine.arithmetic.numerics import Array as Residues
    from verifier.oracle.balls import Ball
    from verifier.oracle.enclosure import Enclosure, Mask
    from verifier.records.case import Case
    from verifier.records.subject import Subject

Objects = np.ndarray[tuple[int, ...], np.dtype[np.object_]]
"""Arrays of Arb balls."""
BITS = 256
"""Precision of the balls; where cancellation leaves them wide, the judge decides nothing."""
_AT_ONCE = 1 << 20
"""Products of field elements that are held at the same time."""


def traced(subject: Subject, case: Case) -> dict[str, Expression]:
    """Return every result of the specification by name, gradients included where there is a grad_output."""
    the_op = op(case.op)
    features = features_of(case)
    leaves = leaves_of(case.given, (case.rows, case.columns), the_op.parameters, features)
    arguments = {n: leaves.get(n) for n in case.tensors} | dict(case.scalars)
    assert subject.specification is not None  # which every subject of such an op has
    results = trace(subject.specification, arguments, subject.returns)
    if "grad_output" in leaves:
        wanted = {f"grad_{n}": e for n, e in leaves.items() if n in the_op.differentiable}
        results |= gradients(results["output"], leaves["grad_output"], wanted)
    return results


def features_of(case: Case) -> int | None:
    """Return how many rows the matrix of a case has, None where it has none."""
    matrix = case.tensors.get(LINEAR_WEIGHT)
    return None if matrix is None else int(matrix.shape[0])


def constants(subject: Subject, case: Case) -> list[float]:
    """Return the numbers that a specification writes, in no order that means anything."""
    return sorted({float(step.label) for step in steps(traced(subject, case)) if step.kind == "constant"})


def _rows(case: Case, name: str, array: Array) -> Array:
    """Return a tensor in canonical rows of two dimensions."""
    return np.atleast_2d(op(case.op).canonical(case, name, array))


def _extent(case: Case, name: str, expression: Expression) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the extents of a result, and its shape in canonical rows."""
    role = name.removeprefix("grad_")
    if role != name and role in case.given:
        shape = op(case.op).flat_index(case, role, tuple(case.given[role].shape)).shape
        return (shape if len(shape) == 2 else (1, *shape)), shape
    columns = expression.extents[1]
    # A further result is one number a row where a row has one column: its canonical rows cannot tell.
    if (expression.columns and columns != 1) or name == "output":
        return (case.rows, columns), (case.rows, columns)
    return (case.rows, 1), (case.rows,)


# -- in a field ------------------------------------------------------------------------------------------


class _Field:
    """Field elements, with roots and logarithms remembered where they do not exist."""

    def __init__(
        self, numbers: FieldNumbers, leaves: Mapping[str, Elements], held: Callable[[float], float]
    ) -> None:
        self.numbers, self.leaves, self.held = numbers, leaves, held

    def leaf(self, name: str) -> Elements:
        return self.leaves[name]

    def constant(self, number: float) -> Elements:
        return self.numbers.number(self.held(number))

    def sqrt(self, value: Elements) -> Elements:
        root = value._with("sqrt")
        back = (root * root).residues
        parts = sorted(value.parts) if back.dtype.names else ()
        own = value.residues
        same = [back[p] == own[p] for p in parts] or [back == own]
        self.numbers.regular.append(np.all(same, axis=0))
        return root

    def exp(self, value: Elements) -> Elements:
        found: Elements = self.numbers.exp(value)
        return found

    def log(self, value: Elements) -> Elements:
        found: Elements = self.numbers.log(value)
        return found

    def total(self, value: Elements, axis: int, copies: int | None) -> Elements:
        return value.folded(axis) if copies is None else value * self.numbers.number(copies)

    def column(self, value: Elements, index: int) -> Elements:
        return Elements(value.arithmetic, value.residues[:, index : index + 1], value.parts)

    def joined(self, values: list[Elements], rows: int) -> Elements:
        residues = np.concatenate([np.broadcast_to(v.residues, (rows, 1)) for v in values], axis=1)
        return Elements(values[0].arithmetic, residues, frozenset.intersection(*(v.parts for v in values)))

    def product(self, left: Elements, right: Elements, terms: int) -> Elements:
        a = left.shaped(left.residues.shape[0], terms)
        b = right.shaped(terms, right.residues.shape[1])
        rows = max(_AT_ONCE // max(b.residues.size, 1), 1)
        parts = [
            (
                Elements(a.arithmetic, a.residues[start : start + rows, :, None], a.parts)
                * Elements(b.arithmetic, b.residues[None], b.parts)
            ).folded(1)
            for start in range(0, len(a.residues), rows) or [0]
        ]
        residues = np.concatenate([part.residues[:, 0, :] for part in parts])
        return Elements(a.arithmetic, residues, parts[0].parts)

    def transposed(self, value: Elements) -> Elements:
        return Elements(value.arithmetic, value.residues.T, value.parts)


def field_results(
    subject: Subject,
    case: Case,
    arithmetic: FieldOfResidues,
    residues: Mapping[str, Residues],
    held: Callable[[float], float],
    *,
    logarithms: Elements | None = None,
) -> tuple[dict[str, Elements], Mask]:
    """Return the results in a field, in canonical rows, and for each row whether its roots exist.

    residues: field elements of every tensor, in its shape. held: a scalar as kernels hold it. logarithms:
    (rows, 1), what every logarithm is taken to be (None: the field's own).

    Raises:
        NoMeaningError: the specification needs a function that the field does not have.

    """
    numbers = FieldNumbers(arithmetic=arithmetic, rows=case.rows, columns=case.columns, logarithms=logarithms)
    index = {n: np.atleast_2d(op(case.op).flat_index(case, n, tuple(t.shape))) for n, t in case.given.items()}
    leaves = {n: numbers.elements(residues[n].reshape(-1)[at]) for n, at in index.items()}
    expressions = traced(subject, case)
    found = evaluate(expressions, _Field(numbers, leaves, held))
    results = {}
    for name, value in found.items():
        extents, shape = _extent(case, name, expressions[name])
        results[name] = Elements(arithmetic, value.shaped(*extents).residues.reshape(shape), value.parts)
    regular = np.ones(case.rows, dtype=np.bool_)
    for known in numbers.regular:
        by_rows = known if len(known) in {1, case.rows} else known.all().reshape(1, 1)  # of a matrix: of all
        regular &= np.broadcast_to(by_rows, (case.rows, np.shape(by_rows)[1])).all(axis=1)
    return results, regular


# -- enclosed --------------------------------------------------------------------------------------------


class _Balls:
    """Arrays of Arb balls."""

    def __init__(self, leaves: Mapping[str, Objects]) -> None:
        self.leaves = leaves
        self.zero = balls([0.0])[0]

    def leaf(self, name: str) -> Objects:
        return self.leaves[name]

    def constant(self, number: float) -> Objects:
        return _objects(balls([number]), (1, 1))

    def sqrt(self, value: Objects) -> Objects:
        return _each(lambda x: x.sqrt(), value)

    def exp(self, value: Objects) -> Objects:
        return _each(lambda x: x.exp(), value)

    def log(self, value: Objects) -> Objects:
        return _each(lambda x: x.log(), value)

    def total(self, value: Objects, axis: int, copies: int | None) -> Objects:
        if copies is not None:
            return np.multiply(value, self.constant(copies))
        return np.add.reduce(value, axis=axis, keepdims=True, initial=self.zero)

    def column(self, value: Objects, index: int) -> Objects:
        return value[:, index : index + 1]

    def joined(self, values: list[Objects], rows: int) -> Objects:
        return np.concatenate([np.broadcast_to(v, (rows, 1)) for v in values], axis=1)

    def product(self, left: Objects, right: Objects, terms: int) -> Objects:
        a, b = np.broadcast_to(left, (len(left), terms)), np.broadcast_to(right, (terms, right.shape[1]))
        if not terms:
            return np.full((len(a), b.shape[1]), self.zero, dtype=object)
        return np.asarray(np.dot(a, b), dtype=object)

    def transposed(self, value: Objects) -> Objects:
        return value.T


def _each(function: Callable[[Ball], Ball], values: Objects) -> Objects:
    """Apply a function to every ball."""
    return np.asarray(np.frompyfunc(function, 1, 1)(values), dtype=object)


def _objects(values: list[Ball], shape: tuple[int, ...]) -> Objects:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made.reshape(shape)


def enclosures(subject: Subject, case: Case) -> dict[str, Enclosure]:
    """Return certified enclosures of the specification's results by name, in canonical rows.

    Every tensor and scalar of the case is taken as the number that it is.
    """
    expressions = traced(subject, case)
    with precision(BITS):
        arrays = {n: _rows(case, n, to_float64(t)) for n, t in case.given.items()}
        leaves = {n: _objects(balls(a.reshape(-1).tolist()), a.shape) for n, a in arrays.items()}
        found = evaluate(expressions, _Balls(leaves))
        results = {}
        for name, value in found.items():
            extents, shape = _extent(case, name, expressions[name])
            results[name] = enclose(list(np.broadcast_to(value, extents).reshape(-1)), shape)
        return results

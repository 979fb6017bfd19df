"""Every result of an op in a finite field, from the op's own layout of its operands and its own formula."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from verifier.ops import Index, op, running_statistics
from verifier.ops.rows.compose_bounds import to_float64
from verifier.ops.specification.enclosures import field_results
from verifier.ops.specification.field_numbers import Elements, FieldNumbers, FieldOfResidues
from verifier.oracle.problem import ComparesScores

if TYPE_CHECKING:
    from collections.abc import Mapping

    from verifier.arithmetic.formats import Array
    from verifier.machine.arithmetic.numerics import Array as Residues
    from verifier.oracle.enclosure import Mask
    from verifier.records.case import Case
    from verifier.records.subject import Subject

REDRAWS = 100
"""Half of all elements are squares: a row that has no root after so many draws is no accident."""


@dataclass(frozen=True, kw_only=True)
class Specified:
    """Exact results in canonical rows by name, and for each row whether all its roots exist."""

    results: Mapping[str, Elements]
    regular: Mask


def as_held(number: float, dtype: str) -> float:
    """Return a scalar argument as kernels hold it: Python floats reach them as float32."""
    return float(number) if dtype == "float64" else float(np.float32(number))


def own_residues(case: Case, arithmetic: FieldOfResidues) -> dict[str, Residues]:
    """Return the field elements of the case's own numbers, each in the shape of its tensor."""
    return {name: arithmetic.lift(to_float64(t), "f64") for name, t in case.given.items()}


def blind_residues(
    case: Case, arithmetic: FieldOfResidues, generator: np.random.Generator, subject: Subject | None = None
) -> dict[str, Residues]:
    """Return random field elements for every tensor, such that every root of a row exists.

    Where the op compares scores, these are drawn, with one element for all of a row that are the same number,
    and the input is what gives them: equal scores may be made of different inputs and addends.
    subject: whose own specification it is about, where the op has none.

    Raises:
        ValueError: no such elements were found (a row whose root does not depend on its input).

    """
    moduli = arithmetic.moduli()
    drawn = {name: _uniform(generator, moduli, tuple(t.shape)) for name, t in case.given.items()}
    _leave_out(case, arithmetic, drawn)
    evaluates = not case.scalars.get("training", True)
    redrawn = "running_var" if evaluates and "running_var" in drawn else "input"
    place = _index(case, redrawn)
    alike = _alike(case, place)
    differentiable = bool(op(case.op).differentiable)  # roots are taken in the forward pass
    forward = replace(case, tensors={**case.tensors, "grad_output": None}) if differentiable else case
    flat = drawn[redrawn].reshape(-1)
    chosen = flat.copy()
    for _ in range(REDRAWS):
        chosen[place] = chosen[alike]
        flat[place] = _of_scores(case, arithmetic, drawn, chosen[place])
        none = _none(case, arithmetic)
        bad = ~specify(forward, arithmetic, drawn, logarithms=none, subject=subject).regular
        if op(case.op).own and not bad.any():  # a root of a logarithm is not known before
            bad = ~specify(forward, arithmetic, drawn, subject=subject).regular
        if not bad.any():
            return drawn
        index = place[bad].reshape(-1)
        chosen[index] = _uniform(generator, moduli, index.shape)
        for name in (n for n in op(case.op).alike if n in drawn):  # a row may read nothing of its input
            beside = _index(case, name)[bad]
            drawn[name].reshape(-1)[beside] = _uniform(generator, moduli, beside.shape)
    raise ValueError(f"rows {np.flatnonzero(bad)[:8].tolist()} have no root for any input")


def _leave_out(case: Case, arithmetic: FieldOfResidues, drawn: Mapping[str, Residues]) -> None:
    """Let no gradient come to what takes no part and has none: whether it is summed is then no matter."""
    gradient = case.tensors.get("grad_output")
    if op(case.op).compared is None or gradient is None:
        return
    none = to_float64(gradient) == 0
    none &= to_float64(op(case.op).reads(case)) == -np.inf
    drawn["grad_output"][none] = arithmetic.lift(np.zeros(()), "f64")


def _alike(case: Case, place: Index) -> Index:
    """Return for each element the place of the first one of its row that is the same number.

    Lanes that look for a maximum may each find another one of equal numbers: only elements that are the
    same number may stand for it. Where nothing is compared, every element is its own, and so is what takes no
    part: no maximum is made of it.
    """
    posed = op(case.op).problem(case)
    if posed is not None and not posed.compares:
        return place
    floats = _compared(case)
    alike = place.copy()
    for row, numbers in enumerate(floats):
        _, first, back = np.unique(numbers, return_index=True, return_inverse=True)
        alike[row] = np.where(np.isneginf(numbers), place[row], place[row, first[back]])
    return alike


def _of_scores(
    case: Case, arithmetic: FieldOfResidues, residues: Mapping[str, Residues], scores: Residues
) -> Residues:
    """Return the elements of the input, in canonical rows, that have these scores, or are these."""
    posed = op(case.op).problem(_numbered(case))
    if not isinstance(posed, ComparesScores):
        return scores
    field = _Field(case, arithmetic, residues, None, compares=False)
    found: Elements = posed.input_of(field, field.used.elements(scores))
    return found.residues


def _compared(case: Case) -> Array:
    """Return the numbers that decide which element of a row is the largest, in canonical rows."""
    the_op = op(case.op)
    return the_op.canonical(case, "input", to_float64(the_op.reads(case)))


def _uniform(
    generator: np.random.Generator, moduli: int | Mapping[str, int], shape: tuple[int, ...]
) -> Residues:
    if isinstance(moduli, int):
        return generator.integers(1, moduli, shape, dtype=np.uint64)
    result: Residues = np.empty(shape, dtype=[(name, np.uint64) for name in moduli])
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


def _index(case: Case, name: str) -> Index:
    """Return the flat index of each element of a tensor's canonical rows, (rows, columns) or (rows, 1)."""
    found = op(case.op).flat_index(case, name, tuple(case.given[name].shape))
    return found if found.ndim == 2 else found.reshape(-1, 1)


def specify(
    case: Case,
    arithmetic: FieldOfResidues,
    residues: Mapping[str, Residues],
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

        def held(number: float) -> float:
            return as_held(number, case.dtype)

        results, regular = field_results(subject, case, arithmetic, residues, held, logarithms=logarithms)
        return Specified(results=results, regular=regular)
    the_op = op(case.op)
    posed = the_op.problem(_numbered(case))
    assert posed is not None
    field = _Field(case, arithmetic, residues, logarithms, compares=posed.compares)
    results = {
        name: _shaped(name, value, case)
        for name, value in posed.in_field(field, next(iter(the_op.forms.values()))).items()
    }
    results |= _running(case, field)
    return Specified(results=results, regular=field.used.square_rows())


class _Field:
    """The field in which one case is specified; operands go by the numbers that the op laid out."""

    def __init__(
        self,
        case: Case,
        arithmetic: FieldOfResidues,
        residues: Mapping[str, Residues],
        logarithms: Elements | None,
        *,
        compares: bool,
    ) -> None:
        self.case, self.residues = case, residues
        floats = None
        if compares:
            floats = _compared(case)
        self.used = FieldNumbers(
            arithmetic=arithmetic, rows=case.rows, columns=case.columns, floats=floats, logarithms=logarithms
        )

    def numbers(self, *, eps: float = 0.0, centred: bool = True, parameter: object = None) -> FieldNumbers:
        """Return the numbers of the case, whose eps is as kernels hold it."""
        held = as_held(eps, self.case.dtype)
        self.used = replace(self.used, eps=held, centred=centred, parameter=parameter)
        return self.used

    def take(self, name: str, places: object) -> Elements | None:
        """Return the elements at these places, None without any."""
        return None if places is None else self.elements(name, places)

    def flags(self, name: str, places: object) -> Elements:
        """Return 1 where the case's boolean tensor of that name is True at these places, and 0 elsewhere."""
        held = to_float64(self.case.given[name]).reshape(-1)
        return self.used.lift(held[np.asarray(places).astype(np.int64)])

    def scalar(self, number: float) -> Elements:
        """Return a scalar argument as kernels hold it, (1, 1)."""
        return self.used.number(as_held(number, self.case.dtype))

    def elements(self, name: str, places: object) -> Elements:
        """Return the elements of a tensor at these places."""
        index = np.asarray(places).astype(np.int64)
        return self.used.elements(self.residues[name].reshape(-1)[index])


def _none(case: Case, arithmetic: FieldOfResidues) -> Elements:
    """Return zeros in the place of logarithms that are costly and not asked for, (rows, 1)."""
    return Elements(arithmetic, arithmetic.lift(np.zeros((case.rows, 1)), "f64"), frozenset({"exponent"}))


def _shaped(name: str, value: Elements, case: Case) -> Elements:
    """Return a result in canonical rows: (rows, columns), (rows,) or (entries,)."""
    if name in {"mean", "rstd"}:
        return _column(value, case.rows)
    if op(case.op).sums_rows(name):
        return Elements(value.arithmetic, value.residues.reshape(-1), value.parts)
    return value.shaped(case.rows, case.columns)


def _column(value: Elements, rows: int) -> Elements:
    return Elements(value.arithmetic, value.shaped(rows, 1).residues[:, 0], value.parts)


def _running(case: Case, field: _Field) -> dict[str, Elements]:
    """Return the running statistics after a training step (batch norm), moved as the op says."""
    if case.tensors.get("running_mean") is None or case.columns < 2:
        return {}
    numbers = field.used
    held = {n: field.elements(n, _index(case, n)) for n in ("running_mean", "running_var")}
    if not case.scalars["training"]:
        return {n: _column(value, case.rows) for n, value in held.items()}
    mean, rstd = numbers.moments(field.elements("input", _index(case, "input")))
    biased = numbers.number(1.0) / (rstd * rstd) - numbers.number(numbers.eps)
    unbiased = running_statistics.unbiased(numbers, biased, numbers.count())
    momentum = numbers.number(as_held(case.scalars["momentum"], case.dtype))
    moved = {
        name: running_statistics.weighted(numbers, held[name], new, momentum)
        for name, new in (("running_mean", mean), ("running_var", unbiased))
    }
    return {n: _column(value, case.rows) for n, value in moved.items()}

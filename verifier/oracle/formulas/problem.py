"""The problem of a formula of rows, whatever it is: its canonical form says what is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Numbers, Terms, Value
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import precision
from verifier.oracle.climb import Balls, Comparison, arb_rungs
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.formulas.ball_numbers import BallNumbers
from verifier.oracle.formulas.pair_numbers import PairNumbers, lifted, of_enclosure, published
from verifier.oracle.formulas.reached_numbers import ReachedNumbers
from verifier.oracle.formulas.unrounded import Unrounded
from verifier.oracle.problem import Field, RowSolution, Rung
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.rows.rung_arb import PARAMETER_GRADIENTS

STATISTICS = ("mean", "rstd")


@dataclass(frozen=True, kw_only=True)
class FormulaSolution(RowSolution):
    """The exact answer, enclosed: statistics are those of the rows, results those of the formula."""

    results: Mapping[str, Enclosure]

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name; statistics only where the formula reads them."""
        return self.results


@dataclass(frozen=True, kw_only=True)
class FormulaProblem(RowProblem):
    """Rows of which a formula is computed, forward and backward, in exact arithmetic.

    form: whose passes are the formula. further: other tensors of the rows by name, (rows, columns) each, or
    (1, how many) of those in `wholes`: names of parameters each of whose numbers acts on all elements.
    scalars: numbers by name. moments: whether the formula reads mean and rstd of the rows. elementwise: names
    of what the form makes beside the output (`Form.beside`).
    """

    form: Form
    further: Mapping[str, Array] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    moments: bool = True
    wholes: tuple[str, ...] = ()
    elementwise: tuple[str, ...] = ()

    @property
    def summed(self) -> frozenset[str]:
        """The gradients that are sums over rows."""
        return frozenset({*PARAMETER_GRADIENTS, *(f"grad_{name}" for name in self.wholes)})

    def solve(self, _rung: Rung = "auto", _bits: int | None = None) -> FormulaSolution:
        """Return the exact answer in double-double, whatever the rung; `rungs` climbs to Arb."""
        rows, columns = self.input.shape
        of_rows = RowProblem(input=self.input, eps=self.eps, centred=self.centred).solve()
        with np.errstate(all="ignore"):
            lost = self._run(ReachedNumbers(rows=rows, columns=columns, parameter=self.parameter), _lost)
            given = (of_enclosure(of_rows.mean), of_enclosure(of_rows.rstd))
            numbers = PairNumbers(rows=rows, columns=columns, parameter=self.parameter, given=given)
            found = self._run(numbers, _kept) if rows and columns else {}
        results = {}
        for name, reached in lost.items():
            hidden = self._shaped(name, reached.lost)
            results[name] = published(found.get(name, NOTHING), hidden)
        if self.moments:
            results |= {name: getattr(of_rows, name) for name in STATISTICS}
        found_of_rows = {f.name: getattr(of_rows, f.name) for f in fields(RowSolution)}
        return FormulaSolution(**found_of_rows, results=results)

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        """Yield the rungs: the first answer, Arb. Rows climb alone, unless a result sums over them."""
        if name in STATISTICS and self.moments:
            of_rows = RowProblem(input=self.input, eps=self.eps, centred=self.centred)
            yield from of_rows.rungs(name, first)
            return
        yield "double_double", lambda still: first[still]
        exists = np.isfinite(first.high)
        yield from arb_rungs(lambda still, bits: self._balls(name, still, exists, bits))

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field, each operand holding places in the tensor that it was made of."""
        numbers = field.numbers(eps=self.eps, centred=self.centred, parameter=self.parameter)
        named = ("input", "weight", "bias", "grad_output")
        read = {name: field.take(name, getattr(self, name)) for name in named}
        further = {name: field.take(name, places) for name, places in self.further.items()}
        further |= {name: field.scalar(number) for name, number in self.scalars.items()}
        terms = Terms(x=read["input"], **{n: read[n] for n in named[1:]}, further=further)
        results = dict(evaluated(numbers, terms, form))
        if self.moments:
            results["mean"], results["rstd"] = numbers.moments(terms.x)
        return results

    def _run(self, numbers: Unrounded, of: Callable[[Array], Value]) -> dict[str, Value]:
        """Run the form; of: what the numbers are told of an operand."""

        def read(array: Arrays) -> Value:
            return None if array is None else numbers.lift(of(np.asarray(array, dtype=np.float64)))

        further = {name: read(array) for name, array in self.further.items()}
        further |= {name: numbers.constant(number) for name, number in self.scalars.items()}
        terms = Terms(
            x=read(self.input),
            weight=read(self.weight),
            bias=read(self.bias),
            grad_output=read(self.grad_output),
            further=further,
        )
        return evaluated(numbers, terms, self.form)

    def _shaped(self, name: str, values: Arrays) -> Arrays:
        """Return a result in canonical rows: (entries,), (rows,) of what is shared, (rows, columns)."""
        of_elements = name in ("output", *self.elementwise) or name.startswith("grad_")
        if name in self.summed or not of_elements:
            return values.reshape(-1)
        return np.broadcast_to(values, self.input.shape)

    def _balls(self, name: str, still: Mask, exists: Mask, bits: int) -> Balls:
        """Return the open elements as balls of that precision."""
        problem, places, known = self, still, exists
        if name not in self.summed:
            chosen = np.flatnonzero(still.reshape(len(still), -1).any(1))
            problem, places, known = self._taken(chosen), still[chosen], exists[chosen]
        rows, columns = problem.input.shape
        with precision(bits):
            numbers = BallNumbers(
                rows=rows, columns=columns, eps=self.eps, centred=self.centred, parameter=problem.parameter
            )
            values = problem._shaped(name, problem._run(numbers, _kept)[name])[places]
        return Balls(values=[v if k else None for v, k in zip(values, known[places], strict=True)], bits=bits)

    def _taken(self, rows: np.ndarray[tuple[int, ...], np.dtype[np.integer]]) -> FormulaProblem:
        """Return the problem of chosen rows, for results that do not sum over rows."""
        extent = self.input.shape[0]

        def cut(array: Arrays) -> Arrays:
            return array if array is None or array.shape[0] != extent else array[rows]

        of_rows = ("input", "weight", "bias", "grad_output")
        named = {name: cut(getattr(self, name)) for name in of_rows if name not in self.wholes}
        further = {n: a if n in self.wholes else cut(a) for n, a in self.further.items()}
        return replace(self, parameter="columns", further=further, **named)


NOTHING = lifted(np.zeros((1, 1)))
"""A sum over no elements."""


def evaluated(numbers: Numbers, terms: Terms, form: Form) -> dict[str, Value]:
    """Return what a form makes of terms: output and what is beside it, shared values, perhaps gradients."""
    whole = form.completed(numbers, terms)
    output = form.forward(numbers, whole)
    beside = {} if form.beside is None else form.beside(numbers, whole)
    shared = {name: value for name, value in whole.further.items() if name not in terms.further}
    backward = {} if terms.grad_output is None else form.backward(numbers, replace(whole, output=output))
    return {"output": output, **beside, **shared, **backward}


def _lost(array: Array) -> Mask:
    return ~np.isfinite(array)


def _kept(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0.0)

"""The problem of a fused addition and norm: rows are sums, and their gradient has a second part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Terms, Value
from verifier.arithmetic.error_free.double_double import two_sum
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import ball, precision
from verifier.oracle.climb import Balls, Comparison
from verifier.oracle.enclosure import UNIT, Enclosure, Mask
from verifier.oracle.problem import Field, RowSolution, Rung
from verifier.oracle.rows.problem import RowProblem

ALIKE = {"grad_residual": "grad_input"}
"""Results that are another one: both summands of a sum have its gradient."""


@dataclass(frozen=True, kw_only=True)
class AddedSolution(RowSolution):
    """The exact answer, enclosed, with that of the sum itself.

    grad_input: with the gradient that comes to the sum beside the norm; grad_residual is the same.
    new_residual: (rows, columns), the sum as it is stored, exactly.
    """

    new_residual: Enclosure

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name; the stored sum is no question to the oracle."""
        found = dict(super().enclosures)
        return found | {name: found[of] for name, of in ALIKE.items() if of in found}


@dataclass(frozen=True, kw_only=True)
class AddedRowProblem(RowProblem):
    """Rows that are sums of two tensors, to be normalized, forward and backward.

    input: (rows, columns), the sum as the norm reads it, whatever was rounded on the way. summands: both
    tensors, each (rows, columns). stored: the sum as it is returned. sum_gradient: the gradient of what is
    returned, which is added to that of the norm's input; None where there is none.
    """

    summands: tuple[Array, Array]
    stored: Array
    sum_gradient: Array | None = None

    @property
    def _norm(self) -> RowProblem:
        """The norm alone."""
        return RowProblem(**{f.name: getattr(self, f.name) for f in fields(RowProblem)})

    def solve(self, rung: Rung = "auto", bits: int | None = None) -> AddedSolution:
        """Return the exact answer, enclosed; see `verifier.oracle.solve.solve`."""
        found = self._norm.solve(rung, bits)
        finite = np.isfinite(self.stored)
        nothing, high = np.zeros(self.stored.shape), np.where(finite, self.stored, np.nan)
        solution = {f.name: getattr(found, f.name) for f in fields(RowSolution)}
        if self.sum_gradient is not None and found.grad_input is not None:
            solution["grad_input"] = plus(found.grad_input, self.sum_gradient)
        stored = Enclosure(high=high, low=nothing, radius=np.where(finite, nothing, np.nan))
        return AddedSolution(**solution, new_residual=stored)

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        """Yield the rungs of the norm, each with the gradient that comes beside it."""
        name = ALIKE.get(name, name)
        sum_gradient = self.sum_gradient
        if name != "grad_input" or sum_gradient is None:
            yield from self._norm.rungs(name, first)
            return
        norm = self._norm
        for rung, comparison in norm.rungs(name, first):
            # The first answer has both parts already.
            yield rung, comparison if rung == "float64" else _plus_gradient(comparison, sum_gradient)

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field, where the sum is that of the summands."""
        first, second = (
            field.take(n, places) for n, places in zip(("input", "residual"), self.summands, strict=True)
        )
        assert first is not None
        return self._in_field(field, form, first + second, {})

    def _in_field(
        self, field: Field, form: Form, total: Value, further: Mapping[str, Value]
    ) -> Mapping[str, Value]:
        """Run a form on a sum; further: terms of the form besides."""
        numbers = field.numbers(eps=self.eps, centred=self.centred, parameter=self.parameter)
        sum_gradient = field.take("grad_new_residual", self.sum_gradient)
        beside = {} if sum_gradient is None else {"grad_new_residual": sum_gradient}
        terms = Terms(
            x=total,
            weight=field.take("weight", self.weight),
            bias=field.take("bias", self.bias),
            grad_output=field.take("grad_output", self.grad_output),
            further={**further, **beside},
        )
        results: dict[str, Value] = {"output": form.forward(numbers, terms), "new_residual": terms.x}
        results["mean"], results["rstd"] = numbers.moments(terms.x)
        return results if terms.grad_output is None else {**results, **form.backward(numbers, terms)}


def plus(value: Enclosure, number: Array) -> Enclosure:
    """Return an enclosure of the exact value plus a float64 number; NaN where that is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        high, tail = two_sum(np.asarray(value.high), number)
        low = tail + value.low
        radius = value.radius + UNIT * np.abs(low) * (1.0 + 4.0 * UNIT)
        radius = np.where(value.radius == 0.0, radius, radius * (1.0 + 4.0 * UNIT))
    lost = ~np.isfinite(number)
    high, radius = np.where(lost, np.nan, high), np.where(lost, np.nan, radius)
    return Enclosure(high=high, low=np.where(lost, np.nan, low), radius=radius)


def _plus_gradient(comparison: Comparison, sum_gradient: Array) -> Comparison:
    """Return a comparison with exact values to which the gradient beside the norm is added."""

    def both(still: Mask) -> Enclosure | Balls:
        exact, numbers = comparison(still), sum_gradient[still]
        if isinstance(exact, Balls):
            with precision(exact.bits):
                pairs = zip(exact.values, numbers.tolist(), strict=True)
                return replace(exact, values=[None if v is None else v + ball(n) for v, n in pairs])
        assert isinstance(exact, Enclosure)
        return plus(exact, numbers)

    return both

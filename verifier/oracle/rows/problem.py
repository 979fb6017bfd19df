"""The problem of a row normalization: layer_norm, rms_norm, group_norm, batch_norm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Terms, Value, constant_statistics
from verifier.oracle.climb import Comparison, arb_rungs
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.problem import Field, RowOperands, RowSolution, Rung
from verifier.oracle.rows.rung_arb import PARAMETER_GRADIENTS, ArbRung, take
from verifier.oracle.rows.solve import solve_rows


@dataclass(frozen=True, kw_only=True)
class RowProblem(RowOperands):
    """Rows to be normalized, forward and backward."""

    @property
    def compares(self) -> bool:
        """False: no result depends on which element is the largest."""
        return False

    def solve(self, rung: Rung = "auto", bits: int | None = None) -> RowSolution:
        """Return the exact answer, enclosed; see `verifier.oracle.solve.solve`."""
        return solve_rows(self, rung, bits)

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        """Yield the rungs: the first answer, double-double, Arb. Only rows with open elements climb."""
        yield "float64", lambda still: first[still]
        exists = np.isfinite(first.high)
        yield "double_double", lambda still: self._second(name, still, exists)
        yield from arb_rungs(ArbRung(self, name, exists).values)

    def _second(self, name: str, still: Mask, exists: Mask) -> Enclosure:
        """Return the open elements in double-double; rows of which none is open are left out."""
        if name in PARAMETER_GRADIENTS:
            return self.solve("double_double").enclosures[name][still]
        open_rows = still.reshape(still.shape[0], -1).any(1)
        part = take(self, np.flatnonzero(open_rows)).solve("double_double")
        found = part.enclosures[name][still[open_rows]]
        hidden = np.where(exists[still], 0.0, np.nan)
        return replace(found, high=found.high + hidden)

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field; a given variance is a running one, and so is the mean."""
        numbers = field.numbers(eps=self.eps, centred=self.centred, parameter=self.parameter)
        terms = Terms(
            x=field.take("input", self.input),
            weight=field.take("weight", self.weight),
            bias=None if self.rstd is not None else field.take("bias", self.bias),
            grad_output=field.take("grad_output", self.grad_output),
        )
        if self.rstd is not None:  # a raw backward op; it returns grad_bias although it takes no bias
            mean = numbers.number(0.0) if self.mean is None else field.take("mean", self.mean)
            numbers = numbers.with_statistics(mean, field.take("rstd", self.rstd))
            return form.backward(numbers, replace(terms, bias=numbers.number(0.0)))
        backward = form.backward
        if self.variance is not None:
            variance = field.take("running_var", self.variance)
            rstd = numbers.rsqrt(variance + numbers.number(numbers.eps))
            numbers = numbers.with_statistics(field.take("running_mean", self.mean), rstd)
            backward = form.evaluation or constant_statistics
        results: dict[str, Value] = {"output": form.forward(numbers, terms)}
        results["mean"], results["rstd"] = numbers.moments(terms.x)
        return results if terms.grad_output is None else {**results, **backward(numbers, terms)}

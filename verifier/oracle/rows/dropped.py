"""The problem of a norm of residual + dropout(input): rows of which one summand is masked and scaled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from verifier.arithmetic.abstract_number import Form, Value
from verifier.arithmetic.formats import Array
from verifier.oracle.balls import ball, precision
from verifier.oracle.climb import Balls, Comparison
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.oracle.problem import Field, Rung
from verifier.oracle.rows.added import AddedRowProblem, AddedSolution

FACTOR = "dropout_factor"
"""Name, among the further terms of a form, of what multiplies the input: the scale where kept, else 0."""
KEPT = "dropout_mask"


@dataclass(frozen=True, kw_only=True)
class DroppedSolution(AddedSolution):
    """The exact answer, enclosed, with that of the sum.

    grad_residual: (rows, columns), the gradient of the sum. grad_input: that times the scale where the input
    is kept, and 0 elsewhere. Both are None without gradients.
    """

    grad_residual: Enclosure | None

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name."""
        found = dict(super().enclosures)
        return found if self.grad_residual is None else {**found, "grad_residual": self.grad_residual}


@dataclass(frozen=True, kw_only=True)
class DroppedRowProblem(AddedRowProblem):
    """Rows that are residual + input * scale where the input is kept, and residual elsewhere.

    summands: input and residual as they are given, (rows, columns) each. kept: (rows, columns), not zero
    where the input is kept. scale: a power of two, so that no product is rounded.
    """

    kept: Array
    scale: float

    @property
    def factor(self) -> Array:
        """What multiplies the input, (rows, columns)."""
        return np.where(self.kept != 0, self.scale, 0.0)

    def solve(self, rung: Rung = "auto", bits: int | None = None) -> DroppedSolution:
        """Return the exact answer, enclosed; see `verifier.oracle.solve.solve`."""
        found = super().solve(rung, bits)
        solution = {f.name: getattr(found, f.name) for f in fields(AddedSolution)}
        total = found.grad_input
        own = None if total is None else scaled(total, self.factor)
        return DroppedSolution(**{**solution, "grad_input": own, "grad_residual": total})

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        """Yield the rungs of the norm of the sum; the gradient of the input is a multiple of the sum's."""
        for rung, comparison in super().rungs(name, first):
            # The first answer is a multiple already.
            yield (
                rung,
                comparison if name != "grad_input" or rung == "float64" else _scaled(comparison, self.factor),
            )

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field, where the sum is that of the summands."""
        factor = field.flags(KEPT, self.kept) * field.scalar(self.scale)
        first, second = (
            field.take(n, places) for n, places in zip(("input", "residual"), self.summands, strict=True)
        )
        assert first is not None
        return self._in_field(field, form, first * factor + second, {FACTOR: factor})


def scaled(value: Enclosure, factor: Array) -> Enclosure:
    """Return an enclosure of the exact value times powers of two, which rounds nothing, or of 0.

    What is multiplied by 0 is 0 where no exact value is, too: no input reaches it.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        high, low, radius = (
            np.where(factor == 0, 0.0, np.asarray(part) * factor)
            for part in (value.high, value.low, value.radius)
        )
    return Enclosure(high=high, low=low, radius=radius)


def _scaled(comparison: Comparison, factor: Array) -> Comparison:
    """Return a comparison with exact values that are multiplied."""

    def multiplied(still: Mask) -> Enclosure | Balls:
        exact, numbers = comparison(still), factor[still]
        if isinstance(exact, Balls):
            with precision(exact.bits):
                pairs = zip(exact.values, numbers.tolist(), strict=True)
                zero = ball(0.0)
                values = [zero if n == 0 else None if v is None else v * ball(n) for v, n in pairs]
                return replace(exact, values=values)
        assert isinstance(exact, Enclosure)
        return scaled(exact, numbers)

    return multiplied

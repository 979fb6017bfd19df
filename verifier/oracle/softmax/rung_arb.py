"""The elements of a softmax as balls: the last rung, of any precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.oracle.balls import Ball, ball, precision
from verifier.oracle.climb import Balls
from verifier.oracle.enclosure import Mask
from verifier.oracle.problem import SoftmaxOperands
from verifier.oracle.softmax.solve import Masked, collect_softmax


class SoftmaxArb:
    """The exact values of chosen elements of "output", "grad_input" or "total" at any precision."""

    def __init__(self, problem: SoftmaxOperands, name: str) -> None:
        self._logarithm, self._scale = problem.logarithm, problem.scale
        self._masks = problem.kept is not None
        self._name = name
        self._operands: Masked = collect_softmax(problem)

    def values(self, still: Mask, bits: int) -> Balls:
        """Return the open elements as balls of that precision; None where no finite exact value exists."""
        with precision(bits):
            if self._name == "total":
                found = [self._total(i) for i in np.flatnonzero(still).tolist()]
            else:
                found = [
                    value for i in np.flatnonzero(still.any(1)).tolist() for value in self._row(still, i)
                ]
        return Balls(values=found, bits=bits)

    def _total(self, i: int) -> Ball | None:
        assert self._operands.x is not None
        return sum(self._powers(self._operands.x, i), ball(0.0)) if self._operands.finite[i] else None

    def _row(self, still: Mask, i: int) -> Iterator[Ball | None]:
        columns = np.flatnonzero(still[i]).tolist()
        sound = self._operands.finite if self._name == "output" else self._operands.finite_gradient
        if not sound[i]:
            return iter([None] * len(columns))
        row = self._output(i, columns) if self._name == "output" else self._gradient(i, columns)
        return iter(row)

    def _scores(self, x: Array, i: int) -> list[Ball]:
        row, added = [ball(a) for a in x[i].tolist()], self._operands.added
        if self._scale != 1.0:
            row = [a * ball(self._scale) for a in row]
        return row if added is None else [a + ball(b) for a, b in zip(row, added[i].tolist(), strict=True)]

    def _shifted(self, x: Array, i: int) -> list[Ball]:
        """Return the scores less one that is nearly the largest, which is as good as the largest here."""
        row, absent = self._scores(x, i), self._operands.absent[i].tolist()
        maximum = max((a for a, gone in zip(row, absent, strict=True) if not gone), key=float)
        return [a - maximum for a in row]

    def _powers(self, x: Array, i: int) -> list[Ball]:
        absent = self._operands.absent[i].tolist()
        shifted = self._shifted(x, i)
        return [ball(0.0) if gone else a.exp() for a, gone in zip(shifted, absent, strict=True)]

    def _output(self, i: int, columns: list[int]) -> list[Ball | None]:
        assert self._operands.x is not None
        powers = self._powers(self._operands.x, i)
        total: Ball = sum(powers, ball(0.0))
        if not self._logarithm:
            return [powers[j] / total for j in columns]
        shifted, logarithm = self._shifted(self._operands.x, i), total.log()
        absent = self._operands.absent[i]
        return [None if absent[j] else shifted[j] - logarithm for j in columns]

    def _chances(self, i: int) -> list[Ball]:
        given = self._operands.given
        if given is None:
            assert self._operands.x is not None
            powers = self._powers(self._operands.x, i)
            total: Ball = sum(powers, ball(0.0))
            return [power / total for power in powers]
        if not self._logarithm:
            return [ball(a) for a in given[i].tolist()]
        absent = self._operands.absent[i].tolist()
        return [
            ball(0.0) if gone else ball(a).exp() for a, gone in zip(given[i].tolist(), absent, strict=True)
        ]

    def _gradient(self, i: int, columns: list[int]) -> list[Ball | None]:
        assert self._operands.gradient is not None
        gradient = [ball(a) for a in self._operands.gradient[i].tolist()]
        chances = self._chances(i)
        if self._logarithm:
            total = sum(gradient, ball(0.0))
            found = {j: gradient[j] - chances[j] * total for j in columns}
        else:
            inner = sum((g * p for g, p in zip(gradient, chances, strict=True)), ball(0.0))
            found = {j: chances[j] * (gradient[j] - inner) for j in columns}
        if self._masks:  # a gradient that comes to a logarithm of -inf is 0, and goes nowhere
            found |= {j: ball(0.0) for j in columns if self._operands.absent[i][j]}
        scale = None if self._scale == 1.0 else ball(self._scale)
        return [value if scale is None else value * scale for value in found.values()]

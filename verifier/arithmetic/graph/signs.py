"""Which terms are never negative, or always positive, whatever the inputs are (a NaN aside)."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids

_ANY = -np.inf
_FLUSHED = 2.0**-100
"""Far above every subnormal number of float32: what is no less is not flushed to zero."""


class Signs:
    """Lower bounds of terms: how small a term can be, if it is not NaN.

    Rounding to nearest is monotone and keeps the numbers of its format: a sum of terms that are not negative
    is no less than each of them, a product of two such is not negative, a root is no less than its operand
    or 1. A product may underflow, so that none counts as positive.
    Approximate quotients and roots (`.approx`, `.full`) are taken to have a relative error below 1/2, and
    the right sign where their results are subnormal.
    """

    def __init__(self, terms: SharedTerms, edges: Ids) -> None:
        """Find the signs of what the edges reach."""
        self._terms = terms
        self._least: dict[int, float] = {}
        for term in reached(terms, edges):
            self._least[int(term)] = self._of_term(int(term))

    def positive(self, edge: int) -> bool:
        """Return whether an edge is above zero, or NaN."""
        return self._low(edge) > 0.0

    def nonzero(self, edge: int) -> bool:
        """Return whether an edge is no zero: it or its negative is above zero, or NaN."""
        return self._least[edge >> 1] > 0.0

    def nonnegative(self, edge: int) -> bool:
        """Return whether an edge is not below zero, or NaN."""
        return self._low(edge) >= 0.0

    def _low(self, edge: int) -> float:
        if edge & 1:
            return 0.0 if float(self._terms.number[edge >> 1]) == 0.0 else _ANY
        return self._least[edge >> 1]

    def _of_term(self, term: int) -> float:
        number = float(self._terms.number[term])
        if not np.isnan(number):
            return number
        name = self._terms.names[int(self._terms.operation[term])]
        edges = [int(edge) for edge in self._terms.edges[term] if edge >= 0]
        family, *rest = name.split(".")
        if family == "sqrt":
            return self._of_root(rest[:-1], self._low(edges[0]))
        if family == "div" and rest[:-1] in ([], ["full"]):
            return 0.0 if self.nonnegative(edges[0]) and self.positive(edges[1]) else _ANY
        if len(rest) > 1:  # `.ftz` and `.approx` may give a zero
            return _ANY
        if family in {"add", "fma"}:
            return self._of_sum(family, edges)
        if family == "mul":
            return 0.0 if self._product(*edges) else _ANY
        if family == "ite":
            return 0.0 if self._choice(*edges) else _ANY
        if family == "max":
            return self._of_larger(edges)
        return 0.0 if family == "abs" else _ANY

    def _of_root(self, how: list[str], low: float) -> float:
        if not how:
            return min(low, 1.0) if low >= 0.0 else _ANY
        return min(low, 1.0) / 2.0 if "approx" in how and low >= _FLUSHED else _ANY

    def _of_sum(self, family: str, edges: list[int]) -> float:
        first = self._product(*edges[:2]) if family == "fma" else self.nonnegative(edges[0])
        if not first or not self.nonnegative(edges[-1]):
            return _ANY
        return max(map(self._low, edges if family == "add" else edges[-1:]))

    def _product(self, first: int, second: int) -> bool:
        return first == second or (self.nonnegative(first) and self.nonnegative(second))

    def _of_larger(self, edges: list[int]) -> float:
        numbers = [self._terms.number[edge >> 1] for edge in edges]
        floors = [n for n, edge in zip(numbers, edges, strict=True) if not np.isnan(n) and not edge & 1]
        if floors:  # `max` gives the constant where the other is NaN
            return float(max(floors))
        return 0.0 if all(map(self.nonnegative, edges)) else _ANY

    def _choice(self, predicate: int, then: int, otherwise: int) -> bool:
        """Return whether a choice is not below zero: `x < 0 ? 0 : x`, or a choice among such."""
        if not self.nonnegative(then):
            return False
        if self.nonnegative(otherwise):
            return True
        asked = predicate >> 1
        family, *rest = self._terms.names[int(self._terms.operation[asked])].split(".")
        x, bound = (int(edge) for edge in self._terms.edges[asked][:2])
        zero = float(self._terms.number[bound >> 1]) == 0.0
        below = family == "setp" and rest[0] in {"lt", "le"} and len(rest) == 2
        return below and not predicate & 1 and zero and x == otherwise


def reached(terms: SharedTerms, edges: Ids) -> Ids:
    """Return the terms that edges reach, operands before uses."""
    seen = np.zeros(terms.count, dtype=np.bool_)
    frontier = np.unique(edges >> 1)
    while frontier.size:
        seen[frontier] = True
        below = terms.edges[frontier].ravel()
        below = np.unique(below[below >= 0] >> 1)
        frontier = below[~seen[below]]
    return np.flatnonzero(seen)

"""Which terms are never negative, or always positive, whatever the inputs are (a NaN aside)."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids

_ANY, _NONNEGATIVE, _POSITIVE = 0, 1, 2


class Signs:
    """Signs of edges: not below zero or NaN, above zero or NaN.

    Rounding to nearest is monotone and keeps zeros: a sum of numbers that are not negative is no less than
    each of them, a product of two such is not negative, a root of a positive number is positive. A product
    may underflow, so that no product counts as positive.
    """

    def __init__(self, terms: SharedTerms, edges: Ids) -> None:
        """Find the signs of what the edges reach."""
        self._terms = terms
        self._known: dict[int, int] = {}
        for term in reached(terms, edges):
            self._known[int(term)] = self._of_term(int(term))

    def positive(self, edge: int) -> bool:
        """Return whether an edge is above zero, or NaN."""
        return not edge & 1 and self._known[edge >> 1] == _POSITIVE

    def nonzero(self, edge: int) -> bool:
        """Return whether an edge is no zero: it or its negative is above zero, or NaN."""
        return self._known[edge >> 1] == _POSITIVE

    def nonnegative(self, edge: int) -> bool:
        """Return whether an edge is not below zero, or NaN."""
        if edge & 1:
            return float(self._terms.number[edge >> 1]) == 0.0
        return self._known[edge >> 1] >= _NONNEGATIVE

    def _of_term(self, term: int) -> int:
        number = float(self._terms.number[term])
        if not np.isnan(number):
            return _POSITIVE if number > 0.0 else _NONNEGATIVE
        name = self._terms.names[int(self._terms.operation[term])]
        edges = [int(edge) for edge in self._terms.edges[term] if edge >= 0]
        family, *rest = name.split(".")
        if len(rest) > 1:  # `.ftz` and `.approx` may give a zero
            return _ANY
        if family in {"add", "fma"}:
            return self._of_sum(family, edges)
        if family == "mul":
            return _NONNEGATIVE if self._product(*edges) else _ANY
        if family == "div":
            return _NONNEGATIVE if self.nonnegative(edges[0]) and self.positive(edges[1]) else _ANY
        if family == "sqrt":
            return self._known[edges[0] >> 1] if self.nonnegative(edges[0]) else _ANY
        if family == "ite":
            return _NONNEGATIVE if self._choice(*edges) else _ANY
        if family == "max":
            return self._of_larger(edges)
        return _NONNEGATIVE if family == "abs" else _ANY

    def _of_sum(self, family: str, edges: list[int]) -> int:
        first = self._product(*edges[:2]) if family == "fma" else self.nonnegative(edges[0])
        if not first or not self.nonnegative(edges[-1]):
            return _ANY
        summands = edges if family == "add" else edges[-1:]
        return _POSITIVE if any(map(self.positive, summands)) else _NONNEGATIVE

    def _product(self, first: int, second: int) -> bool:
        return first == second or (self.nonnegative(first) and self.nonnegative(second))

    def _of_larger(self, edges: list[int]) -> int:
        numbers = self._terms.number[[edge >> 1 for edge in edges]]
        floors = [n for n, edge in zip(numbers, edges, strict=True) if not np.isnan(n) and not edge & 1]
        if floors:  # `max` gives the constant where the other is NaN
            return _POSITIVE if max(floors) > 0.0 else _NONNEGATIVE
        return _NONNEGATIVE if all(map(self.nonnegative, edges)) else _ANY

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

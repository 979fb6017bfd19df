"""Which terms are never negative, or always positive, whatever the inputs are (a NaN aside)."""

from __future__ import annotations

from collections.abc import Iterator

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
        return self._least[edge >> 1] > 0.0 or self._sums_powers(edge >> 1)

    def _sums_powers(self, term: int) -> bool:
        """Return whether a term sums 2**(c * (x - m)), c > 0, over all x of which m is the largest.

        Where these are finite, one x is m, its power is 1 (PTX ISA, ex2.approx of zeros), none is negative.
        """
        met: set[int] = set()
        largest: set[int] = set()
        for edge in self._leaves(2 * term, "add"):
            pair = self._shifted(edge)
            if pair is None:
                return False
            met.add(pair[0])
            largest.add(pair[1])
        return len(largest) == 1 and set(self._leaves(largest.pop(), "max")) <= met

    def _leaves(self, edge: int, family: str) -> Iterator[int]:
        """Yield the edges that are joined into an edge by operations of a family."""
        pending, seen = [edge], set()
        while pending:
            found = pending.pop()
            if found in seen:
                continue
            seen.add(found)
            if found & 1 or self._name(found >> 1).partition(".")[0] != family:
                yield found
            else:
                pending += [int(below) for below in self._terms.edges[found >> 1] if below >= 0]

    def _shifted(self, edge: int) -> tuple[int, int] | None:
        """Return x and m of 2**(c * (x - m)), c > 0, or None."""
        if edge & 1 or not self._name(edge >> 1).startswith("ex2.approx"):
            return None
        product = int(self._terms.edges[edge >> 1][0])
        if self._name(product >> 1).partition(".")[0] != "mul":
            return None
        a, b = (int(factor) for factor in self._terms.edges[product >> 1][:2])
        scale, rest = (a, b) if self._low(a) > 0.0 and not np.isnan(self._terms.number[a >> 1]) else (b, a)
        if not self._terms.number[scale >> 1] > 0.0 or (scale | rest) & 1:
            return None
        if self._name(rest >> 1).partition(".")[0] != "add":
            return None
        turned = [int(part) ^ (product & 1) for part in self._terms.edges[rest >> 1][:2]]
        x, m = sorted(turned, key=lambda part: part & 1)
        return (x, m ^ 1) if not x & 1 and m & 1 else None

    def _name(self, term: int) -> str:
        return self._terms.names[int(self._terms.operation[term])]

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

"""Which terms are never negative, or always positive, whatever the inputs are (a NaN aside)."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, distinct, ids
from verifier.arithmetic.graph.levels import levels_of

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
_ANY = -np.inf
_LARGEST_SHARE = 0.75
_DEEPEST = 100
"""So many sums of powers are followed into each other."""
_FLUSHED = 2.0**-100
"""Far above every subnormal number of float32: what is no less is not flushed to zero."""


class Signs:
    """Lower bounds of terms: how small a term can be, if it is not NaN.

    Rounding to nearest is monotone and keeps the numbers of its format: a sum of terms that are not negative
    is no less than each of them, a product of two such is not negative, a root is no less than its operand
    or 1. A product may underflow, so that none counts as positive.
    In (x - m) * (x - t), t = m + (x - m) * f with a constant f of at most 3/4, or a quotient, t lies between
    m and x, so that the product is not negative (docs/explanation/certificates.md). Where x or m is a product
    that was fused into a difference, that is one of other numbers, and nothing is said of it.
    Approximate quotients and roots (`.approx`, `.full`) are taken to have a relative error below 1/2, and
    the right sign where their results are subnormal.
    """

    def __init__(
        self, terms: SharedTerms, edges: Ids, either: Ids | None = None, fused: Ids | None = None
    ) -> None:
        """Find the signs of what the edges reach.

        either: terms that may stand for two numbers; what reaches them is equal to nothing here. fused: sums
        of which a product was fused somewhere, and so was not the number that its term is elsewhere.
        """
        self._terms = terms
        self._several = _reaching(terms, either)
        self._fused: Mask = np.zeros(terms.count, dtype=np.bool_)
        self._fused[[] if fused is None else fused] = True
        self._least: Array = np.full(terms.count, _ANY)
        self._falls: Mask = np.zeros(terms.count, dtype=np.bool_)
        self._powers: dict[int, bool] = {}
        self._codes: dict[str, Mask] = {}
        self._nested = 0
        self._asked, self._answer = (b"", b""), ids(np.zeros(0))
        for name, level in _by_operation(terms, reached(terms, edges)):
            self._least[level] = self._of_terms(name, level)
            self._falls[level] = self._not_above_zero(name, level)

    def positive(self, edge: int) -> bool:
        """Return whether an edge is above zero, or NaN."""
        return self._low(edge) > 0.0

    def nonzero(self, edge: int) -> bool:
        """Return whether an edge is no zero: it or its negative is above zero, or NaN."""
        return bool(self._least[edge >> 1] > 0.0) or self._sums_powers(edge >> 1)

    def _sums_powers(self, term: int) -> bool:
        """Return whether a term sums s * 2**(c * (x - m)), c > 0, s above zero, m the largest x of all.

        Where these are finite, one x is m, its power is 1 (PTX ISA, ex2.approx of zeros), none is negative.
        """
        if term not in self._powers:
            self._powers[term] = False  # until it is shown; nothing lies below itself
            if self._nested < _DEEPEST:
                self._nested += 1
                self._powers[term] = self._has_largest(term)
                self._nested -= 1
        return self._powers[term]

    def _has_largest(self, term: int) -> bool:
        met, largest = self._exponentials(term) or (set[int](), set[int]())
        for weight, power in () if met else self._weighted(2 * term):
            pair = self._shifted(power)
            if pair is None or not (weight is None or self._above_zero(weight)):
                return False
            met.add(pair[0])
            largest.add(pair[1])
        if any(self._several[x >> 1] for x in met):  # x may be one number here and another in m
            return False
        return len(largest) == 1 and {*self._joined(largest.pop(), "max", met).tolist()} <= met

    def _exponentials(self, term: int) -> tuple[set[int], set[int]] | None:
        """Return all x and all m of a plain sum of exp(x - m), as `_shifted` has them.

        None: it is no such sum, or an x is a choice.
        """
        powers = self._joined(2 * term, "add")
        if not (self._of_family("exp", powers) & (powers & 1 == 0)).all():
            return None
        rests = self._terms.edges[powers >> 1, 0]
        parts = self._terms.edges[rests >> 1, :2] ^ (rests & 1)[:, None]
        x, m = np.where(parts[:, :1] & 1 == 1, parts[:, ::-1], parts).T
        rounded = self._of_family("add", rests) & ~self._fused[rests >> 1]
        if not (rounded & (x & 1 == 0) & (m & 1 == 1)).all():
            return None
        return None if self._of_family("ite", x).any() else ({*x.tolist()}, {*(m ^ 1).tolist()})

    def _joined(self, edge: int, family: str, stop: Collection[int] = ()) -> Ids:
        """Return the edges that operations of two operands of a family join; stop: not looked into."""
        edges, found, ends = np.array([edge]), list[Ids](), ids([*stop])
        while edges.size:
            inner = (edges & 1 == 0) & self._of_family(family, edges) & ~np.isin(edges, ends)
            found.append(edges[~inner])
            edges = distinct(self._terms.edges[edges[inner] >> 1, :2].ravel())
        return distinct(np.concatenate(found))

    def _of_family(self, family: str, edges: Ids) -> Mask:
        codes = [code for code, name in enumerate(self._terms.names) if name.partition(".")[0] == family]
        return np.isin(self._terms.operation[edges >> 1], codes)

    def _above_zero(self, edge: int) -> bool:
        return self._low(edge) > 0.0 or (not edge & 1 and self._sums_powers(edge >> 1))

    def _weighted(self, edge: int) -> Iterator[tuple[int | None, int]]:
        """Yield the terms of a sum as weight and power, None where it has no weight."""
        pending = [edge]
        while pending:
            for leaf in self._leaves(pending.pop(), "add"):
                name, edges = self._name(leaf >> 1), self._terms.edges[leaf >> 1]
                if not leaf & 1 and _rounded(name, "fma"):
                    pending.append(int(edges[2]))
                elif leaf & 1 or not _rounded(name, "mul"):
                    yield None, leaf
                    continue
                a, b = int(edges[0]), int(edges[1])
                yield (b, a) if self._shifted(a) else (a, b)

    def _leaves(self, edge: int, family: str) -> Iterator[int]:
        """Yield the edges that are joined into an edge by operations of a family that flush nothing."""
        pending, seen = [edge], set()
        while pending:
            found = pending.pop()
            if found in seen:
                continue
            seen.add(found)
            if found & 1 or not _rounded(self._name(found >> 1), family):
                yield found
            else:
                pending += [int(below) for below in self._terms.edges[found >> 1] if below >= 0]

    def _shifted(self, edge: int) -> tuple[int, int] | None:
        """Return x and m of 2**(c * (x - m)), c > 0, or of exp(x - m); None for all else."""
        if not edge & 1 and self._name(edge >> 1).startswith("exp."):
            return self._apart(int(self._terms.edges[edge >> 1][0]))
        if edge & 1 or not self._name(edge >> 1).startswith("ex2.approx"):
            return None
        product = int(self._terms.edges[edge >> 1][0])
        if self._name(product >> 1).partition(".")[0] != "mul":
            return None
        a, b = (int(factor) for factor in self._terms.edges[product >> 1][:2])
        scale, rest = (a, b) if self._low(a) > 0.0 and not np.isnan(self._terms.number[a >> 1]) else (b, a)
        if not self._terms.number[scale >> 1] > 0.0 or (scale | rest) & 1:
            return None
        return self._apart(rest ^ (product & 1))

    def _apart(self, rest: int) -> tuple[int, int] | None:
        """Return x and m of x - m, x and m no negatives; None for all else."""
        if self._name(rest >> 1).partition(".")[0] != "add" or self._fused[rest >> 1]:
            return None
        turned = [int(part) ^ (rest & 1) for part in self._terms.edges[rest >> 1][:2]]
        x, m = sorted(turned, key=lambda part: part & 1)
        return (self._surely(x), m ^ 1) if not x & 1 and m & 1 else None

    def _surely(self, edge: int) -> int:
        """Return x for a choice `s > 0 ? x : y` where s is above zero, all else as it is."""
        if edge & 1 or self._name(edge >> 1) != "ite":
            return edge
        asked, then, _ = (int(part) for part in self._terms.edges[edge >> 1])
        family, _, kind = self._name(asked >> 1).rpartition(".")
        if asked & 1 or family != "setp.gt" or kind not in {"f32", "f64"}:
            return edge
        above, bound = (int(part) for part in self._terms.edges[asked >> 1][:2])
        return then if self._terms.number[bound >> 1] == 0.0 and self._above_zero(above) else edge

    def _name(self, term: int) -> str:
        return self._terms.names[int(self._terms.operation[term])]

    def nonnegative(self, edge: int) -> bool:
        """Return whether an edge is not below zero, or NaN."""
        return self._low(edge) >= 0.0

    def _low(self, edge: int) -> float:
        return float(self._lows(np.array([edge]))[0])

    def _lows(self, edges: Ids) -> Array:
        """Return the lower bounds of edges; of a negative one 0 where the term is never above that."""
        negative = _if((self._terms.number[edges >> 1] == 0.0) | self._falls[edges >> 1])
        found: Array = np.where(edges & 1, negative, self._least[edges >> 1])
        return found

    def _of_terms(self, name: str, level: Ids) -> Array:
        """Return the lower bounds of terms (m,) of one operation, whose operands have theirs."""
        if name == "constant":
            return self._terms.number[level]
        edges, nothing = self._terms.edges.take(level, axis=0), np.full(len(level), _ANY)
        family, *rest = name.split(".")
        if edges[0, 0] < 0:
            return nothing
        if family == "sqrt":
            return self._of_root(rest[:-1], self._lows(edges[:, 0]))
        if family == "div" and rest[:-1] in ([], ["full"]):
            return _if((self._lows(edges[:, 0]) >= 0.0) & (self._lows(edges[:, 1]) > 0.0))
        if family in {"exp", "ex2"}:  # PTX ISA: results from +0 to infinity
            return np.zeros(len(level))
        if len(rest) > 1:  # `.ftz` and `.approx` may give a zero
            return nothing
        if family in {"add", "fma"}:
            return self._of_sums(family, edges)
        if family == "mul":
            return _if(self._signs(edges[:, 0], edges[:, 1]) > 0)
        if family == "ite":
            lower = np.minimum(self._lows(edges[:, 1]), self._lows(edges[:, 2]))
            return np.where(lower >= 0.0, lower, _if(self._choices(edges)))
        if family == "max":
            return self._of_larger(edges)
        return np.zeros(len(level)) if family == "abs" else nothing

    def _of_root(self, how: list[str], low: Array) -> Array:
        if not how:
            return np.where(low >= 0.0, np.minimum(low, 1.0), _ANY)
        return np.where(("approx" in how) & (low >= _FLUSHED), np.minimum(low, 1.0) / 2.0, _ANY)

    def _of_sums(self, family: str, edges: Ids) -> Array:
        if family == "fma":
            low = self._lows(edges[:, 2])
            return np.where((self._signs(edges[:, 0], edges[:, 1]) > 0) & (low >= 0.0), low, _ANY)
        low, other = self._lows(edges[:, 0]), self._lows(edges[:, 1])
        return np.where((low >= 0.0) & (other >= 0.0), np.maximum(low, other), _ANY)

    def _not_above_zero(self, name: str, level: Ids) -> Mask:
        """Return whether terms (m,), rounded to nearest, are never above zero, or are NaN."""
        edges = self._terms.edges.take(level, axis=0)
        if _rounded(name, "mul"):
            return np.asarray(self._signs(edges[:, 0], edges[:, 1]) < 0)
        if _rounded(name, "div"):
            return np.asarray((self._lows(edges[:, 0] ^ 1) >= 0.0) & (self._lows(edges[:, 1]) > 0.0))
        if _rounded(name, "fma"):
            falls = self._signs(edges[:, 0], edges[:, 1]) < 0
            return np.asarray(falls & (self._lows(edges[:, 2] ^ 1) >= 0.0))
        if _rounded(name, "add"):
            return np.asarray((self._lows(edges[:, 0] ^ 1) >= 0.0) & (self._lows(edges[:, 1] ^ 1) >= 0.0))
        return np.zeros(len(level), dtype=np.bool_)

    def _signs(self, first: Ids, second: Ids) -> Ids:
        """Return 1 for products that are never negative, -1 for those never positive, 0 for others."""
        asked = first.tobytes(), second.tobytes()
        if self._asked != asked:  # which each level is twice
            self._asked, self._answer = asked, self._signs_of(first, second)
        return self._answer

    def _signs_of(self, first: Ids, second: Ids) -> Ids:
        square = (first >> 1 == second >> 1) & ~self._several[first >> 1]
        found = np.where(square, 1 - 2 * ((first ^ second) & 1), 0)
        for one, other in ((0, 0), (1, 1), (0, 1), (1, 0)):
            fits = (self._lows(first ^ one) >= 0.0) & (self._lows(second ^ other) >= 0.0)
            found = np.where((found == 0) & fits, -1 if one ^ other else 1, found)
        sums, products = (self._are(name, first, second) for name in ("add", "mul"))
        composed = (sums | products).all(axis=0) | self._scaled(first) | self._scaled(second)
        open_ = np.flatnonzero((found == 0) & composed)
        found[open_] = self._of_factors(first[open_], second[open_])
        return ids(found)

    def _are(self, family: str, *edges: Ids) -> Mask:
        """Return which edges, (k, m) for k arrays of them, are of a family that is rounded to nearest."""
        if family not in self._codes:
            self._codes[family] = np.array([_rounded(n, family) for n in self._terms.names], dtype=np.bool_)
        found: Mask = self._codes[family][self._terms.operation[np.stack(edges) >> 1]]
        return found

    def _scaled(self, edges: Ids) -> Mask:
        """Return whether edges are products with a constant."""
        factors = np.maximum(self._terms.edges[edges >> 1, :2], 0) >> 1
        constant = ~np.isnan(self._terms.number[factors]).all(axis=1)
        return np.asarray(self._are("mul", edges)[0] & constant)

    def _of_factors(self, first: Ids, second: Ids) -> Ids:
        """Return the signs of products, constant factors left out: see `_signs`."""
        first, second = self._without_constant(first), self._without_constant(second)
        turned = (first ^ second) & 1
        found = np.where(first >> 1 == second >> 1, 1 - 2 * turned, 0)
        for one, other in ((0, 0), (0, 1), (1, 0), (1, 1)):
            fits = (self._lows(first ^ one) >= 0.0) & (self._lows(second ^ other) >= 0.0)
            found = np.where((found == 0) & fits, -1 if one ^ other else 1, found)
        for before, after in ((first, second), (second, first)):
            between = self._between(before >> 1, after >> 1)
            found = np.where(found == 0, np.where(turned == 1, -between, between), found)
        found[self._several[first >> 1] | self._several[second >> 1]] = 0
        return ids(found)

    def _without_constant(self, edges: Ids) -> Ids:
        """Return x for each c * x, c a constant that is not NaN, with the sign of the product."""
        found, pending = edges.copy(), np.arange(len(edges))
        while pending.size:
            edge = found[pending]
            a, b = self._terms.edges[edge >> 1, :2].T
            of_data = np.isnan(self._terms.number[a >> 1])
            scaled = self._are("mul", edge)[0] & (of_data != np.isnan(self._terms.number[b >> 1]))
            constant, other = np.where(of_data, b, a), np.where(of_data, a, b)
            found[pending[scaled]] = (other ^ ((edge ^ constant) & 1))[scaled]
            pending = pending[scaled]
        return found

    def _between(self, before: Ids, after: Ids) -> Ids:
        """Return the signs of products of x - m and x - t, t between m and x; 0 where that is not so."""
        found = np.zeros(len(before), dtype=np.int64)
        both = self._differs(before) & self._differs(after)
        first, second = self._terms.edges[before, :2], self._terms.edges[after, :2]
        for own, other in ((0, 0), (0, 1), (1, 0), (1, 1)):
            x, m, again, t = first[:, own], first[:, 1 - own], second[:, other], second[:, 1 - other]
            at = np.flatnonzero(both & (found == 0) & (x >> 1 == again >> 1))
            share, turned = self._share(t[at] >> 1, m[at] >> 1, before[at])
            fits = (share > 0.0) & (share <= _LARGEST_SHARE) & ((turned ^ x[at]) & 1 == 0)
            found[at[fits]] = 1 - 2 * ((x ^ again) & 1)[at[fits]]
        return found

    def _differs(self, terms: Ids) -> Mask:
        """Return which terms are sums of two, of which one is subtracted, and neither is a fused product."""
        a, b = self._terms.edges[terms, :2].T
        return np.asarray(self._are("add", 2 * terms)[0] & ((a ^ b) & 1 == 1) & ~self._fused[terms])

    def _share(self, t: Ids, m: Ids, difference: Ids) -> tuple[Array, Ids]:
        """Return how much of differences t adds to m, and 1 where it subtracts; 0.0 for any other t."""
        edges = self._terms.edges.take(t, axis=0)
        fused = self._are("fma", 2 * t)[0] & (edges[:, 2] == 2 * m)
        first = edges[:, 0] == 2 * m
        product = np.where(first, edges[:, 1], edges[:, 0])
        added = self._are("add", 2 * t)[0] & (first | (edges[:, 1] == 2 * m))
        factors = np.where(fused[:, None], edges[:, :2], self._terms.edges[product >> 1, :2])
        divides = self._are("div", product)[0] & (factors[:, 0] >> 1 == difference)
        added &= self._are("mul", product)[0] | divides
        added &= ~(self._fused[t] & self._of_family("mul", 2 * m))  # perhaps it is m that was fused
        added &= ~(self._fused[t] & self._of_family("div", 2 * m))
        share, turned = self._part(factors, difference)
        inverse = np.divide(1.0, share, out=np.zeros_like(share), where=share != 0.0)
        share = np.where(added & divides, inverse, share)
        turned = np.where(added, turned ^ (product & 1), turned)
        return np.where(fused | added, share, 0.0), np.where(fused | added, turned, 0)

    def _part(self, factors: Ids, difference: Ids) -> tuple[Array, Ids]:
        """Return the other factors of differences, constants, and 1 where the sign is turned."""
        share, turned = np.zeros(len(factors)), np.zeros(len(factors), dtype=np.int64)
        for own, other in ((1, 0), (0, 1)):
            number = self._terms.number[factors[:, other] >> 1]
            fits = (factors[:, own] >> 1 == difference) & ~np.isnan(number)
            share, turned = (
                np.where(fits, number, share),
                np.where(fits, (factors[:, own] ^ factors[:, other]) & 1, turned),
            )
        return share, turned

    def _of_larger(self, edges: Ids) -> Array:
        numbers = self._terms.number[edges[:, :2] >> 1]
        floors = np.where(np.isnan(numbers) | (edges[:, :2] & 1 == 1), _ANY, numbers).max(axis=1)
        both = (self._lows(edges[:, 0]) >= 0.0) & (self._lows(edges[:, 1]) >= 0.0)
        # `max` gives the constant where the other is NaN
        return np.where(floors > _ANY, floors, _if(both))

    def _choices(self, edges: Ids) -> Mask:
        """Return whether choices are not below zero: `x < 0 ? 0 : x`, or a choice among such."""
        asked, then, otherwise = edges[:, 0], edges[:, 1], edges[:, 2]
        below = np.isin(self._terms.operation[asked >> 1], _codes_asking_below(self._terms))
        x, bound = self._terms.edges[asked >> 1, 0], self._terms.edges[asked >> 1, 1]
        zero = self._terms.number[bound >> 1] == 0.0
        clamped = below & (asked & 1 == 0) & zero & (x == otherwise)
        return np.asarray((self._lows(then) >= 0.0) & ((self._lows(otherwise) >= 0.0) | clamped))


def _reaching(terms: SharedTerms, wanted: Ids | None) -> Mask:
    """Return which terms reach any of those wanted, these included, (terms,)."""
    return terms.reaching(ids([]) if wanted is None else wanted)


def _rounded(name: str, family: str) -> bool:
    """Whether an operation is of a family, rounds to nearest and keeps subnormal numbers."""
    return name.startswith(f"{family}.") and name.count(".") == 1


def _if(right: Mask) -> Array:
    """Return 0 where something is not negative, and no bound elsewhere."""
    return np.where(right, 0.0, _ANY)


def _codes_asking_below(terms: SharedTerms) -> list[int]:
    asked = [name.split(".") for name in terms.names]
    return [
        code
        for code, (family, *rest) in enumerate(asked)
        if family == "setp" and len(rest) == 2 and rest[0] in {"lt", "le"}
    ]


def _by_operation(terms: SharedTerms, wanted: Ids) -> Iterator[tuple[str, Ids]]:
    """Yield terms of one operation and level together, operands first."""
    places = np.full(terms.count + 1, -1, dtype=np.int64)
    places[wanted] = np.arange(len(wanted))
    edges = terms.edges.take(wanted, axis=0)
    for level in levels_of(places[np.where(edges < 0, terms.count, edges >> 1)]):
        found = wanted[level]
        codes = terms.operation[found]
        for code in distinct(codes).tolist():
            yield terms.names[code], found[codes == code]


def reached(terms: SharedTerms, edges: Ids) -> Ids:
    """Return the terms that edges reach, operands before uses."""
    seen = np.zeros(terms.count, dtype=np.bool_)
    frontier = distinct(edges.ravel() >> 1)
    while frontier.size:
        seen[frontier] = True
        below = terms.edges.take(frontier, axis=0).ravel()
        below = below[below >= 0] >> 1
        frontier = distinct(below[~seen[below]])
    return np.flatnonzero(seen)

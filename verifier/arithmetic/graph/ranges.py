"""Which inputs keep every value of a graph finite: intervals of all terms, rounded as each format rounds.

The intervals are those of all inputs of at most some magnitude. Every operation here is monotone in each
operand on each side of zero and rounding is monotone, so that the ends of an interval of results are results
of ends, rounded alike. An end is computed in float64, moved outward by one step, and rounded: it is no less
than the rounded exact end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.formats import Array, Format
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import FULL_NAMES, format_of
from verifier.arithmetic.graph.graph import Graph, Ids, distinct
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.opcodes import Opcode, in_format, opcode
from verifier.arithmetic.simulated import round_to

APPROXIMATE = 2.0**-20
"""More than the documented relative error of each approximate instruction that is followed."""
_FOLLOWED = {
    "div.full.f32": "div",
    "rcp.approx.f32": "rcp",
    "rcp.rn.f32": "rcp",
    "sqrt.approx.f32": "sqrt",
    "rsqrt.approx.f32": "rsqrt",
    "rsqrt.approx.ftz.f32": "rsqrt",
}
_FAMILIES = frozenset({
    *("add", "mul", "fma", "divfma", "div", "rcp", "sqrt", "rsqrt"),
    *("max", "min", "abs", "narrow", "choice"),
})  # fmt: skip
"""Families of operations of which something is known: those of `results`, and choices."""
_LEAST, _MOST, _AT_ONCE = -10, 128, 12
"""The exponents that are tried, the last one excluded, and about how many at once."""
_SQUARE, _COMPARED = np.uint64(1), np.uint64(2)
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """The least and largest number that each of some terms can be, (n,)."""

    low: Array
    high: Array

    def __getitem__(self, index: Ids | Mask) -> Intervals:
        """Return some of them."""
        return Intervals(low=self.low[index], high=self.high[index])


@dataclass(frozen=True, kw_only=True)
class Finite:
    """Up to which magnitude of all arguments' elements every value is finite: 2**exponent.

    None: for no power of two that was tried; `why` then names a value that was not bounded.
    """

    exponent: int | None
    why: str = ""


def finite_below(graph: Graph) -> Finite:
    """Return a magnitude that all elements of arguments may have so that all values of a graph are finite.

    All: also those that no result depends on in the end. The exponents -10 to 127 are tried.
    """
    terms = SharedTerms()
    form = Normaliser(terms, "EZ").normal(graph)
    return finite_terms(terms, form.either)


def finite_terms(terms: SharedTerms, either: Ids) -> Finite:
    """Return what `finite_below` does, of the terms of a graph that was formed by claims E and Z alone.

    either: terms that may stand for two numbers; the product of two that reach them is no square.
    """
    for code in np.unique(terms.operation[: terms.count]).tolist():
        if not _understood(terms.names[code]):
            first = int(np.flatnonzero(terms.operation[: terms.count] == code)[0])
            return Finite(exponent=None, why=terms.text(2 * first))
    alike = _alike(terms, terms.reaching(either))
    order, known, step = _order(alike), _LEAST, _MOST - _LEAST
    lost = _first_lost(alike, order, [known])[0]
    if lost >= 0:
        return Finite(exponent=None, why=alike.text(2 * lost))
    while step > 1:  # finite at the known exponent, and not, or not tried, `step` above it
        each = max(step // _AT_ONCE, 1)
        tried = list(range(known + each, min(known + step, _MOST), each))
        lost_at = [place for place, term in enumerate(_first_lost(alike, order, tried)) if term >= 0]
        known, step = ([known, *tried][min(lost_at, default=len(tried))], each)
    return Finite(exponent=known)


def _first_lost(terms: SharedTerms, order: list[tuple[str, Ids]], exponents: list[int]) -> list[int]:
    """Return for each exponent the first term that may be infinite, or is not understood; -1: there is none.

    Elements of arguments reach 2**exponent.
    """
    most = 2.0 ** np.array(exponents, dtype=np.float64)
    low, high = np.full((terms.count, len(most)), -np.inf), np.full((terms.count, len(most)), np.inf)
    known, found = Intervals(low=low, high=high), np.full(len(most), -1, dtype=np.int64)
    for name, level in order:
        bounds = _of_terms(terms, name, level, known, most)
        low[level], high[level] = bounds.low, bounds.high
        lost = ~(np.isfinite(bounds.low) & np.isfinite(bounds.high))
        if not _is_truth(name) and lost.any():
            found = np.where((found < 0) & lost.any(axis=0), level[lost.argmax(axis=0)], found)
            if (found >= 0).all():
                break
    return [int(term) for term in found]


def _order(terms: SharedTerms) -> list[tuple[str, Ids]]:
    """Return terms of one operation and level together, operands first."""
    edges = terms.edges[: terms.count]
    found = []
    for level in levels_of(np.where(edges < 0, -1, edges >> 1)):
        codes = terms.operation[level]
        found += [(terms.names[code], level[codes == code]) for code in distinct(codes).tolist()]
    return found


def _alike(terms: SharedTerms, several: Mask) -> SharedTerms:
    """Return a table in which terms are one that have the same interval: they differ in elements alone.

    value: of an operation, whether its first two operands are one term (`_SQUARE`), and whether a choice is
    between what was compared and another (`_COMPARED`); operands that are alike need not be the same, nor
    those that may stand for several numbers (terms + 1,).
    """
    found, place = SharedTerms(), np.full(terms.count, -1, dtype=np.int64)
    for name, level in _order(terms):
        edges = terms.edges.take(level, axis=0)
        if name == "constant":
            place[level] = found.constants(terms.number[level]) >> 1
            continue
        alike = np.where(edges < 0, -1, 2 * place[edges >> 1] | (edges & 1))
        told = np.zeros(len(level), dtype=np.uint64)
        if (edges >= 0).any():
            same = (edges[:, 0] == edges[:, 1]) & ~several[edges[:, 0] >> 1]
            told |= np.where(same, _SQUARE, np.uint64(0))
            compared = (terms.edges[edges[:, 0] >> 1, 0] == edges[:, 2]) & ~several[edges[:, 2] >> 1]
            told |= np.where(compared & (name.partition(".")[0] == "ite"), _COMPARED, np.uint64(0))
        place[level] = found.shared(name, alike, told)
    return found


def _understood(name: str) -> bool:
    """Whether anything is known of the results of an operation."""
    if name == "constant" or _is_truth(name):
        return True
    if name.startswith("input:"):
        return bool(name.rpartition(":")[2])
    meant = _meaning(name)
    return meant is not None and _FOLLOWED.get(name, meant.family) in _FAMILIES


def _is_truth(name: str) -> bool:
    known = opcode(name)
    return known is not None and known.result == "pred"


def _of_terms(terms: SharedTerms, name: str, level: Ids, known: Intervals, most: Array) -> Intervals:
    """Return intervals (m, k) of terms (m,) of one operation; infinite ones where nothing is known.

    known: those of all terms (terms, k). most: the magnitudes of elements of arguments (k,).
    """
    edges, shape = terms.edges.take(level, axis=0), (len(level), len(most))
    nothing = Intervals(low=np.full(shape, -np.inf), high=np.full(shape, np.inf))
    if name == "constant":
        number = np.broadcast_to(terms.number[level, None], shape)
        return Intervals(low=number, high=number)
    if name.startswith("input:"):
        held = name.rpartition(":")[2]
        if not held:
            return nothing
        size = np.broadcast_to(np.minimum(most, format_of(held).maximum), shape)
        return Intervals(low=-size, high=size)
    meant = _meaning(name)
    if meant is None or meant.result == "pred":
        return nothing
    if meant.family == "choice":
        return _choice(terms, level, known)
    family = _FOLLOWED.get(name, meant.family)
    operands = [_signed(known, edges[:, place]) for place in range(meant.arity)]
    same = ((terms.value[level] & _SQUARE) != 0)[:, None]
    found = results(family, format_of(meant.result), operands, same)
    if found is None:
        return nothing
    if ".ftz." in name:  # of numbers that are not flushed
        normal = operands[0].low >= format_of(meant.result).smallest_normal
        found = _where(normal, found.low, found.high)
        found = Intervals(
            low=np.nan_to_num(found.low, nan=-np.inf), high=np.nan_to_num(found.high, nan=np.inf)
        )
    if meant.family == "other":
        found = _inexact(found, format_of(meant.result))
    return found


def _inexact(found: Intervals, held: Format) -> Intervals:
    """Return intervals that hold what an approximate instruction may give, a few subnormal ulp more."""
    low = found.low - np.abs(found.low) * APPROXIMATE - 8.0 * held.omega
    high = found.high + np.abs(found.high) * APPROXIMATE + 8.0 * held.omega
    return Intervals(
        low=np.where(low < -held.maximum, -np.inf, low), high=np.where(high > held.maximum, np.inf, high)
    )


def _meaning(name: str) -> Opcode | None:
    """Return what the name of a term means: terms leave away that they round to nearest."""
    family, _, held = name.partition(".")
    if family == "divfma":
        return opcode("divfma.full.f32")
    return (
        in_format(family, held) if family in {"fma", "div", "sqrt"} and held in FULL_NAMES else opcode(name)
    )


def _signed(known: Intervals, edges: Ids) -> Intervals:
    low, high, negative = (
        known.low.take(edges >> 1, axis=0),
        known.high.take(edges >> 1, axis=0),
        ((edges & 1) == 1)[:, None],
    )
    return Intervals(low=np.where(negative, -high, low), high=np.where(negative, -low, high))


def _choice(terms: SharedTerms, level: Ids, known: Intervals) -> Intervals:
    """Return the intervals of choices; of `x < c ? t : x` what is kept of x is at least c."""
    edges = terms.edges.take(level, axis=0)
    then, otherwise = _signed(known, edges[:, 1]), _signed(known, edges[:, 2])
    asked = edges[:, 0] >> 1
    below = np.isin(terms.operation[asked], [k for k, n in enumerate(terms.names) if _asks_below(n)])
    below &= (edges[:, 0] & 1) == 0
    below &= (terms.value[level] & _COMPARED) != 0
    least = np.where(below[:, None], _signed(known, terms.edges[asked, 1]).low, -np.inf)
    kept = np.maximum(otherwise.low, least)
    return Intervals(
        low=np.minimum(then.low, kept), high=np.maximum(then.high, np.maximum(otherwise.high, kept))
    )


def _asks_below(name: str) -> bool:
    return name.startswith(("setp.lt.f", "setp.le.f", "setp.lt.b", "setp.le.b"))


def results(family: str, held: Format, operands: list[Intervals], same: Mask) -> Intervals | None:
    """Return the intervals of an operation's results, infinite where they may be; None: nothing is known.

    same: where the first two operands are one term, so that their product is a square.
    """
    first, *others = operands
    with np.errstate(all="ignore"):
        if family == "add":
            exact = Intervals(low=first.low + others[0].low, high=first.high + others[0].high)
        elif family == "mul":
            exact = _product(first, others[0], same)
        elif family == "fma":
            one = _outward(_product(first, others[0], same), held)
            exact = Intervals(low=one.low + others[1].low, high=one.high + others[1].high)
        elif family == "divfma":  # of div.full, whose last product is not rounded
            one = _inexact(_outward(_quotient(first, others[0]), held), held)
            exact = Intervals(low=one.low + others[1].low, high=one.high + others[1].high)
        elif family in {"div", "rcp"}:
            exact = _quotient(
                Intervals(low=np.ones(1), high=np.ones(1)) if family == "rcp" else first, operands[-1]
            )
        elif family == "sqrt":
            exact = _where(first.low >= 0.0, np.sqrt(first.low), np.sqrt(first.high))
        elif family == "rsqrt":
            exact = _where(first.low > 0.0, 1.0 / np.sqrt(first.high), 1.0 / np.sqrt(first.low))
            exact = Intervals(low=exact.low * (1 - 2.0**-50), high=exact.high * (1 + 2.0**-50))
        elif family in {"max", "min"}:
            pick = np.maximum if family == "max" else np.minimum
            return Intervals(low=pick(first.low, others[0].low), high=pick(first.high, others[0].high))
        elif family == "abs":
            return Intervals(
                low=np.maximum(0.0, np.maximum(first.low, -first.high)),
                high=np.maximum(-first.low, first.high),
            )
        elif family == "narrow":
            return Intervals(low=round_to(held, first.low), high=round_to(held, first.high))
        else:
            return None
        wide = _outward(exact, held)
        low, high = round_to(held, wide.low), round_to(held, wide.high)
    # inf - inf and 0 * inf are NaN: nothing is known
    unknown = np.isnan(low) | np.isnan(high)
    return Intervals(low=np.where(unknown, -np.inf, low), high=np.where(unknown, np.inf, high))


def _outward(exact: Intervals, held: Format) -> Intervals:
    """Return intervals that hold the exact ends: a step of float64 wider.

    A zero is exact, since float64 holds products and quotients of the smallest numbers of narrower formats.
    """
    kept = held.precision < 53
    return Intervals(
        low=np.where((exact.low == 0.0) & kept, exact.low, np.nextafter(exact.low, -np.inf)),
        high=np.where((exact.high == 0.0) & kept, exact.high, np.nextafter(exact.high, np.inf)),
    )


def _product(a: Intervals, b: Intervals, same: Mask) -> Intervals:
    ends = np.stack([a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high])
    low, high = ends.min(axis=0), ends.max(axis=0)
    inside = (a.low <= 0.0) & (a.high >= 0.0)
    square = np.where(inside, 0.0, np.minimum(a.low * a.low, a.high * a.high))
    return Intervals(low=np.where(same, square, low), high=high)


def _quotient(a: Intervals, b: Intervals) -> Intervals:
    """Return exact quotients, NaN where the divisor may be zero."""
    ends = np.stack([a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high])
    return _where((b.low > 0.0) | (b.high < 0.0), ends.min(axis=0), ends.max(axis=0))


def _where(right: Mask, low: Array, high: Array) -> Intervals:
    return Intervals(low=np.where(right, low, np.nan), high=np.where(right, high, np.nan))

"""What rules of a normal form need beside it: values that are finite, divisors that are no zero."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.normal_form import NormalForm
from verifier.arithmetic.graph.ranges import finite_below
from verifier.arithmetic.graph.signs import Signs, reached
from verifier.checks.support.recorded_code import RefusedError


@dataclass(frozen=True, kw_only=True)
class Within:
    """Terms that are finite where no element of an argument exceeds 2**exponent in magnitude."""

    exponent: int
    terms: Ids


def discharged(
    terms: SharedTerms,
    results: Iterable[Ids],
    divisors: Ids,
    vanished: Ids,
    *,
    nonzero: Ids,
    within: Ids | None = None,
    values: bool = False,
    either: Ids | None = None,
    fused: Ids | None = None,
) -> tuple[str, ...]:
    """Return the obligations of the rules, all of which hold.

    results: edges of what is compared. divisors, vanished: edges that must not be zero, must be finite.
    nonzero: edges that must not be zero, where results are finite all the same.
    within: terms that are finite for another reason. values: whether all values are finite, not only results,
    as rules of `OF_ALL_VALUES` take them. either, fused: see `Signs`.

    Raises:
        RefusedError: one is not shown to hold.

    """
    kept = reached(terms, np.concatenate([edges.ravel() for edges in results]))
    signs = Signs(terms, np.unique(np.concatenate([divisors, vanished, nonzero])), either, fused)
    known = np.zeros(0, np.int64) if within is None else within
    lost = lost_from(terms, kept, signs, vanished)
    for edge in lost[~np.isin(lost >> 1, known)].tolist():
        why = f"{terms.text(edge)} is in no result any more, and not proved to be finite"
        raise RefusedError("values that a rule has removed are finite", why)
    infinite = _infinite_of_zero(terms, kept)
    for edge in divisors.tolist():
        if not signs.nonzero(edge) and edge >> 1 not in infinite:
            why = f"{terms.text(edge)} is not proved to be other than 0"
            raise RefusedError("no divisor is a zero whose sign a rule has changed", why)
    for edge in nonzero.tolist():
        if not signs.nonzero(edge):
            why = f"{terms.text(edge)} is not proved to be other than 0"
            raise RefusedError("values that a rule took for other than 0 are so", why)
    what = {
        _kind(terms, edge): f"finite where all {'values' if values else 'results'} are"
        for edge in vanished[~np.isin(vanished, lost)].tolist()
    }
    of_data = divisors[np.isnan(terms.numbers(divisors))]
    told = _one_of_each(terms, np.concatenate([of_data, nonzero]))
    zero_not = (f"{_text(terms, edge)} is no zero" for edge in told.tolist())
    return (*sorted({*zero_not}), *(f"{kind} is {holds}" for kind, holds in sorted(what.items())))


def lost_from(terms: SharedTerms, kept: Ids, signs: Signs, vanished: Ids) -> Ids:
    """Return the edges that are perhaps infinite where the terms `kept` are finite, and arguments."""
    found = []
    for edge in vanished[~np.isin(vanished >> 1, kept)].tolist():
        if _given(terms, edge):
            continue  # a certificate is one for finite elements of arguments
        top, below, *_ = terms.edges[edge >> 1].tolist()
        if terms.names[int(terms.operation[edge >> 1])].startswith("mul.") and any(
            terms.number[factor >> 1] <= 1.0 and _given(terms, other)
            for factor, other in ((top, below), (below, top))
        ):
            continue  # c * x, abs(c) <= 1, of an element x
        divides = terms.names[int(terms.operation[edge >> 1])].startswith("div.") and top >= 0
        if divides and terms.number[top >> 1] == 0.0 and below >> 1 in kept and signs.nonzero(below):
            continue  # 0 / y, y a part of a result
        found.append(edge)
    return np.array(found, dtype=np.int64)


def _given(terms: SharedTerms, edge: int) -> bool:
    """Return whether an edge is an element of an argument."""
    return edge >= 0 and terms.names[int(terms.operation[edge >> 1])].startswith("input:")


def finite_within(
    form: NormalForm, results: Iterable[Ids], vanished: Ids, terms: SharedTerms
) -> Within | None:
    """Return up to which magnitude of elements what a rule removed is finite, results say nothing of it.

    None: nothing is so removed, or no magnitude is known.
    """
    kept = reached(terms, np.concatenate([edges.ravel() for edges in results]))
    lost = lost_from(terms, kept, Signs(terms, vanished, form.either, form.fused), vanished)
    nodes = np.flatnonzero(np.isin(form.edges >> 1, lost >> 1))
    if not lost.size or not np.isin(lost >> 1, form.edges[nodes] >> 1).all():
        return None
    exponent = finite_below(replace(form.graph, outputs={"removed": nodes})).exponent
    return None if exponent is None else Within(exponent=exponent, terms=np.unique(lost >> 1))


def _infinite_of_zero(terms: SharedTerms, kept: Ids) -> frozenset[int]:
    """Return the terms that are no zero where all results are finite: c / y, c a constant, is a part of one.

    c / y, 1 / y and 1 / sqrt(y) of a zero y are infinite, rounded or approximate (PTX ISA).
    """
    found: list[Ids] = []
    for place, families in ((1, ("div.",)), (0, ("rcp.", "rsqrt."))):
        codes = [code for code, name in enumerate(terms.names) if name.startswith(families)]
        edges = terms.edges[kept[np.isin(terms.operation[kept], codes)]]
        if place:
            edges = edges[terms.number[edges[:, 0] >> 1] > 0.0]
        found.append(edges[:, place] >> 1)
    return frozenset(np.concatenate(found).tolist())


def _kind(terms: SharedTerms, edge: int) -> str:
    """Return what an edge is, an element of an argument without its place."""
    name = terms.names[int(terms.operation[edge >> 1])]
    return f"an element of {name.split(':')[1]}" if name.startswith("input:") else _text(terms, edge)


def _one_of_each(terms: SharedTerms, edges: Ids) -> Ids:
    """Return one of the edges of each text: an operation on alike operands, of which places are not told."""
    whole = terms.edges[edges >> 1]
    below = whole >> 1
    inner = (terms.edges[below] >= 0).any(axis=2)
    place = np.where(inner, 0, terms.value[below].astype(np.int64))  # of a constant, its bits
    absent = whole < 0
    told = np.concatenate(
        [
            terms.operation[edges >> 1][:, None],
            np.where((whole >= 0).any(axis=1), 0, terms.value[edges >> 1].astype(np.int64))[:, None],
            np.where(absent, -1, whole & 1),
            np.where(absent, -1, terms.operation[below]),
            np.where(absent, 0, place),
        ],
        axis=1,
    )
    _, first = np.unique(told, axis=0, return_index=True)
    return ids(edges[first])


def _text(terms: SharedTerms, edge: int) -> str:
    return terms.text(edge & ~1, 1)

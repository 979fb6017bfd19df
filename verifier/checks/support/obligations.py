"""What rules of a normal form need beside it: values that are finite, divisors that are no zero."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.signs import Signs, reached
from verifier.checks.support.recorded_code import RefusedError


def discharged(terms: SharedTerms, results: Iterable[Ids], divisors: Ids, vanished: Ids) -> tuple[str, ...]:
    """Return the obligations of the rules, all of which hold.

    results: edges of what is compared. divisors, vanished: edges that must not be zero, must be finite.

    Raises:
        RefusedError: one is not shown to hold.

    """
    kept = reached(terms, np.concatenate([edges.ravel() for edges in results]))
    signs = Signs(terms, np.union1d(divisors, vanished))
    for edge in vanished[~np.isin(vanished >> 1, kept)].tolist():
        if terms.names[int(terms.operation[edge >> 1])].startswith("input:"):
            continue  # a certificate is one for finite elements of arguments
        top, below, *_ = terms.edges[edge >> 1].tolist()
        divides = terms.names[int(terms.operation[edge >> 1])].startswith("div.") and top >= 0
        if divides and terms.number[top >> 1] == 0.0 and below >> 1 in kept and signs.nonzero(below):
            continue  # 0 / y, y a part of a result
        why = f"{terms.text(edge)} is in no result any more, and not proved to be finite"
        raise RefusedError("values that a rule has removed are finite", why)
    infinite = _infinite_of_zero(terms, kept)
    for edge in divisors.tolist():
        if not signs.nonzero(edge) and edge >> 1 not in infinite:
            why = f"{terms.text(edge)} is not proved to be other than 0"
            raise RefusedError("no divisor is a zero whose sign a rule has changed", why)
    what = {_kind(terms, edge): "finite where all results are" for edge in vanished.tolist()}
    nonzero = sorted({f"{terms.text(edge, 1)} is no zero" for edge in divisors.tolist()})
    return (*nonzero, *(f"{kind} is {holds}" for kind, holds in sorted(what.items())))


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
    return name.removeprefix("input:") if name.startswith("input:") else terms.text(edge, 1)

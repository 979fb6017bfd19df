"""Which products ptxas may fuse into a sum in one of their uses and round in another.

Lemma 2 of docs/explanation/bounds.md covers a product that is fused in all of its uses or in none. Recordings
with fusing off and on show these two; what lies between them is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Graph, Ids, distinct, ids
from verifier.arithmetic.graph.normal_form import NormalForm
from verifier.arithmetic.graph.signs import Mask, reached

_PRODUCT = re.compile(r"mul(\.ftz)?\.(f16|bf16|f32|f64)")
_SUM = re.compile(r"(add|sub)(\.ftz)?\.(f16|bf16|f32|f64)")
_NEGATION = re.compile(r"neg(\.ftz)?\.(f16|bf16|f32|f64)")
_MAGNITUDE = re.compile(r"abs(\.ftz)?\.(f16|bf16|f32|f64)")
_CHOICE = re.compile(r"ite")


def mixed(form: NormalForm) -> Ids:
    """Return the terms of products that may be fused in one use and not in another, in order.

    form: of a recording with fusing off, claims "EZ": products of equal operands are one, however often they
    are computed. Those that no explicit rounding keeps may be fused into sums that have none either, negated
    or not. A product is mixed if it has such a use and any other: two sums, both terms of one, a result.
    """
    graph, term = form.graph, form.edges >> 1
    held, summed = _products_and_sums(form)
    negated = (held >= 0) & ~_are(graph, _PRODUCT)
    user, place = np.nonzero((graph.operands >= 0) & ~negated[:, None])
    used = held[graph.operands[user, place]]
    fusible = np.unique(used[(used >= 0) & summed[user]])
    # Equal sums are one use: the same sum is computed by many threads.
    each = used >= 0
    room = int(term.max(initial=0)) + 1
    uses = distinct((used[each] * room + term[user[each]]) * 3 + place[each]) // (3 * room)
    results = held[graph.output_nodes()]
    count = np.bincount(np.concatenate([uses, results[results >= 0]]), minlength=1)
    return ids(fusible[count[fusible] > 1])


def open_sums(form: NormalForm) -> Ids:
    """Return the terms of sums into which ptxas may fuse a product, or not.

    Where the code computes such a sum in two places, ptxas may fuse it in one of them alone: not where a
    guarded access to memory, a fence or a division lies between product and sum. So they may not cancel.
    """
    graph = form.graph
    held, summed = _products_and_sums(form)
    takes = ((graph.operands >= 0) & (held[graph.operands] >= 0)).any(axis=1)
    return distinct(ids(form.edges[summed & takes] >> 1))


def cancelled_openly(terms: SharedTerms, forms: Iterable[NormalForm]) -> Ids:
    """Return the terms of such sums that are part of what was taken for equal, to cancel.

    And the products of such sums in which they cancelled: a * b that is rounded less the same number that is
    not is the rounding error of the product, and no zero. That is asked of every sum that takes a product by
    the flow of data, in whichever block: which branches and fences ptxas leaves between them, only it knows.
    """
    known = list(forms)
    cancelled = reached(terms, distinct(np.concatenate([form.cancelled for form in known])))
    sums = np.intersect1d(cancelled, distinct(np.concatenate([open_sums(form) for form in known])))
    return distinct(np.concatenate([sums, *(_products_that_cancel(form) for form in known)]))


def _products_that_cancel(form: NormalForm) -> Ids:
    """Return the terms of products, rounded as ptxas likes, in which sums and choices were made to cancel."""
    if not form.cancelling.size:
        return ids(form.cancelling)
    graph = form.graph
    held = _passed_on(form)
    takes = form.cancelling[(_are(graph, _SUM) | _are(graph, _CHOICE))[form.cancelling]]
    operands = graph.operands[takes]
    found = np.where(operands >= 0, held[operands], -1)
    return distinct(ids(found[found >= 0]))


def _passed_on(form: NormalForm) -> Ids:
    """Return the term of the product that each node is or has for its value, -1 of others.

    A product by one is no product but its factor, which is passed on, as by a choice that is known. A
    magnitude of a product may be left out where the product has no negative values.
    """
    graph, term = form.graph, form.edges >> 1
    held, _ = _products_and_sums(form)
    below = np.where(graph.operands >= 0, term[graph.operands], -1)
    held[(below == term[:, None]).any(axis=1) & _are(graph, _PRODUCT)] = -1
    signed = _are(graph, _MAGNITUDE) | _are(graph, _NEGATION)
    while True:
        known = np.where(graph.operands >= 0, held[graph.operands], -1)
        known = np.where((below == term[:, None]) | signed[:, None], known, -1).max(axis=1)
        found = np.where(held < 0, known, held)
        if np.array_equal(found, held):
            return ids(held)
        held = found


def _products_and_sums(form: NormalForm) -> tuple[Ids, Mask]:
    """Return the term of the product that each node is, perhaps negated, -1 of others; and which are sums."""
    graph = form.graph
    held = np.where(_are(graph, _PRODUCT), form.edges >> 1, -1)
    for node in np.flatnonzero(_are(graph, _NEGATION)):  # operands come first
        held[node] = held[graph.operands[node, 0]]
    return held, _are(graph, _SUM)


def _are(graph: Graph, kind: re.Pattern[str]) -> Mask:
    named = np.array([bool(kind.fullmatch(name)) for name in graph.names], dtype=np.bool_)
    return np.asarray(named[graph.operation])

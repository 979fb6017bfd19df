"""The sums of a kernel that is proved, told apart: what each is of, where it is made, how, and for what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.support import marks
from verifier.checks.support.compared_graphs import Agreement
from verifier.checks.support.read_orders import OrderOfSum
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.certificate import ReadOrder, ReadSum

_MOST = 63
"""Sums of which it is found out what uses them: bits of a number."""
_FORMAT = re.compile(r":(?:f16|bf16|f32|f64)\b")
_Users = Mapping[str, Ids]
"""The results that use a sum, each with the columns of the first row that do, if it has columns."""


def named_sums(found: Agreement, op: Op, case: Case) -> tuple[ReadSum, ...]:
    """Return the sums of the first row, in the order in which the declaration makes them.

    The means of a row of which lanes keep their own are one sum in several orders.
    """
    places, users = _places(found), _users(found, op, case)
    alike: dict[tuple[object, ...], dict[int, OrderOfSum]] = {}
    for order in found.orders:
        place: int | str = order.first if order.kind == "merges" else order.root
        if order.root < 0 and order.exact is not None:
            place = order.exact.text
        alike.setdefault((order.kind, order.terms, place), {}).setdefault(order.root, order)
    return tuple(
        _named(list(orders.values()), [users.get(root, {}) for root in orders], found, places)
        for orders in alike.values()
    )


def _named(
    orders: Sequence[OrderOfSum], users: Sequence[_Users], found: Agreement, places: Mapping[int, str]
) -> ReadSum:
    """Return one sum, of which the orders are given, and what uses it in each."""
    one, several = orders[0], len(orders) > 1
    by_column = sorted(
        zip(orders, users, strict=True), key=lambda pair: min(map(_first, pair[1].values()), default=0)
    )
    return ReadSum(
        terms=one.terms,
        depth=max(order.depth for order in orders),
        declared=one.declared_depth,
        of="" if one.first < 0 else without_formats(found.terms.text(one.first, 1)),
        line=places.get(one.root, ""),
        results=tuple(name for name in found.kernel.outputs if any(name in used for used in users)),
        orders=tuple(
            _order(order, {name: ranges(columns) for name, columns in used.items()} if several else {})
            for order, used in by_column
        ),
    )


def _order(order: OrderOfSum, columns: Mapping[str, str]) -> ReadOrder:
    exact = order.exact
    if exact is None:
        return ReadOrder(sha256=None, tree="", columns=columns)
    return ReadOrder(sha256=exact.sha256, tree=exact.tree, columns=columns)


def _first(columns: Ids) -> float:
    return float(columns[0]) if columns.size else np.inf


def ranges(columns: Ids) -> str:
    """Return columns in order as text: "0..508 step 4", or runs that repeat, "0..3 in each 16 to 499"."""
    if not columns.size:
        return ""
    steps = np.unique(np.diff(columns))
    if len(steps) <= 1:
        first, last = int(columns[0]), int(columns[-1])
        every = f" step {int(steps[0])}" if steps.size and steps[0] > 1 else ""
        return f"{first}..{last}{every}" if last > first else f"{first}"
    runs = np.split(columns, np.flatnonzero(np.diff(columns) > 1) + 1)
    starts, lengths = np.array([run[0] for run in runs]), np.array([len(run) for run in runs])
    apart = np.unique(np.diff(starts))
    if len(runs) > 2 and len(apart) == 1 and (lengths[:-1] == lengths[0]).all() and lengths[-1] <= lengths[0]:
        return f"{ranges(runs[0])} in each {int(apart[0])} to {int(columns[-1])}"
    return ", ".join(ranges(run) for run in runs)


def without_formats(text: str) -> str:
    """Return an expression in which elements of arguments are named without the format they are held in."""
    return _FORMAT.sub("", text)


def _places(found: Agreement) -> dict[int, str]:
    """Return the line on which the code makes the sum first, by root."""
    graph, terms = found.kernel.graph, found.kernel.edges >> 1
    known = np.array([bool(line) for line in graph.lines], dtype=np.bool_)[graph.line]
    nodes = np.flatnonzero(np.isin(terms, [order.root for order in found.orders]) & known)
    return {
        int(terms[node]): graph.lines[graph.line[node]].rpartition("/")[2] for node in nodes[::-1].tolist()
    }


def _users(found: Agreement, op: Op, case: Case) -> Mapping[int, _Users]:
    """Return which results reach the sum, by root, and in which columns, if they have those of the row."""
    graph, terms = found.kernel.graph, found.kernel.edges >> 1
    roots = sorted({order.root for order in found.orders if order.root >= 0})[:_MOST]
    own = np.zeros(len(graph), dtype=np.int64)
    for bit, root in enumerate(roots):
        own[terms == root] |= np.int64(1) << bit
    reached = marks(graph, own)
    used: dict[int, dict[str, Ids]] = {root: {} for root in roots}
    for name, nodes in graph.outputs.items():
        every = reached[nodes.ravel()]
        bits = int(np.bitwise_or.reduce(every, initial=0))
        row = np.zeros(0, dtype=np.int64)
        if nodes.size == case.rows * case.columns > case.rows:
            row = every[op.flat_index(case, name, nodes.shape).reshape(case.rows, -1)[0]]
        for bit, root in enumerate(roots):
            if bits >> bit & 1:
                used[root][name] = ids(np.flatnonzero(row >> bit & 1))
    return used

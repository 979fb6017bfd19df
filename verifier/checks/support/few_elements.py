"""Whether a few elements already show that a kernel is not the declared computation along some ways.

It spares comparing all of them where more claims have been admitted than may be needed. It proves nothing:
what it lets pass is compared, and what it does not keeps the claims with which it was proved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.growing_form import GrowingForm, SharingBuilder
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.checks.support.read_orders import OrderAnswer, RecalledOrders
from verifier.ops import Op
from verifier.ops.rows.twin import formats_of, twin
from verifier.ops.rows.twin_numbers import NoTwinError, Way
from verifier.records.case import Case
from verifier.records.subject import Subject

FEW = 16
"""Elements of the first row that are looked at."""


def differ_in_a_few(
    graph: Graph,
    op: Op,
    subject: Subject,
    case: Case,
    *,
    ways: Iterable[Way],
    claims: str,
    answers: Iterable[OrderAnswer],
    gradients: bool,
) -> bool:
    """Return whether along each of the ways a few elements of results are other terms than declared.

    answers: the orders of sums and merges, as the same computation was given them along another way.
    """
    possible = tuple(ways)
    if not possible:
        return True
    few = {}
    for name, nodes in graph.outputs.items():
        index = op.flat_index(case, name, nodes.shape)
        if index.ndim == 2 and len(index):  # what is summed over rows reaches them all
            few[name] = _few(nodes.ravel()[index[0]])
    known, _ = with_functions(replace(graph, outputs=few), fused="C" in claims, marked=True)
    terms, given = SharedTerms(), tuple(answers)
    kernel = Normaliser(terms, claims, unordered=True).normal(known).outputs
    form = GrowingForm(SharingBuilder(), Normaliser(terms, claims, unordered=True), formats_of(case))
    for way in possible:
        try:
            declared = twin(op, subject, case, way, RecalledOrders(given), form.builder, gradients=gradients)
        except NoTwinError:
            return False
        same = all(
            name in declared and np.array_equal(edges, form.edges(_few(declared[name][0])))
            for name, edges in kernel.items()
        )
        if same or form.depends_on_order:
            return False
    return True


def _few(row: Ids) -> Ids:
    """Return a few elements of a row."""
    return row[:: max(len(row) // FEW, 1)]

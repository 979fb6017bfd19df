"""Which products ptxas may fuse into a sum in one of their uses and round in another.

Lemma 2 of docs/explanation/bounds.md covers a product that is fused in all of its uses or in none. Recordings
with fusing off and on show these two; what lies between them is decided here.
"""

from __future__ import annotations

import re

import numpy as np

from verifier.arithmetic.graph.graph import Ids, distinct, ids
from verifier.arithmetic.graph.normal_form import NormalForm

_PRODUCT = re.compile(r"mul(\.ftz)?\.(f16|bf16|f32|f64)")
_SUM = re.compile(r"(add|sub)(\.ftz)?\.(f16|bf16|f32|f64)")
_NEGATION = re.compile(r"neg(\.ftz)?\.(f16|bf16|f32|f64)")


def mixed(form: NormalForm) -> Ids:
    """Return the terms of products that may be fused in one use and not in another, in order.

    form: of a recording with fusing off, claims "EZ": products of equal operands are one, however often they
    are computed. Those that no explicit rounding keeps may be fused into sums that have none either, negated
    or not. A product is mixed if it has such a use and any other: two sums, both terms of one, a result.
    """
    graph, term = form.graph, form.edges >> 1
    product, summed, negation = (
        np.array([bool(kind.fullmatch(name)) for name in graph.names], dtype=np.bool_)[graph.operation]
        for kind in (_PRODUCT, _SUM, _NEGATION)
    )
    held = np.where(product, term, -1)
    for node in np.flatnonzero(negation):  # operands come first
        held[node] = held[graph.operands[node, 0]]
    user, place = np.nonzero((graph.operands >= 0) & ~(negation & (held >= 0))[:, None])
    used = held[graph.operands[user, place]]
    fusible = np.unique(used[(used >= 0) & summed[user]])
    # Equal sums are one use: the same sum is computed by many threads.
    each = used >= 0
    room = int(term.max(initial=0)) + 1
    uses = distinct((used[each] * room + term[user[each]]) * 3 + place[each]) // (3 * room)
    results = held[graph.output_nodes()]
    count = np.bincount(np.concatenate([uses, results[results >= 0]]), minlength=1)
    return ids(fusible[count[fusible] > 1])

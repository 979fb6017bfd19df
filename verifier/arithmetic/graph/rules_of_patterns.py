"""Rules of the normal form that read several operations: terms that cancel, a maximum, a product in a sum.

What each claims stands in the table, `rules.py`.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import format_of, rounds_product
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.opcodes import Opcode, in_format, opcode
from verifier.arithmetic.graph.rewriting import (
    Former,
    Mask,
    Rewrite,
    alone,
    nowhere,
)


def equal_terms(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write a - a as 0."""
    where = (edges[:, 0] == (edges[:, 1] ^ 1)) & np.isnan(form.terms.numbers(edges[:, 0]))
    if not where.any():
        return nowhere(edges)
    zero = alone(form.terms.constants(np.zeros(int(where.sum()))))
    return Rewrite(where=where, into=None, edges=zero, vanishes=edges[where, 0])


def parts_of_whole(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take x for x * c + (x - x * c), each part rounded, perhaps to the narrower format that holds x."""
    possible = _parted(form.terms, edges) if operation.result == "f32" else []
    if not possible:
        return nowhere(edges)
    found = np.full(len(edges), -1, dtype=np.int64)
    for narrow in possible:
        for part, rest in ((edges[:, 0], edges[:, 1]), (edges[:, 1], edges[:, 0])):
            whole = _whole_of(form, part, rest, narrow)
            found = np.where(found < 0, whole, found)
    where = found >= 0
    kept = alone(found[where])
    return Rewrite(where=where, into=None, edges=kept, vanishes=found[where])


def _parted(terms: SharedTerms, edges: Ids) -> list[str]:
    """Return to which formats both parts of any sum may be rounded, "" where to none: most are no parts."""
    first, second = terms.operation[edges[:, :2] >> 1].T
    product, difference = (_code(terms, name) for name in ("mul.f32", "add.f32"))
    found = []
    if ((first == product) & (second == difference) | (first == difference) & (second == product)).any():
        found.append("")
    for narrow in ("f16", "bf16"):
        rounded = _code(terms, f"cvt.rn.{narrow}.f32")
        if rounded >= 0 and ((first == rounded) & (second == rounded)).any():
            found.append(narrow)
    return found


def _whole_of(form: Former, part: Ids, rest: Ids, narrow: str) -> Ids:
    """Return x where part is x * c, 1/2 <= c <= 1, and rest x - part; -1 elsewhere."""
    terms = form.terms
    product, right = part >> 1, ((part | rest) & 1) == 0
    difference = rest >> 1
    if narrow:
        rounded = f"cvt.rn.{narrow}.f32"
        right &= _is(terms, product, rounded) & _is(terms, difference, rounded)
        if not right.any():
            return ids(np.full(len(part), -1))
        product, difference = (np.where(right, terms.edges[one, 0], 0) for one in (product, difference))
        right &= ((product | difference) & 1) == 0
        product, difference = product >> 1, difference >> 1
    right &= _is(terms, product, "mul.f32") & _is(terms, difference, "add.f32")
    if not right.any():  # which is so nearly everywhere
        return ids(np.full(len(part), -1))
    first, second = (np.where(right, terms.edges[product, place], 0) for place in range(2))
    constant = np.where(np.isnan(terms.number[first >> 1]), second, first)
    x = np.where(constant == first, second, first)
    scale = terms.numbers(constant)
    right &= (scale >= 0.5) & (scale <= 1.0)
    ends, less = terms.edges[difference, :2], part ^ 1
    right &= ((ends[:, 0] == x) & (ends[:, 1] == less)) | ((ends[:, 1] == x) & (ends[:, 0] == less))
    if narrow:  # which holds x only where x is read from it
        held = [name.startswith("input:") and name.endswith(f":{narrow}") for name in terms.names]
        right &= np.isin(terms.operation[x >> 1], np.flatnonzero(held))
    right &= x >= 0
    if right.any():
        right &= ~form.is_fused(difference)
    return ids(np.where(right, x, -1))


def _is(terms: SharedTerms, places: Ids, name: str) -> Mask:
    found: Mask = terms.operation[places] == _code(terms, name)
    return found


def _code(terms: SharedTerms, name: str) -> int:
    return terms.names.index(name) if name in terms.names else -1


def larger_by_difference(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Take max(a, b) for a - b > 0 ? a : b, the difference rounded from a and b themselves."""
    terms = form.terms
    asked, a, b = edges[:, 0], edges[:, 1], edges[:, 2]
    result = np.full(len(edges), -1, dtype=np.int64)
    for held in ("f16", "bf16", "f32", "f64"):
        right = ((asked & 1) == 0) & _is(terms, asked >> 1, f"setp.gt.{held}")
        difference, zero = (np.where(right, terms.edges[asked >> 1, place], 0) for place in range(2))
        right &= (terms.numbers(zero) == 0.0) & _is(terms, difference >> 1, f"add.{held}")
        ends = np.where(right[:, None], terms.edges[difference >> 1, :2] ^ (difference & 1)[:, None], 0)
        less = b ^ 1
        right &= ((ends[:, 0] == a) & (ends[:, 1] == less)) | ((ends[:, 1] == a) & (ends[:, 0] == less))
        if right.any():
            right &= ~form.is_fused(difference >> 1)
        if right.any():
            pair = np.full((int(right.sum()), 3), -1, dtype=np.int64)
            pair[:, 0], pair[:, 1] = a[right], b[right]
            result[right] = form.formed(in_format("max", held), pair, right)
    where: Mask = np.asarray(result >= 0)
    kept = alone(result[where])
    return Rewrite(where=where, into=None, edges=kept, vanishes=np.concatenate([a[where], b[where]]))


def chosen_unless_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Take x for x == 0 ? c : x, and for x != 0 ? x : c, c a constant, x no zero; a NaN is x in both."""
    terms = form.terms
    asked = edges[:, 0]
    found: Mask = np.zeros(len(edges), dtype=np.bool_)
    kept = np.full(len(edges), -1, dtype=np.int64)
    for held in ("f32", "f64"):
        for comparison, own in (("eq", 2), ("neu", 1)):
            right = ((asked & 1) == 0) & _is(terms, asked >> 1, f"setp.{comparison}.{held}")
            if not right.any():
                continue
            x, other = edges[:, own], edges[:, 3 - own]
            ends = np.where(right[:, None], terms.edges[asked >> 1, :2], 0)
            numbers = terms.numbers(ends)
            right &= ((ends[:, 0] == x) & (numbers[:, 1] == 0.0)) | (
                (ends[:, 1] == x) & (numbers[:, 0] == 0.0)
            )
            right &= ~np.isnan(terms.numbers(other))
            found, kept = found | right, np.where(right, x, kept)
    return Rewrite(where=found, into=None, edges=alone(kept[found]), nonzero=kept[found])


def contracted(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write fma(a, b, c) as a * b + c, the product not rounded."""
    where: Mask = np.ones(len(edges), np.bool_)
    if operation.family == "fma":
        where &= ~rounds_product(format_of(operation.result), form.terms.numbers(edges[:, :2]))
    edges = edges.compress(where, axis=0)
    factors = np.where([True, True, False], edges, -1)
    changed = np.full_like(edges, -1)
    if operation.family == "addmul":
        changed[:, 0] = edges[:, 0]
    elif operation.family == "divfma":
        quotient = opcode(f"div.full.{operation.result}")
        assert quotient is not None
        changed[:, 0] = form.fused(quotient, factors, where)
    else:
        changed[:, 0] = form.formed(in_format("mul", operation.result), factors, where)
    changed[:, 1] = edges[:, 1 if operation.family == "addmul" else 2]
    made = np.full_like(edges, -1)
    made[:, 0] = form.fused(in_format("add", operation.result), changed, where)
    return Rewrite(where=where, into=None, edges=made)

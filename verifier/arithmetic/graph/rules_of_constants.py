"""Rules of the normal form where an operand is a constant: folding, and what 0, 1 and infinities leave.

What each claims stands in the table, `rules.py`.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.constants import folded, format_of, holds
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.opcodes import Opcode, in_format
from verifier.arithmetic.graph.rewriting import (
    Former,
    Mask,
    Rewrite,
    alone,
    nowhere,
)


def folded_operation(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Compute operations on finite constants."""
    used = edges[:, : operation.arity]
    numbers = form.terms.numbers(used)
    constant = ~np.isnan(numbers).any(axis=1)
    if not constant.any():
        return nowhere(edges)
    where, held = np.zeros(len(edges), np.bool_), format_of(operation.result)
    given, which = np.unique(used[constant], axis=0, return_inverse=True)
    known = [folded(operation.family, held, row) for row in form.terms.numbers(given).tolist()]
    done = np.array([k is not None for k in known], dtype=np.bool_)[which.ravel()]
    where[np.flatnonzero(constant)[done]] = True
    numbers_of = np.array([0.0 if k is None else k for k in known])
    results = form.terms.constants(numbers_of[which.ravel()[done]])
    return Rewrite(where=where, into=None, edges=alone(results))


def compared(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Compare constants."""
    _, comparison, *flushes, _ = operation.name.split(".")
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(~np.isnan(numbers).any(axis=1) & (not flushes))
    found = [holds(comparison, float(a), float(b)) for a, b in numbers[where]]
    where[np.flatnonzero(where)[[one is None for one in found]]] = False
    known = form.terms.constants(np.array([float(one) for one in found if one is not None]))
    return Rewrite(where=where, into=None, edges=alone(known))


def chosen(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Take what a constant chooses."""
    known = form.terms.numbers(edges[:, 0])
    where = ~np.isnan(known)
    taken = np.where(known[where] != 0.0, edges[where, 1], edges[where, 2])
    return Rewrite(where=where, into=None, edges=alone(taken))


def _other_of(form: Former, edges: Ids, number: float) -> tuple[Mask, Ids, Ids]:
    """Return which rows have a factor of that magnitude, its place, and the other factor's place."""
    size = np.abs(form.terms.numbers(edges[:, :2]))
    where = (size == number).any(axis=1)
    place = ids(np.where(size[:, 0] == number, 0, 1))
    return where, place, 1 - place


def times_one(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    """Write a * 1 as a."""
    where, place, other = _other_of(form, edges, 1.0)
    rows = np.flatnonzero(where)
    changed = alone(edges[rows, other[rows]])
    return Rewrite(where=where, into=None, edges=changed, flip=edges[rows, place[rows]] & 1)


def over_one(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    """Write a / 1 as a."""
    where = np.abs(form.terms.numbers(edges[:, 1])) == 1.0
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0), flip=edges[where, 1] & 1)


def over_power_of_two(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write a / 2**k as a * 2**-k, 2**-k normal."""
    numbers, held = form.terms.numbers(edges[:, 1]), format_of(operation.result)
    fraction, exponent = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
    power = np.ldexp(1.0, 1 - exponent)
    where = (np.abs(fraction) == 0.5) & (power >= held.smallest_normal) & (power <= held.maximum)
    if not where.any():
        return nowhere(edges)
    changed = edges.compress(where, axis=0)
    changed[:, 1] = form.terms.constants(np.copysign(power, fraction)[where])
    return Rewrite(where=where, into=in_format("mul", operation.result), edges=changed)


def plus_zero(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    """Write a + 0 as a."""
    where, _, other = _other_of(form, edges, 0.0)
    rows = np.flatnonzero(where)
    return Rewrite(where=where, into=None, edges=alone(edges[rows, other[rows]]))


def times_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write 0 * a as 0."""
    where, place, other = _other_of(form, edges, 0.0)
    where &= np.isnan(form.terms.numbers(edges[:, :2])).any(axis=1)
    rows = np.flatnonzero(where)
    zero = alone(edges[rows, place[rows]])
    return Rewrite(where=where, into=None, edges=zero, vanishes=edges[rows, other[rows]])


def fused_with_one(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write fma(a, 1, c) as a + c."""
    where, place, other = _other_of(form, edges, 1.0)
    rows = np.flatnonzero(where)
    changed = np.full((len(rows), 3), -1, dtype=np.int64)
    changed[:, 0] = edges[rows, other[rows]] ^ (edges[rows, place[rows]] & 1)
    changed[:, 1] = edges[rows, 2]
    return Rewrite(where=where, into=in_format("add", operation.result), edges=changed)


def fused_with_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write fma(0, k, c) as c, k a finite constant."""
    where, __, other = _other_of(form, edges, 0.0)
    where &= np.isfinite(form.terms.numbers(edges[np.arange(len(edges)), other]))
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0)[:, [2, 1, 0]])


def fused_with_data_times_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write fma(0, a, c) as c."""
    where, __, other = _other_of(form, edges, 0.0)
    factor = edges[np.arange(len(edges)), other]
    where &= np.isnan(form.terms.numbers(factor))
    return Rewrite(
        where=where, into=None, edges=edges.compress(where, axis=0)[:, [2, 1, 0]], vanishes=factor[where]
    )


def fused_into_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write fma(a, b, 0) as a * b."""
    where = form.terms.numbers(edges[:, 2]) == 0.0
    changed = edges.compress(where, axis=0)
    changed[:, 2] = -1
    return Rewrite(where=where, into=in_format("mul", operation.result), edges=changed)


def larger_than_all(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write max(a, c) as a, c at most the least number of the format; min likewise."""
    numbers = form.terms.numbers(edges[:, :2])
    reach = np.where(np.isnan(numbers), -np.inf, -numbers if operation.family == "max" else numbers)
    where: Mask = np.asarray((reach >= format_of(operation.result).maximum).any(axis=1))
    rows = np.flatnonzero(where)
    other = edges[rows, 1 - reach[rows].argmax(axis=1)]  # both may be such constants
    kept = alone(other)
    return Rewrite(where=where, into=None, edges=kept, vanishes=other[np.isnan(form.terms.numbers(other))])


def infinite_sum(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write inf + a as inf."""
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1))
    where &= np.isnan(numbers).any(axis=1)
    rows = np.flatnonzero(where)
    place = np.where(np.isinf(numbers[rows, 0]), 0, 1)
    kept = alone(edges[rows, place])
    return Rewrite(where=where, into=None, edges=kept, vanishes=edges[rows, 1 - place])


def infinite_sum_of_constants(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write c + inf as inf, c a constant."""
    numbers = form.terms.numbers(edges[:, :2])
    infinite = np.isinf(numbers)
    where: Mask = np.asarray((infinite.sum(axis=1) == 1) & ~np.isnan(numbers).any(axis=1))
    rows = np.flatnonzero(where)
    return Rewrite(where=where, into=None, edges=alone(edges[rows, np.where(infinite[rows, 0], 0, 1)]))


def infinite_product(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    """Write c * inf as an infinity, c a constant and no zero."""
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1))
    where &= (np.abs(numbers) > 0.0).all(axis=1)
    return Rewrite(where=where, into=None, edges=alone(form.terms.constants(np.prod(numbers[where], axis=1))))


def power_of_minus_infinity(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write exp(-inf) as 0."""
    powers = operation.name.startswith(("ex2.approx", "exp."))
    where = (form.terms.numbers(edges[:, 0]) == -np.inf) & powers
    return Rewrite(where=where, into=None, edges=alone(form.terms.constants(np.zeros(int(where.sum())))))


def power_of_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write exp(0) as 1."""
    where = (form.terms.numbers(edges[:, 0]) == 0.0) & operation.name.startswith(("ex2.approx", "exp."))
    return Rewrite(where=where, into=None, edges=alone(form.terms.constants(np.ones(int(where.sum())))))


def tangent_of_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write tanh(0) as 0."""
    where = (form.terms.numbers(edges[:, 0]) == 0.0) & operation.name.startswith("tanh.")
    return Rewrite(where=where, into=None, edges=alone(edges[where, 0]))


def zero_over(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take 0 for 0 / a."""
    divides = operation.family == "div" or operation.name.startswith("div.full.")
    where: Mask = np.asarray((form.terms.numbers(edges[:, 0]) == 0.0) & divides)
    where &= np.isnan(form.terms.numbers(np.where(where, edges[:, 1], edges[:, 0])))
    below = edges[where, 1]
    return Rewrite(where=where, into=None, edges=alone(edges[where, 0]), vanishes=below, nonzero=below)


def compared_with_infinity(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a number for other than an infinity."""
    comparison = operation.name.split(".")[1].removesuffix("u")
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1) & np.isnan(numbers).any(axis=1))
    where &= comparison in {"eq", "ne"}
    rows = np.flatnonzero(where)
    other = edges[rows, np.where(np.isnan(numbers[rows, 0]), 0, 1)]
    known = form.terms.constants(np.full(len(rows), float(comparison == "ne")))
    return Rewrite(where=where, into=None, edges=alone(known), vanishes=other)

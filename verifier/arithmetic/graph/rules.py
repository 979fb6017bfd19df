"""The rules of the normal form, each with what it claims; proofs in docs/explanation/certificates.md.

Claims: E the same bits unless both are NaN; Z the same number, the sign of a zero aside; F as Z where
the values that vanish are finite (noted, to be discharged); C a product that was not rounded is now
rounded (for theorems that hold for both). A rule is tried once for each node, in the order of the table.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import folded, format_of, holds, rounds_product
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.opcodes import Opcode, in_format, opcode
from verifier.arithmetic.graph.rewriting import Apply, ClaimLetter, Former, Mask, Rewrite, RewriteRule


def _subtraction(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    changed = edges.copy()
    changed[:, 1] ^= 1
    return Rewrite(
        where=np.ones(len(edges), np.bool_), into=in_format("add", operation.result), edges=changed
    )


def _negation(_: Former, __: Opcode, edges: Ids) -> Rewrite:
    return Rewrite(where=np.ones(len(edges), np.bool_), into=None, edges=edges, flip=1)


def _identity(_: Former, __: Opcode, edges: Ids) -> Rewrite:
    return Rewrite(where=np.ones(len(edges), np.bool_), into=None, edges=edges)


def _narrow(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a sum or product of two halves for that of float32, rounded again."""
    where: Mask = np.full(len(edges), operation.result in {"f16", "bf16"})
    narrowed = opcode(f"cvt.rn.{operation.result}.f32") if where.any() else None
    made = np.full((int(where.sum()), 3), -1, dtype=np.int64)
    if narrowed is not None:
        made[:, 0] = form.formed(in_format(operation.family, "f32"), edges)
    return Rewrite(where=where, into=narrowed, edges=made)


def _narrowed_again(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a number that is one of the format, whatever it was widened to between, for itself."""
    held = [_gives(name, operation.result) for name in form.terms.names]
    where: Mask = np.isin(form.terms.operation[edges[:, 0] >> 1], np.flatnonzero(held))
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0))


def _gives(name: str, held: str) -> bool:
    """Whether a leaf or an operation of that name gives numbers of a format."""
    known = None if name.startswith("input:") else opcode(name)
    return name.endswith(f":{held}") if known is None else known.result == held


def _magnitude(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (edges[:, 0] & 1) == 1
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)))


def _first_unsigned(edges: Ids) -> Ids:
    changed = edges.copy()
    changed[:, 0] &= ~1
    return changed


def _signs_of_factors(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    first, second = edges[:, 0] & 1, edges[:, 1] & 1
    where = (first | second) == 1
    changed = edges.compress(where, axis=0)
    changed[:, :2] &= ~1
    return Rewrite(where=where, into=operation, edges=changed, flip=(first ^ second)[where])


def _sign_of_operand(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (edges[:, 0] & 1) == 1
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)), flip=1)


def _sign_of_dividend(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take the sign out of `div.full`, a product of the dividend: of the measured model, not of its name."""
    where = ((edges[:, 0] & 1) == 1) & operation.name.startswith("div.full.")
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)), flip=1)


def _sign_of_product(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    sign = (edges[:, 0] ^ edges[:, 1]) & 1
    changed = edges.copy()
    changed[:, :2] &= ~1
    changed[:, :2].sort(axis=1)
    changed[:, 0] |= sign
    where = (changed != edges).any(axis=1)
    return Rewrite(where=where, into=operation, edges=changed[where])


def _alone(first: Ids) -> Ids:
    """Return rows of edges of which only the first is there."""
    edges = np.full((len(first), 3), -1, dtype=np.int64)
    edges[:, 0] = first
    return edges


def _nowhere(edges: Ids) -> Rewrite:
    """Return that a rule applies to no row, as is usual."""
    return Rewrite(where=np.zeros(len(edges), dtype=np.bool_), into=None, edges=edges[:0])


def _commuted(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = edges[:, 0] > edges[:, 1]
    changed = edges.compress(where, axis=0)
    changed[:, :2] = changed[:, 1::-1]
    return Rewrite(where=where, into=operation, edges=changed)


def _folded(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    used = edges[:, : operation.arity]
    numbers = form.terms.numbers(used)
    constant = ~np.isnan(numbers).any(axis=1)
    if not constant.any():
        return _nowhere(edges)
    where, held = np.zeros(len(edges), np.bool_), format_of(operation.result)
    given, which = np.unique(used[constant], axis=0, return_inverse=True)
    known = [folded(operation.family, held, row) for row in form.terms.numbers(given).tolist()]
    done = np.array([k is not None for k in known], dtype=np.bool_)[which.ravel()]
    where[np.flatnonzero(constant)[done]] = True
    numbers_of = np.array([0.0 if k is None else k for k in known])
    results = form.terms.constants(numbers_of[which.ravel()[done]])
    return Rewrite(where=where, into=None, edges=_alone(results))


def _compared(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    _, comparison, *flushes, _ = operation.name.split(".")
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(~np.isnan(numbers).any(axis=1) & (not flushes))
    found = [holds(comparison, float(a), float(b)) for a, b in numbers[where]]
    where[np.flatnonzero(where)[[one is None for one in found]]] = False
    known = form.terms.constants(np.array([float(one) for one in found if one is not None]))
    return Rewrite(where=where, into=None, edges=_alone(known))


def _chosen(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    known = form.terms.numbers(edges[:, 0])
    where = ~np.isnan(known)
    taken = np.where(known[where] != 0.0, edges[where, 1], edges[where, 2])
    return Rewrite(where=where, into=None, edges=_alone(taken))


def _other_of(form: Former, edges: Ids, number: float) -> tuple[Mask, Ids, Ids]:
    """Return which rows have a factor of that magnitude, its place, and the other factor's place."""
    size = np.abs(form.terms.numbers(edges[:, :2]))
    where = (size == number).any(axis=1)
    place = ids(np.where(size[:, 0] == number, 0, 1))
    return where, place, 1 - place


def _times_one(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    where, place, other = _other_of(form, edges, 1.0)
    rows = np.flatnonzero(where)
    changed = _alone(edges[rows, other[rows]])
    return Rewrite(where=where, into=None, edges=changed, flip=edges[rows, place[rows]] & 1)


def _over_one(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    where = np.abs(form.terms.numbers(edges[:, 1])) == 1.0
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0), flip=edges[where, 1] & 1)


def _over_power_of_two(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    numbers, held = form.terms.numbers(edges[:, 1]), format_of(operation.result)
    fraction, exponent = np.frexp(np.where(np.isfinite(numbers), numbers, 0.0))
    power = np.ldexp(1.0, 1 - exponent)
    where = (np.abs(fraction) == 0.5) & (power >= held.smallest_normal) & (power <= held.maximum)
    if not where.any():
        return _nowhere(edges)
    changed = edges.compress(where, axis=0)
    changed[:, 1] = form.terms.constants(np.copysign(power, fraction)[where])
    return Rewrite(where=where, into=in_format("mul", operation.result), edges=changed)


def _plus_zero(form: Former, __: Opcode, edges: Ids) -> Rewrite:
    where, _, other = _other_of(form, edges, 0.0)
    rows = np.flatnonzero(where)
    return Rewrite(where=where, into=None, edges=_alone(edges[rows, other[rows]]))


def _sign_of_sum(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (edges[:, 0] & 1) == 1
    changed = edges.compress(where, axis=0)
    changed[:, :2] ^= 1
    return Rewrite(where=where, into=operation, edges=changed, flip=1)


def _sign_of_fused(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (edges[:, 0] & 1) == 1
    changed = edges.compress(where, axis=0)
    changed[:, 0] ^= 1
    changed[:, 2] ^= 1
    return Rewrite(where=where, into=operation, edges=changed, flip=1)


def _equal_terms(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    where = (edges[:, 0] == (edges[:, 1] ^ 1)) & np.isnan(form.terms.numbers(edges[:, 0]))
    if not where.any():
        return _nowhere(edges)
    zero = _alone(form.terms.constants(np.zeros(int(where.sum()))))
    return Rewrite(where=where, into=None, edges=zero, vanishes=edges[where, 0])


def _parts_of_whole(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take x for x * c + (x - x * c), each part rounded, perhaps to the narrower format that holds x."""
    possible = _parted(form.terms, edges) if operation.result == "f32" else []
    if not possible:
        return _nowhere(edges)
    found = np.full(len(edges), -1, dtype=np.int64)
    for narrow in possible:
        for part, rest in ((edges[:, 0], edges[:, 1]), (edges[:, 1], edges[:, 0])):
            whole = _whole_of(form, part, rest, narrow)
            found = np.where(found < 0, whole, found)
    where = found >= 0
    kept = _alone(found[where])
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


def _times_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    where, place, other = _other_of(form, edges, 0.0)
    where &= np.isnan(form.terms.numbers(edges[:, :2])).any(axis=1)
    rows = np.flatnonzero(where)
    zero = _alone(edges[rows, place[rows]])
    return Rewrite(where=where, into=None, edges=zero, vanishes=edges[rows, other[rows]])


def _fused_with_one(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where, place, other = _other_of(form, edges, 1.0)
    rows = np.flatnonzero(where)
    changed = np.full((len(rows), 3), -1, dtype=np.int64)
    changed[:, 0] = edges[rows, other[rows]] ^ (edges[rows, place[rows]] & 1)
    changed[:, 1] = edges[rows, 2]
    return Rewrite(where=where, into=in_format("add", operation.result), edges=changed)


def _fused_with_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    where, __, other = _other_of(form, edges, 0.0)
    where &= np.isfinite(form.terms.numbers(edges[np.arange(len(edges)), other]))
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0)[:, [2, 1, 0]])


def _fused_with_data_times_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    where, __, other = _other_of(form, edges, 0.0)
    factor = edges[np.arange(len(edges)), other]
    where &= np.isnan(form.terms.numbers(factor))
    return Rewrite(
        where=where, into=None, edges=edges.compress(where, axis=0)[:, [2, 1, 0]], vanishes=factor[where]
    )


def _fused_into_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = form.terms.numbers(edges[:, 2]) == 0.0
    changed = edges.compress(where, axis=0)
    changed[:, 2] = -1
    return Rewrite(where=where, into=in_format("mul", operation.result), edges=changed)


def _larger_than_all(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    numbers = form.terms.numbers(edges[:, :2])
    reach = np.where(np.isnan(numbers), -np.inf, -numbers if operation.family == "max" else numbers)
    where: Mask = np.asarray((reach >= format_of(operation.result).maximum).any(axis=1))
    rows = np.flatnonzero(where)
    other = edges[rows, 1 - reach[rows].argmax(axis=1)]  # both may be such constants
    kept = _alone(other)
    return Rewrite(where=where, into=None, edges=kept, vanishes=other[np.isnan(form.terms.numbers(other))])


def _infinite_sum(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1))
    where &= np.isnan(numbers).any(axis=1)
    rows = np.flatnonzero(where)
    place = np.where(np.isinf(numbers[rows, 0]), 0, 1)
    kept = _alone(edges[rows, place])
    return Rewrite(where=where, into=None, edges=kept, vanishes=edges[rows, 1 - place])


def _infinite_sum_of_constants(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    numbers = form.terms.numbers(edges[:, :2])
    infinite = np.isinf(numbers)
    where: Mask = np.asarray((infinite.sum(axis=1) == 1) & ~np.isnan(numbers).any(axis=1))
    rows = np.flatnonzero(where)
    return Rewrite(where=where, into=None, edges=_alone(edges[rows, np.where(infinite[rows, 0], 0, 1)]))


def _infinite_product(form: Former, _: Opcode, edges: Ids) -> Rewrite:
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1))
    where &= (np.abs(numbers) > 0.0).all(axis=1)
    return Rewrite(
        where=where, into=None, edges=_alone(form.terms.constants(np.prod(numbers[where], axis=1)))
    )


def _power_of_minus_infinity(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    powers = operation.name.startswith(("ex2.approx", "exp."))
    where = (form.terms.numbers(edges[:, 0]) == -np.inf) & powers
    return Rewrite(where=where, into=None, edges=_alone(form.terms.constants(np.zeros(int(where.sum())))))


def _power_of_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (form.terms.numbers(edges[:, 0]) == 0.0) & operation.name.startswith(("ex2.approx", "exp."))
    return Rewrite(where=where, into=None, edges=_alone(form.terms.constants(np.ones(int(where.sum())))))


def _tangent_of_zero(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    where = (form.terms.numbers(edges[:, 0]) == 0.0) & operation.name.startswith("tanh.")
    return Rewrite(where=where, into=None, edges=_alone(edges[where, 0]))


def _larger_by_difference(form: Former, _: Opcode, edges: Ids) -> Rewrite:
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
    kept = _alone(result[where])
    return Rewrite(where=where, into=None, edges=kept, vanishes=np.concatenate([a[where], b[where]]))


def _zero_over(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take 0 for 0 / a."""
    divides = operation.family == "div" or operation.name.startswith("div.full.")
    where: Mask = np.asarray((form.terms.numbers(edges[:, 0]) == 0.0) & divides)
    where &= np.isnan(form.terms.numbers(np.where(where, edges[:, 1], edges[:, 0])))
    below = edges[where, 1]
    return Rewrite(where=where, into=None, edges=_alone(edges[where, 0]), vanishes=below, nonzero=below)


def _compared_with_infinity(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a number for other than an infinity."""
    comparison = operation.name.split(".")[1].removesuffix("u")
    numbers = form.terms.numbers(edges[:, :2])
    where: Mask = np.asarray(np.isinf(numbers).any(axis=1) & np.isnan(numbers).any(axis=1))
    where &= comparison in {"eq", "ne"}
    rows = np.flatnonzero(where)
    other = edges[rows, np.where(np.isnan(numbers[rows, 0]), 0, 1)]
    known = form.terms.constants(np.full(len(rows), float(comparison == "ne")))
    return Rewrite(where=where, into=None, edges=_alone(known), vanishes=other)


def _chosen_unless_zero(form: Former, _: Opcode, edges: Ids) -> Rewrite:
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
    return Rewrite(where=found, into=None, edges=_alone(kept[found]), nonzero=kept[found])


def _contracted(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
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


ROUNDED = frozenset({"equal_terms", "parts_of_whole", "narrow_sum"})
"""Rules that hold of a product that is rounded wherever it is used, of no other: terms cancel in most."""

CANCELS = frozenset({"equal_terms", "parts_of_whole", "larger_by_difference"})
"""Rules that take two equal terms for one number; what vanishes are these."""

OF_ALL_VALUES = frozenset({"compared_with_infinity"})
"""Rules of values that must be finite though results may be so without them: what decides between numbers is
no part of these."""

_FOLDED = ("add", "mul", "fma", "div", "narrow", "max", "min")

_TABLE: tuple[tuple[str, ClaimLetter, tuple[str, ...], str, Apply], ...] = (
    ("subtraction", "E", ("sub",), "a - b = a + (-b)", _subtraction),
    ("negation", "E", ("neg",), "neg is the sign of an edge", _negation),
    ("widening", "E", ("widen",), "a wider format holds every number of a narrower one", _identity),
    ("narrow_sum", "E", ("add",), "a + b of two halves is that of float32, rounded again", _narrow),
    ("narrow_product", "E", ("mul",), "a * b of two halves is that of float32, rounded again", _narrow),
    ("magnitude", "E", ("abs",), "|-a| = |a|", _magnitude),
    (
        "signs_of_factors",
        "E",
        ("mul", "div"),
        "(-a) * b = -(a * b), (-a) / b = -(a / b)",
        _signs_of_factors,
    ),
    ("sign_of_dividend", "E", ("other",), "div.full(-a, b) = -div.full(a, b)", _sign_of_dividend),
    ("narrowed_again", "E", ("narrow",), "cvt.rn(a) = a, a a number of that format", _narrowed_again),
    ("sign_of_narrowed", "E", ("narrow",), "cvt.rn(-a) = -cvt.rn(a)", _sign_of_operand),
    ("sign_of_product", "E", ("fma",), "fma(-a, b, c) = fma(a, -b, c) = fma(-b, a, c)", _sign_of_product),
    ("folding", "E", _FOLDED, "operations on finite constants", _folded),
    ("comparison", "E", ("comparison",), "a comparison of constants", _compared),
    ("choice", "E", ("choice",), "what a constant chooses", _chosen),
    ("times_one", "E", ("mul",), "a * 1 = a", _times_one),
    ("over_one", "E", ("div",), "a / 1 = a", _over_one),
    ("over_power_of_two", "E", ("div",), "a / 2**k = a * 2**-k, 2**-k normal", _over_power_of_two),
    ("fused_with_one", "E", ("fma",), "fma(a, 1, c) = a + c", _fused_with_one),
    ("infinite_sum_of_constants", "E", ("add",), "c + inf = inf, c a constant", _infinite_sum_of_constants),
    ("infinite_product", "E", ("mul",), "c * inf = inf, c a constant and no zero", _infinite_product),
    ("power_of_minus_infinity", "E", ("other",), "ex2(-inf) = 0, exp(-inf) = 0", _power_of_minus_infinity),
    ("power_of_zero", "E", ("other",), "ex2(0) = 1, exp(0) = 1", _power_of_zero),
    ("tangent_of_zero", "E", ("other",), "tanh(0) = 0", _tangent_of_zero),
    ("plus_zero", "Z", ("add", "unordered"), "a + 0 = a", _plus_zero),
    ("fused_with_zero", "Z", ("fma",), "fma(0, k, c) = c, k a finite constant", _fused_with_zero),
    ("fused_into_zero", "Z", ("fma",), "fma(a, b, 0) = a * b", _fused_into_zero),
    (
        "larger_than_all",
        "F",
        ("max", "min"),
        "max(a, c) = a, c = -inf or the least number of the format, a finite",
        _larger_than_all,
    ),
    ("larger_by_difference", "F", ("choice",), "a - b > 0 ? a : b = max(a, b)", _larger_by_difference),
    (
        "compared_with_infinity",
        "F",
        ("comparison",),
        "a == inf is false, and a == -inf, a finite",
        _compared_with_infinity,
    ),
    ("zero_over", "F", ("div", "other"), "0 / a = 0, a finite and no zero", _zero_over),
    ("chosen_unless_zero", "F", ("choice",), "a == 0 ? c : a = a, a no zero", _chosen_unless_zero),
    ("infinite_sum", "F", ("add",), "inf + a = inf, a finite", _infinite_sum),
    ("equal_terms", "F", ("add",), "a - a = 0, a finite", _equal_terms),
    ("times_zero", "F", ("mul",), "0 * a = 0, a finite", _times_zero),
    ("fused_with_data_times_zero", "F", ("fma",), "fma(0, a, c) = c, a finite", _fused_with_data_times_zero),
    (
        "parts_of_whole",
        "F",
        ("add",),
        "x * c + (x - x * c) = x, 1/2 <= c <= 1, x finite; also where x is narrow and so are both parts",
        _parts_of_whole,
    ),
    ("contraction", "C", ("fma", "divfma", "addmul"), "fma(a, b, c) becomes a * b + c", _contracted),
    ("commuted", "E", ("add", "mul"), "a + b = b + a, a * b = b * a", _commuted),
    ("commuted_extremes", "Z", ("max", "min"), "max(a, b) = max(b, a)", _commuted),
    ("sign_of_sum", "Z", ("add",), "-a + b = -(a - b)", _sign_of_sum),
    ("sign_of_fused", "Z", ("fma",), "fma(-a, b, c) = -fma(a, b, -c)", _sign_of_fused),
)

_OF_DATA = frozenset({
    *("subtraction", "negation", "widening", "narrow_sum", "narrow_product", "narrowed_again"),
    *("magnitude", "signs_of_factors"),
    *("sign_of_dividend", "sign_of_narrowed", "sign_of_product", "larger_by_difference", "equal_terms"),
    *("parts_of_whole", "contraction", "commuted", "commuted_extremes", "sign_of_sum", "sign_of_fused"),
})  # fmt: skip
"""Rules that may hold where no operand is a constant."""

RULES: tuple[RewriteRule, ...] = tuple(
    RewriteRule(name=name, claim=claim, families=families, says=says, apply=apply, of_data=name in _OF_DATA)
    for name, claim, families, says, apply in _TABLE
)
"""In the order in which they are tried."""

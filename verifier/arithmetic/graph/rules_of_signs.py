"""Rules of the normal form that move signs, order operands, and widen or narrow: they hold of all data.

What each claims stands in the table, `rules.py`.
"""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.opcodes import Opcode, in_format, opcode
from verifier.arithmetic.graph.rewriting import (
    Former,
    Mask,
    Rewrite,
)


def subtraction(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write a - b as a + (-b)."""
    changed = edges.copy()
    changed[:, 1] ^= 1
    return Rewrite(
        where=np.ones(len(edges), np.bool_), into=in_format("add", operation.result), edges=changed
    )


def negation(_: Former, __: Opcode, edges: Ids) -> Rewrite:
    """Take neg for the sign of an edge."""
    return Rewrite(where=np.ones(len(edges), np.bool_), into=None, edges=edges, flip=1)


def identity(_: Former, __: Opcode, edges: Ids) -> Rewrite:
    """Take the operand itself: a wider format holds every number of a narrower one."""
    return Rewrite(where=np.ones(len(edges), np.bool_), into=None, edges=edges)


def narrow(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a sum or product of two halves for that of float32, rounded again."""
    where: Mask = np.full(len(edges), operation.result in {"f16", "bf16"})
    narrowed = opcode(f"cvt.rn.{operation.result}.f32") if where.any() else None
    made = np.full((int(where.sum()), 3), -1, dtype=np.int64)
    if narrowed is not None:
        made[:, 0] = form.formed(in_format(operation.family, "f32"), edges)
    return Rewrite(where=where, into=narrowed, edges=made)


def narrowed_again(form: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take a number that is one of the format, whatever it was widened to between, for itself."""
    held = [_gives(name, operation.result) for name in form.terms.names]
    where: Mask = np.isin(form.terms.operation[edges[:, 0] >> 1], np.flatnonzero(held))
    return Rewrite(where=where, into=None, edges=edges.compress(where, axis=0))


def _gives(name: str, held: str) -> bool:
    """Whether a leaf or an operation of that name gives numbers of a format."""
    known = None if name.startswith("input:") else opcode(name)
    return name.endswith(f":{held}") if known is None else known.result == held


def magnitude(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write |-a| as |a|."""
    where = (edges[:, 0] & 1) == 1
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)))


def _first_unsigned(edges: Ids) -> Ids:
    changed = edges.copy()
    changed[:, 0] &= ~1
    return changed


def signs_of_factors(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take the signs out of a * b, or of a / b."""
    first, second = edges[:, 0] & 1, edges[:, 1] & 1
    where = (first | second) == 1
    changed = edges.compress(where, axis=0)
    changed[:, :2] &= ~1
    return Rewrite(where=where, into=operation, edges=changed, flip=(first ^ second)[where])


def sign_of_operand(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take the sign out of an operation of one operand."""
    where = (edges[:, 0] & 1) == 1
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)), flip=1)


def sign_of_dividend(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Take the sign out of `div.full`, a product of the dividend: of the measured model, not of its name."""
    where = ((edges[:, 0] & 1) == 1) & operation.name.startswith("div.full.")
    return Rewrite(where=where, into=operation, edges=_first_unsigned(edges.compress(where, axis=0)), flip=1)


def sign_of_product(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Leave the sign of a fused product at its first factor, and order the two."""
    sign = (edges[:, 0] ^ edges[:, 1]) & 1
    changed = edges.copy()
    changed[:, :2] &= ~1
    changed[:, :2].sort(axis=1)
    changed[:, 0] |= sign
    where = (changed != edges).any(axis=1)
    return Rewrite(where=where, into=operation, edges=changed[where])


def commuted(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Order two operands."""
    where = edges[:, 0] > edges[:, 1]
    changed = edges.compress(where, axis=0)
    changed[:, :2] = changed[:, 1::-1]
    return Rewrite(where=where, into=operation, edges=changed)


def sign_of_sum(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write -a + b as -(a - b)."""
    where = (edges[:, 0] & 1) == 1
    changed = edges.compress(where, axis=0)
    changed[:, :2] ^= 1
    return Rewrite(where=where, into=operation, edges=changed, flip=1)


def sign_of_fused(_: Former, operation: Opcode, edges: Ids) -> Rewrite:
    """Write fma(-a, b, c) as -fma(a, b, -c)."""
    where = (edges[:, 0] & 1) == 1
    changed = edges.compress(where, axis=0)
    changed[:, 0] ^= 1
    changed[:, 2] ^= 1
    return Rewrite(where=where, into=operation, edges=changed, flip=1)

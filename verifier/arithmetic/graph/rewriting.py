"""What a rule of the normal form is: what it may ask, and what it makes of some rows of one operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.opcodes import Opcode

ClaimLetter = Literal["E", "Z", "F", "C"]
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class Former(Protocol):
    """What a rule may ask of the normal form."""

    terms: SharedTerms

    def formed(self, operation: Opcode, edges: Ids, of: Mask | None = None) -> Ids:
        """Return the normal form of an operation on edges (m, 3), for all rows of a rule or those in `of`."""

    def fused(self, operation: Opcode, edges: Ids, of: Mask | None = None) -> Ids:
        """Return that of sums whose first operands are not rounded, see `ROUNDED`; or of such quotients."""

    def is_fused(self, terms: Ids) -> Mask:
        """Return which terms are sums that have been formed so."""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """What becomes of some rows of one operation.

    where: (m,) the rows; the other fields have a row for each of them.
    into: the operation they become, None if each is the edge in the first column of `edges`.
    flip: 1 where the result is the negative.
    vanishes: edges of which the result no longer speaks, which must be finite. nonzero: edges that must be no
    zero, whatever the results are.
    """

    where: Mask
    into: Opcode | None
    edges: Ids
    flip: Ids | int = 0
    vanishes: Ids | None = None
    nonzero: Ids | None = None


Apply = Callable[[Former, Opcode, Ids], Rewrite]


@dataclass(frozen=True, kw_only=True)
class RewriteRule:
    """One rule: `says` states it, `families` are the operations it is tried on.

    of_data: whether it may hold of operands of which none is a constant.
    """

    name: str
    claim: ClaimLetter
    families: tuple[str, ...]
    says: str
    apply: Apply
    of_data: bool


def alone(first: Ids) -> Ids:
    """Return rows of edges of which only the first is there."""
    edges = np.full((len(first), 3), -1, dtype=np.int64)
    edges[:, 0] = first
    return edges


def nowhere(edges: Ids) -> Rewrite:
    """Return that a rule applies to no row, as is usual."""
    return Rewrite(where=np.zeros(len(edges), dtype=np.bool_), into=None, edges=edges[:0])

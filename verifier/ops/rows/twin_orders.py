"""What the declared computation on symbols asks of compiled code: in which orders it joins terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.online_read import Rescalings
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Merges:
    """In which orders code merges the elements of a row, one order for each mean that it uses.

    column: which of them each column's result uses, (columns,). saved: which one is saved.
    """

    orders: tuple[tuple[Step, ...], ...]
    column: Ids
    saved: int


class Orders(Protocol):
    """In which orders compiled code joins nodes (rows, n) of the builder of a twin."""

    def of_sum(self, nodes: Ids, declared: Tree) -> list[Step]:
        """Return the order of a sum, of which a tree is declared."""

    def of_maximum(self, nodes: Ids) -> list[Step]:
        """Return the order of a maximum."""

    def of_merges(self, nodes: Ids, declared: Tree, *, own: bool) -> Merges:
        """Return the orders in which means are merged; own: whether lanes may keep means of their own."""

    def of_online_sum(self, nodes: Ids) -> Rescalings:
        """Return in which order the parts of an online sum are rescaled and added."""

    def holds(self, nodes: Ids) -> bool:
        """Return whether the code computes each of these terms of the first row on the way to its results."""

    def of_parts(self, nodes: Ids) -> list[Step]:
        """Return the order of a sum that is a part of another."""

    def note(self, terms: int, steps: tuple[Step, ...], declared: Tree) -> None:
        """Take the order of a whole sum of which parts were asked for."""

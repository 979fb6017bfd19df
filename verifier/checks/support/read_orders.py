"""The orders in which a recorded kernel sums, merges and compares, asked for by the declared computation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids, ids
from verifier.arithmetic.graph.growing_form import GrowingForm
from verifier.arithmetic.graph.merges_read import MergeReader, Root
from verifier.arithmetic.graph.normal_form import NormalForm
from verifier.arithmetic.graph.online_read import OnlineReader, Rescalings
from verifier.arithmetic.graph.order_read import OrderReader, Unordered
from verifier.arithmetic.trees.admitted import not_admitted
from verifier.arithmetic.trees.canonical import Order, OrderKind, order
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree
from verifier.ops import Op
from verifier.ops.rows.twin_numbers import NoTwinError
from verifier.ops.rows.twin_orders import Merges
from verifier.records.case import Case


@dataclass(frozen=True, kw_only=True)
class OrderOfSum:
    """In which order the code makes a sum, or merges parts, of so many terms, and the tree that is declared.

    width: of how many terms the declared tree is, those that a mask leaves out included; 0: of `terms`.
    unlike: in what an order of merges is not as declared, "" where the bound of the declaration holds for it.
    root: the term that the first row's sum is, first: the edge of its first term; -1 where they are not kept.
    kind: of what it is the order.
    """

    terms: int
    steps: tuple[Step, ...]
    declared: Tree
    width: int = 0
    unlike: str = ""
    root: int = -1
    first: int = -1
    kind: OrderKind = "sum"

    @property
    def exact(self) -> Order | None:
        """Each addition; None: torch makes some, and does not say in which order."""
        known = not any(isinstance(step, Unordered) for step in self.steps)
        return order(self.steps, self.terms, self.kind) if known else None

    @property
    def allowed_depth(self) -> int:
        """The number of additions that the declared tree allows, or any order where none is declared."""
        return self.declared.depth(self.width or self.terms)

    @property
    def declared_depth(self) -> int | None:
        """The number of additions that the declared tree allows; None: no tree is declared."""
        return self.allowed_depth if self.declared.declared else None

    @property
    def depth(self) -> int:
        """The largest number of additions that a term meets; in the worst order, where it is not known."""
        heights, anywhere = np.zeros(self.terms, dtype=np.int64), 0
        for step in self.steps:
            known = not isinstance(step, Unordered)
            heights[step.left] = np.maximum(heights[step.left], heights[step.right]) + known
            anywhere += 0 if known else len(step.left)
        return int(heights.max(initial=0)) + anywhere


_Said = TypeVar("_Said")
OrderAnswer = tuple[str, object]
"""The name of a question of `Orders`, and what was answered."""


@dataclass(kw_only=True)
class CodeOrders:
    """The orders in a kernel's normal form.

    form: of what asks for them. found: of each sum, and each mean, that was asked for. asked: all edges that
    were asked about. answers: what was said, by what was asked.
    """

    terms: SharedTerms
    form: GrowingForm
    sums: OrderReader
    maxima: OnlineReader
    merges: MergeReader
    kernel: NormalForm
    op: Op
    case: Case
    found: list[OrderOfSum] = field(default_factory=list)
    asked: list[Ids] = field(default_factory=list)
    answers: list[OrderAnswer] = field(default_factory=list)

    def of_sum(self, nodes: Ids, declared: Tree) -> list[Step]:
        """Return the order of a sum."""
        edges = self._edges(nodes)
        steps = self.sums.steps(edges)
        self.found.append(
            OrderOfSum(
                terms=nodes.shape[1], steps=tuple(steps), declared=declared, width=self._width,
                root=self.sums.root(edges), first=int(edges[0]),
            )
        )  # fmt: skip
        return self._said("of_sum", steps)

    def of_maximum(self, nodes: Ids) -> list[Step]:
        """Return the order of a maximum."""
        return self._said("of_maximum", self.maxima.steps(self._edges(nodes)))

    def of_online_sum(self, nodes: Ids) -> Rescalings:
        """Return in which order the parts of an online sum are rescaled and added."""
        return self._said("of_online_sum", self.maxima.rescalings(self._edges(nodes)))

    def holds(self, nodes: Ids) -> bool:
        """Return whether the code computes each of these terms of the first row on the way to its results."""
        return self._said("holds", bool(np.isin(self._edges(nodes) >> 1, self.merges.live).all()))

    def of_parts(self, nodes: Ids) -> list[Step]:
        """Return the order of a sum that is a part of another."""
        return self._said("of_parts", self.sums.steps(self._edges(nodes)))

    def note(self, terms: int, steps: tuple[Step, ...], declared: Tree) -> None:
        """Take the order of a whole sum of which parts were asked for."""
        self.found.append(
            OrderOfSum(terms=terms, steps=steps, declared=declared, width=self._width, kind="online")
        )

    @property
    def _width(self) -> int:
        """Under a mask all sums are of parts of rows, and what is declared is the tree of whole ones."""
        return 0 if self.op.compared is None else self.case.columns

    def of_merges(self, nodes: Ids, declared: Tree, *, own: bool) -> Merges:
        """Return the orders of the means that the first row's results use.

        Raises:
            NoTwinError: there are several and only one is declared, or a result uses several.
            OrderError: see `MergeReader.roots`.

        """
        return self._said("of_merges", self._merges(nodes, declared, own=own))

    def _merges(self, nodes: Ids, declared: Tree, *, own: bool) -> Merges:
        roots = self.merges.roots(self._edges(nodes))
        if len(roots) == 1:  # perhaps no result shows it: of one element, x - x
            return self._of_roots(
                roots, np.zeros(1, np.int64), np.zeros(1, np.int64), nodes, declared, own=own
            )
        column = self._one_each("output", self.merges.users(roots, self._first_row("output")))
        saved = column[:1]
        if "mean" in self.kernel.outputs:
            saved = self._one_each("mean", self.merges.users(roots, self._first_row("mean")))
        elif "grad_input" in self.kernel.outputs:
            saved = self._one_each("grad_input", self.merges.users(roots, self._first_row("grad_input")))
        return self._of_roots(roots, column, saved, nodes, declared, own=own)

    def _of_roots(
        self, roots: tuple[Root, ...], column: Ids, saved: Ids, nodes: Ids, declared: Tree, *, own: bool
    ) -> Merges:
        used = np.unique(np.concatenate([column, saved]))
        if len(used) > 1 and not own:
            raise NoTwinError(f"the code has {len(used)} means of a row, of which one is declared")
        count = nodes.shape[1]
        orders = tuple(roots[number].steps for number in used)
        self.found += [
            OrderOfSum(
                terms=count, steps=order, declared=declared, root=root.term, first=int(self.asked[-1][0]),
                unlike=self._unlike(root, declared, count, own=own), kind="merges",
            )
            for root, order in zip((roots[number] for number in used), orders, strict=True)
        ]  # fmt: skip
        return Merges(
            orders=orders,
            column=ids(np.searchsorted(used, np.broadcast_to(column, (count,)))),
            saved=int(np.searchsorted(used, saved[0])),
        )

    def _unlike(self, root: Root, declared: Tree, count: int, *, own: bool) -> str:
        key = root.term, id(declared), own
        if key not in self.merges.unlike:
            self.merges.unlike[key] = not_admitted(declared, root.steps, count, own=own)
        return self.merges.unlike[key]

    def _first_row(self, name: str) -> Ids:
        edges = self.kernel.outputs[name]
        places = self.op.flat_index(self.case, name, edges.shape)
        return ids(edges.ravel()[places.reshape(self.case.rows, -1)[0]])

    @staticmethod
    def _one_each(name: str, bits: Ids) -> Ids:
        """Return which root each element uses, by number."""
        if (bits == 0).any() or (bits & (bits - 1)).any():
            raise NoTwinError(f"an element of {name} does not use one mean of its row")
        return ids(np.round(np.log2(bits.astype(np.float64))).astype(np.int64))

    def _edges(self, nodes: Ids) -> Ids:
        self.asked.append(self.form.edges(nodes[0]))
        return self.asked[-1]

    def _said(self, asked: str, answer: _Said) -> _Said:
        self.answers.append((asked, answer))
        return answer


class RecalledOrders:
    """The orders that a twin was given, for one that asks the same in turn."""

    def __init__(self, answers: Iterable[OrderAnswer]) -> None:
        """Begin with the first."""
        self._answers = iter(answers)

    def of_sum(self, _nodes: Ids, _declared: Tree) -> list[Step]:
        """Return the order of a sum."""
        return cast("list[Step]", self._next("of_sum"))

    def of_maximum(self, _nodes: Ids) -> list[Step]:
        """Return the order of a maximum."""
        return cast("list[Step]", self._next("of_maximum"))

    def of_merges(self, _nodes: Ids, _declared: Tree, *, own: bool) -> Merges:
        """Return the orders in which means are merged."""
        del own
        return cast("Merges", self._next("of_merges"))

    def of_online_sum(self, _nodes: Ids) -> Rescalings:
        """Return in which order the parts of an online sum are rescaled and added."""
        return cast("Rescalings", self._next("of_online_sum"))

    def holds(self, _nodes: Ids) -> bool:
        """Return whether the code computes these terms."""
        return bool(self._next("holds"))

    def of_parts(self, _nodes: Ids) -> list[Step]:
        """Return the order of a sum that is a part of another."""
        return cast("list[Step]", self._next("of_parts"))

    def note(self, terms: int, steps: tuple[Step, ...], declared: Tree) -> None:
        """Take the order of a whole sum, which is known."""

    def _next(self, asked: str) -> object:
        """Return the next answer.

        Raises:
            NoTwinError: it was given to another question.

        """
        question, answer = next(self._answers, ("", None))
        if question != asked:
            raise NoTwinError("what is asked for is not what was asked for before")
        return answer

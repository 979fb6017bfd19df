"""Compares the recorded expressions of a kernel with those that its declaration says, term by term."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from verifier.arithmetic.formats import Contraction, DivideByN
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Builder, Graph, Ids
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser, first_difference, place_of
from verifier.arithmetic.graph.order_read import MaximumReader, OrderError, OrderReader
from verifier.arithmetic.graph.rules import RULES
from verifier.arithmetic.graph.support import labels_of, reach
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree
from verifier.ops import Op
from verifier.ops.rows.twin import NoTwinError, Way, twin
from verifier.records.case import Case
from verifier.records.subject import Subject

LEVELS = ("EZ", "EZC", "EZF", "EZFC")
"""Claims that are admitted, one after the other, until the graphs agree."""
_CLAIM = {rule.name: rule.claim for rule in RULES}
_ROOTS = ("rsqrt.approx", "rsqrt.approx.ftz", "sqrt.rn", "sqrt.approx", "sqrt.approx.ftz")
_QUOTIENTS = ("div.rn", "div.full")
_RECIPROCALS = ("rcp.rn", "rcp.approx", "rcp.approx.ftz")


@dataclass(frozen=True, kw_only=True)
class OrderOfSum:
    """In which order the code makes a sum of so many terms, and the tree that is declared of it."""

    terms: int
    steps: tuple[Step, ...]
    declared: Tree

    @property
    def depth(self) -> int:
        """The largest number of additions that a term meets."""
        heights = np.zeros(self.terms, dtype=np.int64)
        for step in self.steps:
            heights[step.left] = np.maximum(heights[step.left], heights[step.right]) + 1
        return int(heights.max(initial=0))


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A way along which the kernel is the declared computation.

    fired: how often each rule was applied, on either side. vanished, divisors: what must be finite, and what
    must not be zero, as edges of `terms`. orders: of each sum, as the declaration makes them.
    """

    way: Way
    claims: str
    fired: Mapping[str, int]
    terms: SharedTerms
    kernel: NormalForm
    twin: NormalForm
    orders: tuple[OrderOfSum, ...]

    @property
    def vanished(self) -> Ids:
        """Edges that must be finite."""
        return np.union1d(self.kernel.vanished, self.twin.vanished)

    @property
    def divisors(self) -> Ids:
        """Edges that must not be zero."""
        return np.union1d(self.kernel.divisors, self.twin.divisors)


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Why no way was found: the first difference along the best one.

    results: those that agree along it. sums: how many of its sums the code has.
    """

    results: tuple[str, ...] = ()
    sums: int = -1
    why: str


def compared(
    graph: Graph, op: Op, subject: Subject, case: Case, *, gradients: bool = False
) -> Agreement | Disagreement:
    """Find a way along which each recorded result is the declared one."""
    best = Disagreement(why="of these operations no way is known that a declaration may go")
    for claims in LEVELS:
        normaliser = Normaliser(SharedTerms(), claims)
        kernel = normaliser.normal(graph)
        outputs = np.concatenate([edges.ravel() for edges in kernel.outputs.values()])
        comparison = _Comparison(
            graph=graph, op=op, subject=subject, case=case, gradients=gradients, claims=claims, kernel=kernel,
            terms=normaliser.terms, reader=OrderReader(normaliser.terms, outputs, kernel.line_of),
            maxima=MaximumReader(normaliser.terms, outputs),
        )  # fmt: skip
        differences = []
        for way in ways(graph, op, subject, fused="C" not in claims):
            found = comparison.along(way)
            if isinstance(found, Agreement):
                return found
            differences.append(found)
        # Of equally good ones the last: where products are not fused, no difference is one of fusing alone.
        best = max((*differences, best), key=_reached)
    return best


def _reached(found: Disagreement) -> tuple[int, int]:
    return len(found.results), found.sums


def ways(graph: Graph, op: Op, subject: Subject, *, fused: bool) -> Iterator[Way]:
    """Yield what the names of the graph's operations leave possible of a declaration.

    fused: whether fused operations are told from a product and a sum.
    """
    claim, families = subject.claim, {_family(name) for name in graph.names}
    quotients = [name for name in _QUOTIENTS if name in families] or ["div.rn"]
    last = [name for name in (*_QUOTIENTS, *_RECIPROCALS) if name in families]
    roots: list[tuple[str, ...]] = [(name,) for name in _ROOTS if name in families and name[0] == "r"]
    roots += [(name, end) for name in _ROOTS if name in families and name[0] == "s" for end in last]
    divisions: tuple[DivideByN, ...] = (
        ("division", "reciprocal") if claim.divide_by_n == "either" else (claim.divide_by_n,)
    )
    clamps = (True,) if claim.clamp else (False, True)
    if not op.needs_variance:
        roots, clamps = [()], (False,)
    power = "ex2.approx.ftz" if "ex2.approx.ftz" in families else "ex2.approx"
    both = (False, True) if fused else (False,)
    for divide, clamp, root, fuses, quotient in product(divisions, clamps, roots, both, quotients):
        # A quotient is one number in all uses, whatever is fused (Lemma 2).
        known: list[Contraction] = ["none", "uniform"]
        if divide == "reciprocal" and claim.mean_contraction != "mixed":
            known = [claim.mean_contraction]
        for contraction in known if fused else known[:1]:
            yield Way(
                divide_by_n=divide,
                mean_contraction=contraction,
                clamp=clamp,
                larger="choice" if "ite" in families else "max",
                divide=quotient,
                root=root,
                power=power,
                fuses=fuses,
                contracted=not fused,
            )


def _family(name: str) -> str:
    return name.rpartition(".")[0] or name


@dataclass(kw_only=True)
class _Orders:
    """The orders of sums and maxima in a kernel's normal form. found: of each sum that was asked for."""

    terms: SharedTerms
    claims: str
    reader: OrderReader
    maxima: OrderReader
    found: list[OrderOfSum] = field(default_factory=list)

    def of_sum(self, builder: Builder, formats: Mapping[str, str], nodes: Ids, declared: Tree) -> list[Step]:
        """Return the order of a sum."""
        steps = self.reader.steps(self._edges(builder, formats, nodes))
        self.found.append(OrderOfSum(terms=nodes.shape[1], steps=tuple(steps), declared=declared))
        return steps

    def of_maximum(self, builder: Builder, nodes: Ids, formats: Mapping[str, str]) -> list[Step]:
        """Return the order of a maximum."""
        return self.maxima.steps(self._edges(builder, formats, nodes))

    def _edges(self, builder: Builder, formats: Mapping[str, str], nodes: Ids) -> Ids:
        joined = builder.graph({"terms": nodes[0]}, formats)
        return Normaliser(self.terms, self.claims).normal(joined).outputs["terms"]


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """A kernel in its normal form, to be compared with the declared computation along several ways."""

    graph: Graph
    op: Op
    subject: Subject
    case: Case
    gradients: bool
    claims: str
    terms: SharedTerms
    kernel: NormalForm
    reader: OrderReader
    maxima: OrderReader

    def along(self, way: Way) -> Agreement | Disagreement:
        """Compare each result with the declared one."""
        orders = _Orders(terms=self.terms, claims=self.claims, reader=self.reader, maxima=self.maxima)
        try:
            expected = twin(self.op, self.subject, self.case, way, orders, gradients=self.gradients)
        except (NoTwinError, OrderError) as error:
            return Disagreement(sums=len(orders.found), why=str(error))
        declared = Normaliser(self.terms, self.claims).normal(expected)
        same, why = self._same(declared)
        why = why or self._reaches_more(expected)
        if why:
            return Disagreement(results=same, sums=len(orders.found), why=why)
        fired = {name: self.kernel.fired.get(name, 0) + declared.fired.get(name, 0) for name in _CLAIM}
        known = {_CLAIM[name] for name, count in fired.items() if count}
        return Agreement(
            way=way,
            claims="".join(sorted(known, key="EZFC".index)),
            fired={name: count for name, count in fired.items() if count},
            terms=self.terms,
            kernel=self.kernel,
            twin=declared,
            orders=tuple(orders.found),
        )

    def _same(self, declared: NormalForm) -> tuple[tuple[str, ...], str]:
        """Return the results of which every element is the declared term, and the first difference."""
        same, why = [], ""
        for name, edges in self.kernel.outputs.items():
            if name not in declared.outputs:
                return (), f"the declaration does not say what {name} is"
            places = self.op.flat_index(self.case, name, edges.shape).ravel()
            computed, wanted = edges.ravel()[places], declared.outputs[name].ravel()
            different = np.flatnonzero(computed != wanted)
            if not different.size:
                same.append(name)
            elif not why:
                where = int(different[0])
                why = f"{name}: {self._difference(int(computed[where]), int(wanted[where]))}"
        return tuple(same), why

    def _reaches_more(self, expected: Graph) -> str:
        """Say which result depends on an element that the declared one does not, before any rule; or nothing.

        A rule may delete 0 * y, which is NaN where y is infinite.
        """
        for argument in sorted(
            {n.removeprefix("input:") for n in self.graph.names if n.startswith("input:")}
        ):
            index = self.op.flat_index(self.case, argument, tuple(self.case.given[argument].shape)).ravel()
            place = np.empty_like(index)
            place[index] = np.arange(index.size)
            mine, declared = (reach(g, labels_of(g, argument, place)) for g in (self.graph, expected))
            for name, nodes in self.graph.outputs.items():
                own = nodes.ravel()[self.op.flat_index(self.case, name, nodes.shape).ravel()]
                wanted = expected.outputs[name].ravel()
                more = ~mine.none(own) & (
                    (mine.low[own] < declared.low[wanted]) | (mine.high[own] > declared.high[wanted])
                )
                if more.any():
                    return f"{name} depends on elements of {argument} on which it may not depend"
        return ""

    def _difference(self, computed: int, wanted: int) -> str:
        left, right = first_difference(self.terms, computed, wanted)
        line = place_of(self.terms, self.kernel, left)
        at = f" at {line}" if line else ""
        return f"{self.terms.text(left)} is computed{at}, {self.terms.text(right)} is declared"

"""Compares the recorded expressions of a kernel with those that its declaration says, term by term."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from verifier.arithmetic.formats import Contraction, DivideByN
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.contraction import cancelled_openly
from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.growing_form import GrowingForm, SharingBuilder
from verifier.arithmetic.graph.merges_read import MergeReader
from verifier.arithmetic.graph.normal_form import (
    NormalForm,
    Normaliser,
    cancelled_ambiguously,
    first_difference,
    place_of,
)
from verifier.arithmetic.graph.online_read import OnlineReader
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.arithmetic.graph.order_read import OrderError, OrderReader
from verifier.arithmetic.graph.rules import RULES
from verifier.arithmetic.graph.signs import reached
from verifier.arithmetic.graph.support import labels_of, reach, used_after_sums
from verifier.bounds import variance
from verifier.bounds.variance import SquareOrder
from verifier.bounds.variance import options as variance_options
from verifier.checks.support.few_elements import differ_in_a_few
from verifier.checks.support.reached_elements import beyond_its_part, told_apart
from verifier.checks.support.read_orders import CodeOrders, OrderAnswer, OrderOfSum
from verifier.ops import Op
from verifier.ops.rows.twin import formats_of, twin
from verifier.ops.rows.twin_numbers import QUOTIENTS, NoTwinError, UnfusedSums, Way
from verifier.records.case import Case
from verifier.records.subject import Subject

LEVELS = ("EZ", "EZC", "EZF", "EZFC")
"""Claims that are admitted, one after the other, until the graphs agree."""
_FEW = 16
_NO = (-1, -1, -1)
"""Less than any way reaches: results that agree, sums that the code has, place of its claims."""
_CLAIM = {rule.name: rule.claim for rule in RULES}
_ROOTS = ("rsqrt.approx", "rsqrt.approx.ftz", "sqrt.rn", "sqrt.approx", "sqrt.approx.ftz")
_SQUARES: tuple[SquareOrder, ...] = ("scaled", "nested", "delta_first", "crossed", "counts_first")
_POWERS = ("exp.cuda", "ex2.approx.ftz", "ex2.approx")
_LOGARITHMS = ("log.cuda", "log.libdevice")
_RECIPROCALS = ("rcp.rn", "rcp.approx", "rcp.approx.ftz")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A way along which the kernel is the declared computation.

    claims: those of the rules that were needed; admitted: those of all that might be. fired: how often each
    rule was applied, on either side. vanished, divisors: what must be finite, and what must not be zero, as
    edges of `terms`. orders: of each sum, as the declaration makes them. answers: all that was read of them.
    fuses_some: the kernel fuses products that no way fuses, or not all of those that a way fuses.
    """

    way: Way
    claims: str
    admitted: str
    fired: Mapping[str, int]
    terms: SharedTerms
    kernel: NormalForm
    twin: NormalForm
    orders: tuple[OrderOfSum, ...]
    answers: tuple[OrderAnswer, ...]
    fuses_some: Callable[[], bool]

    @property
    def vanished(self) -> Ids:
        """Edges that must be finite."""
        return np.union1d(self.kernel.vanished, self.twin.vanished)

    @property
    def divisors(self) -> Ids:
        """Edges that must not be zero."""
        return np.union1d(self.kernel.divisors, self.twin.divisors)

    @property
    def nonzero(self) -> Ids:
        """Edges that must not be zero, though results are finite where they are."""
        return np.union1d(self.kernel.nonzero, self.twin.nonzero)


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """Why no way was found: the first difference along the best one.

    results: those that agree along it. sums: how many of its sums the code has. told: why, as it is, or what
    finds out when it is asked.
    """

    results: tuple[str, ...] = ()
    sums: int = -1
    told: str | OrderError | Callable[[], str]

    @property
    def why(self) -> str:
        """What stood in the way."""
        return self.told() if callable(self.told) else str(self.told)


def compared(
    graph: Graph,
    op: Op,
    subject: Subject,
    case: Case,
    *,
    gradients: bool = False,
    plain: tuple[SharedTerms, NormalForm] | None = None,
    first: str = "",
) -> Agreement | Disagreement:
    """Find a way along which each recorded result is the declared one.

    plain: the graph's normal form by claims E and Z, if it is known; more terms are put into its table.
    first: the claims that are admitted first, where another recording of the kernel needed them.
    """
    if user := used_after_sums(graph):
        return Disagreement(told=f"{user} takes a sum that torch makes in an order of its own")
    best, most = Disagreement(told="of these operations no way is known that a declaration may go"), _NO
    levels = _levels(op, subject, case)
    guess = "" if first else _guess(graph, op, subject, case, gradients=gradients)
    at = partial(_at, graph=graph, op=op, subject=subject, case=case, gradients=gradients, plain=plain)

    def few_differ(found: Agreement, less: str) -> bool:
        if "C" not in less and found.fuses_some():
            return True
        possible = ways(graph, op, subject, fused="C" not in less)
        return differ_in_a_few(
            graph, op, subject, case, claims=less, answers=found.answers, gradients=gradients,
            ways=(way for way in possible if _without_fusing(way) == _without_fusing(found.way)),
        )  # fmt: skip

    for claims in sorted(levels, key=lambda level: level != (first or guess)):
        for found in at(claims):
            if isinstance(found, Agreement):
                if claims != guess or "C" not in found.claims:
                    return found
                fewer = [one for one in _fewer(levels, claims, graph) if not few_differ(found, one)]
                others = (one for less in fewer for one in at(less, like=found.way))
                return next((one for one in others if isinstance(one, Agreement)), found)
            # Of equally good ones that of most claims: there no difference is one of fusing alone.
            reached_now = len(found.results), found.sums, levels.index(claims)
            if reached_now > most:
                best, most = found, reached_now
    return best


def _at(
    claims: str,
    *,
    graph: Graph,
    op: Op,
    subject: Subject,
    case: Case,
    gradients: bool,
    plain: tuple[SharedTerms, NormalForm] | None,
    like: Way | None = None,
) -> Iterator[Agreement | Disagreement]:
    """Compare along each way with these claims admitted; like: along those alone that fuse otherwise."""
    known, used = with_functions(graph, fused="C" in claims, marked=True)
    if plain is not None and claims == "EZ" and known is graph and UNORDERED_SUM not in graph.names:
        terms, kernel = plain
    else:
        terms = SharedTerms()
        kernel = Normaliser(terms, claims, unordered=True).normal(known)
    for name, count in used.items():
        kernel.fired[name] = kernel.fired.get(name, 0) + count
    outputs = np.concatenate([edges.ravel() for edges in kernel.outputs.values()])
    comparison = _Comparison(
        graph=graph, op=op, subject=subject, case=case, gradients=gradients, claims=claims, kernel=kernel,
        shared=_growing(terms, claims, case),
        terms=terms, sums=OrderReader(terms, outputs, kernel.line_of),
        maxima=OnlineReader(terms, outputs), merges=MergeReader(terms, outputs),
    )  # fmt: skip
    clamps = _may_clamp(terms, comparison.merges.live)
    for way in ways(known, op, subject, fused="C" not in claims, clamps=clamps):
        if like is None or _without_fusing(way) == _without_fusing(like):
            tried = comparison.tried(way)
            yield tried if isinstance(tried, Disagreement) else comparison.along(way, tried)


def _levels(op: Op, subject: Subject, case: Case) -> tuple[str, ...]:
    """Return the claims to admit, one after the other.

    Parts that are empty, or one element, are merged as declared where values are finite.
    """
    parts = merges_parts(op, subject) or op.form(subject.claim, case.dtype).name.startswith("online")
    return LEVELS[2:] if parts else LEVELS


def _guess(graph: Graph, op: Op, subject: Subject, case: Case, *, gradients: bool) -> str:
    """Return the claims that are most likely needed where to find that fewer do not suffice takes long.

    There are many ways to merge, and the backward passes met so far fuse some products alone, which none of
    them says; nor does any say that the last product of an exponential is fused. Rows that fill their tiles
    have no lanes whose zeros must be finite. Whether fewer claims suffice is asked along the way found.
    """
    if _fuses_exponentials(graph) or (gradients and merges_parts(op, subject)):
        return LEVELS[-1]
    fills = case.columns & (case.columns - 1) == 0
    return "" if not (gradients and op.needs_variance) else "EZC" if fills else LEVELS[-1]


def _fewer(levels: tuple[str, ...], claims: str, graph: Graph) -> list[str]:
    """Return the levels of fewer claims that may suffice where some do."""
    fewer = levels[: levels.index(claims)]
    return [level for level in fewer if "C" in level or not _fuses_exponentials(graph)]


def _fuses_exponentials(graph: Graph) -> bool:
    """Whether the last product of an exponential is fused: claim C alone makes it one that is declared."""
    return "contraction" in with_functions(graph, fused=True, marked=True)[1]


def _without_fusing(way: Way) -> Way:
    return replace(way, mean_contraction="none", fuses=False, contracted=False)


def _growing(terms: SharedTerms, claims: str, case: Case) -> GrowingForm:
    return GrowingForm(SharingBuilder(), Normaliser(terms, claims, unordered=True), formats_of(case))


def merges_parts(op: Op, subject: Subject) -> bool:
    """Whether a variance algorithm is declared that merges parts."""
    named = subject.claim.variance if op.needs_variance else None
    return named is not None and variance_options.merges(named)


def _may_clamp(terms: SharedTerms, live: Ids) -> bool:
    """Whether any of the terms that results reach chooses or takes the larger of two."""
    names = {terms.names[code] for code in np.unique(terms.operation[live])}
    return any(name.startswith(("ite", "max")) for name in names)


def ways(graph: Graph, op: Op, subject: Subject, *, fused: bool, clamps: bool = True) -> Iterator[Way]:
    """Yield what the names of the graph's operations leave possible of a declaration.

    fused: whether fused operations are told from a product and a sum. clamps: whether there may be a clamp.
    """
    claim = subject.claim
    families = {_family(graph.names[code]) for code in np.unique(graph.operation)}
    families |= {"div.full"} if "divfma.full" in families else set()
    quotients = [name for name in QUOTIENTS if name in families] or ["div.rn"]
    last = [name for name in (*QUOTIENTS, *_RECIPROCALS) if name in families]
    roots: list[tuple[str, ...]] = [(name,) for name in _ROOTS if name in families and name[0] == "r"]
    roots += [(name, end) for name in _ROOTS if name in families and name[0] == "s" for end in last]
    divisions: tuple[DivideByN, ...] = (
        ("division", "reciprocal") if claim.divide_by_n == "either" else (claim.divide_by_n,)
    )
    clamped = (True, False) if clamps else (False,)
    if not op.needs_variance:
        roots, clamped = roots or [()], (False,)
    elif claim.clamp and not variance.algorithm(claim.variance or "").NONNEGATIVE:
        clamped = (True,)
    power = next((name for name in _POWERS if name in families), _POWERS[-1])
    logarithm = next((name for name in _LOGARITHMS if name in families), _LOGARITHMS[-1])
    fuses_any = fused and "fma.rn" in families
    both = (True, False) if fuses_any else (False,)
    squares = _SQUARES if merges_parts(op, subject) else _SQUARES[:1]
    for divide, clamp, root, fuses, quotient, order in product(
        divisions, clamped, roots, both, quotients, squares
    ):
        # A quotient is one number in all uses, whatever is fused (Lemma 2).
        known: list[Contraction] = ["uniform", "none"] if fuses_any else ["none"]
        if divide == "reciprocal" and claim.mean_contraction != "mixed":
            known = [claim.mean_contraction]
        for contraction in known:
            yield Way(
                divide_by_n=divide,
                mean_contraction=contraction,
                clamp=clamp,
                larger="choice" if "ite" in families and op.needs_variance else "max",
                divide=quotient,
                root=root,
                power=power,
                logarithm=logarithm,
                fuses=fuses,
                contracted=not fused,
                squares=order,
            )


def _family(name: str) -> str:
    return name.rpartition(".")[0] or name


@dataclass(frozen=True, kw_only=True)
class _Declared:
    """What is declared along a way: the nodes of its results, and the orders that it was given."""

    orders: CodeOrders
    nodes: Mapping[str, Ids]
    unfused: UnfusedSums


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
    shared: GrowingForm
    sums: OrderReader
    maxima: OnlineReader
    merges: MergeReader

    def tried(self, way: Way) -> Disagreement | _Declared | None:
        """Return in what results differ along a way, or what is declared where they seem to agree.

        What the ways have in common is made once for all of them. So it is not used where the order in which
        terms are formed matters: None.
        """
        if self.shared.depends_on_order:
            return None
        found = self._declared(way, self.shared)
        if isinstance(found, _Declared):
            same, why = self._same(found.nodes, self.shared.edges, seems=True)
            if why is not None:
                found = Disagreement(results=same, sums=len(found.orders.found), told=why)
        return None if self.shared.depends_on_order else found

    def along(self, way: Way, tried: _Declared | None) -> Agreement | Disagreement:
        """Compare each result with the declared one; tried: what was declared before."""
        found = tried or self._declared(way, _growing(self.terms, self.claims, self.case))
        if isinstance(found, Disagreement):
            return found
        orders = found.orders
        expected = orders.form.builder.graph(found.nodes, formats_of(self.case))
        declared = Normaliser(self.terms, self.claims, unordered=True).normal(expected)
        same, differs = self._same(declared.outputs, lambda edges: edges)
        why = differs or self._mixes() or self._reaches_more(declared.graph)
        if why:
            return Disagreement(results=same, sums=len(orders.found), told=why)
        fired = {name: self.kernel.fired.get(name, 0) + declared.fired.get(name, 0) for name in _CLAIM}
        known = {_CLAIM[name] for name, count in fired.items() if count}
        return Agreement(
            way=way,
            claims="".join(sorted(known, key="EZFC".index)),
            admitted=self.claims,
            fired={name: count for name, count in fired.items() if count},
            terms=self.terms,
            kernel=self.kernel,
            twin=declared,
            orders=tuple(orders.found),
            answers=tuple(orders.answers),
            fuses_some=partial(self._fuses_some, found),
        )

    def _declared(self, way: Way, form: GrowingForm) -> _Declared | Disagreement:
        """Build what is declared."""
        orders = CodeOrders(
            terms=self.terms, form=form, sums=self.sums, maxima=self.maxima, merges=self.merges,
            kernel=self.kernel, op=self.op, case=self.case,
        )  # fmt: skip
        unfused = UnfusedSums()
        try:
            nodes = twin(
                self.op, self.subject, self.case, way, orders, form.builder,
                gradients=self.gradients, unfused=unfused,
            )  # fmt: skip
        except NoTwinError as error:
            return Disagreement(sums=len(orders.found), told=str(error))
        except OrderError as error:
            return Disagreement(sums=len(orders.found), told=error)
        return _Declared(orders=orders, nodes=nodes, unfused=unfused)

    def _fuses_some(self, declared: _Declared) -> bool:
        """Whether the kernel fuses products as no way does; see `Agreement`."""

        def terms(nodes: list[Ids]) -> Ids:
            empty = np.zeros(0, dtype=np.int64)
            return declared.orders.form.edges(np.concatenate([empty, *(n.ravel() for n in nodes)])) >> 1

        chosen, always = terms(declared.unfused.by_choice), terms(declared.unfused.always)  # new ones, too
        fused, rounded = np.zeros((2, self.terms.count), dtype=np.bool_)
        fused[self.kernel.fused], rounded[self.kernel.rounded] = True, True
        some = fused[chosen].any() and (rounded[chosen] & ~fused[chosen]).any()
        return bool(some or fused[always].any())

    def _mixes(self) -> str:
        """Say which sum is one number where its product is fused, and another where it is rounded.

        Of sums of two products either may be fused, as in the lanes of a butterfly: they may not cancel.
        """
        for term in cancelled_ambiguously(self.terms, [self.kernel])[:1].tolist():
            return f"{self.terms.text(2 * term)}, of which not all uses fuse the same product, would cancel"
        for term in cancelled_openly(self.terms, [self.kernel])[:1].tolist():
            return f"{self.terms.text(2 * term)}, which ptxas may fuse in one place alone, would cancel"
        if not self.kernel.mixed.size:
            return ""
        outputs = np.concatenate([edges.ravel() for edges in self.kernel.outputs.values()])
        for term in np.intersect1d(self.kernel.mixed, reached(self.terms, outputs))[:1].tolist():
            line = self.kernel.line_of(2 * term)
            at = f" at {line}" if line else ""
            return f"{self.terms.text(2 * term)}{at} is fused in one place and rounded in another"
        return ""

    def _same(
        self, declared: Mapping[str, Ids], edges_of: Callable[[Ids], Ids], *, seems: bool = False
    ) -> tuple[tuple[str, ...], str | Callable[[], str] | None]:
        """Return the results of which every element is the declared term, and what tells a difference.

        edges_of: gives the edges of what is declared. A few are asked for first: most ways differ in these.
        seems: whether it is enough that no result differs in a few, since all are compared later.
        """
        same, why, few = list[str](), None, dict[str, bool]()
        pairs = {name: self._pair(name, declared[name]) for name in self.kernel.outputs if name in declared}
        for name in self.kernel.outputs:
            if name not in declared:
                return (), f"the declaration does not say what {name} is"
            computed, wanted = pairs[name]
            part = slice(None, None, max(len(wanted) // _FEW, 1))
            few[name] = np.array_equal(computed[part], edges_of(wanted[part]))
        if seems and all(few.values()):
            return tuple(few), None
        for name, (computed, wanted) in pairs.items():
            if few[name] and np.array_equal(computed, edges_of(wanted)):
                same.append(name)
            elif not why:
                why = partial(self._first, name, computed, wanted, edges_of)
        return tuple(same), why

    def _pair(self, name: str, declared: Ids) -> tuple[Ids, Ids]:
        """Return the edges of a result's elements and what is declared of each, in canonical rows."""
        edges = self.kernel.outputs[name]
        places = self.op.flat_index(self.case, name, edges.shape).ravel()
        return edges.ravel()[places], declared.ravel()

    def _reaches_more(self, expected: Graph) -> str:
        """Say which result depends on an element that the declared one does not, before any rule; or nothing.

        A rule may delete 0 * y, which is NaN where y is infinite. In rows of one element even the declared
        statistics may not reach it (x - x), and a result of the row may.
        """
        for argument in sorted(
            {n.removeprefix("input:") for n in self.graph.names if n.startswith("input:")}
        ):
            if self.op.compared is not None:
                if more := beyond_its_part(self.kernel.graph, self.op, self.case, argument):
                    return f"{more} depends on elements of {argument} that take no part in its row"
                continue
            shape = tuple(self.case.given[argument].shape)
            for names, labels in told_apart(self.op, self.case, argument, shape, self.graph.outputs):
                if more := self._reaching_more(expected, names, argument, labels):
                    return f"{more} depends on elements of {argument} on which it may not depend"
        return ""

    def _reaching_more(self, expected: Graph, names: Collection[str], argument: str, labels: Ids) -> str:
        """Return which of some results reaches a label that the declared one does not, "" where none does."""
        mine, declared = (reach(g, labels_of(g, argument, labels)) for g in (self.graph, expected))
        for name in names:
            nodes = self.graph.outputs[name]
            own = nodes.ravel()[self.op.flat_index(self.case, name, nodes.shape).ravel()]
            wanted = expected.outputs[name].ravel()
            if argument == "input" and self.case.columns == 1 and own.size == self.case.rows:
                rows = np.arange(own.size)
                if not mine.outside(own, rows).any():
                    continue
            more = ~mine.none(own) & (
                (mine.low[own] < declared.low[wanted]) | (mine.high[own] > declared.high[wanted])
            )
            if more.any():
                return name
        return ""

    def _first(self, name: str, computed: Ids, wanted: Ids, edges_of: Callable[[Ids], Ids]) -> str:
        declared = edges_of(wanted)
        where = int(np.flatnonzero(computed != declared)[0])
        return self._difference(name, int(computed[where]), int(declared[where]))

    def _difference(self, name: str, computed: int, wanted: int) -> str:
        left, right = first_difference(self.terms, computed, wanted)
        line = place_of(self.terms, self.kernel, left)
        at = f" at {line}" if line else ""
        return f"{name}: {self.terms.text(left)} is computed{at}, {self.terms.text(right)} is declared"

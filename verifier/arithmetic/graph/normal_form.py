"""Brings graphs into one table of shared terms, level by level, by the rules that the caller admits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import FULL_NAMES, decoded
from verifier.arithmetic.graph.graph import Bits, Graph, Ids, distinct, ids, pruned
from verifier.arithmetic.graph.levels import levels, reaching
from verifier.arithmetic.graph.opcodes import Opcode, opcode
from verifier.arithmetic.graph.rewriting import Mask, RewriteRule
from verifier.arithmetic.graph.rules import CANCELS, ROUNDED, RULES
from verifier.arithmetic.graph.signs import reached

_HELD = ("", "f16", "bf16", "f32", "f64", "pred")
_CODE = {name: code for code, name in enumerate(_HELD)}
_PLAIN, _FIRST_FUSED, _SECOND_FUSED = 1, 2, 4
"""How a sum was made: of rounded terms, or with its first or second term a product that was not rounded.
Of two products that are added each may be the one that is fused, and these are two numbers; so it is of a
product and its negative, of which the sum is its rounding error or the negative of that."""
_FUSED = _FIRST_FUSED | _SECOND_FUSED


@dataclass(frozen=True, kw_only=True, eq=False)
class NormalForm:
    """A graph in a table of shared terms.

    graph: the nodes that outputs reach.
    edges: (n,) the edge of each node.
    outputs: the edges of each output's elements.
    fired: how often each rule was applied.
    vanished: edges that the result no longer speaks of and that must be finite (rules of claim F).
    divisors: edges that must not be zero, because a zero's sign is not kept (see `signs`).
    nonzero: edges that must not be zero, because a rule has left out what is chosen in their place.
    fused, rounded: terms of sums of which a product is fused in some place, of sums of which none is in some
    place, and of quotients that are (rule of claim C): what is in both stands for two numbers (`mixed`).
    either: terms of sums of two products of which one is fused in one place and the other in another: two
    numbers, too, as are those in whose place that of a copy of a thread may stay. cancelled: edges that were
    taken for equal ones (`rules.CANCELS`).
    """

    graph: Graph
    edges: Ids
    outputs: dict[str, Ids]
    fired: dict[str, int]
    vanished: Ids
    divisors: Ids
    nonzero: Ids
    fused: Ids
    rounded: Ids
    either: Ids
    cancelled: Ids
    cancelling: Ids

    @property
    def mixed(self) -> Ids:
        """Terms of which a product is fused in one place and rounded in another."""
        return np.intersect1d(self.fused, self.rounded, assume_unique=True)

    def line_of(self, edge: int) -> str:
        """Return the place in the source of the first node that became this term, "" where unknown."""
        return next(iter(self.lines_of(np.array([edge >> 1]))), "")

    def lines_of(self, terms: Ids) -> list[str]:
        """Return the places in the source of nodes that became these terms, one each where it is known."""
        known = np.array([bool(line) for line in self.graph.lines], dtype=np.bool_)[self.graph.line]
        nodes = np.flatnonzero(known & np.isin(self.edges >> 1, terms))
        _, first = np.unique(self.edges[nodes] >> 1, return_index=True)
        return [self.graph.lines[line] for line in self.graph.line[nodes[first]]]


class Normaliser:
    """Forms terms by the rules of the admitted claims ("E", "EZ", "EZF", "EZFC")."""

    def __init__(
        self,
        terms: SharedTerms,
        claims: str = "EZ",
        *,
        unordered: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Form into `terms`.

        unordered: whether sums in an order that is not known are terms, which then stand for several numbers;
        else they equal nothing. without: rules that are not applied.
        """
        self.terms = terms
        self.asked = False
        """Whether a rule has asked which sums have been formed of products that are not rounded."""
        self._unordered = unordered
        self.fired: Counter[str] = Counter()
        self._rules: dict[str, list[RewriteRule]] = {}
        for rule in RULES:
            admitted = rule.claim in claims and rule.name not in without
            for family in rule.families if admitted else ():
                self._rules.setdefault(family, []).append(rule)
        self._vanished: list[Ids] = []
        self._divisors: list[Ids] = []
        self._nonzero: list[Ids] = []
        self._cancelled: list[Ids] = []
        self._cancelling: list[Ids] = []
        self._cancels: Mask = np.zeros(0, dtype=np.bool_)
        """Of the rows that a rule is given, of which of them equal ones were made to cancel on the way."""
        self._sums = np.zeros(1, dtype=np.int8)
        self._made: Ids | None = None
        """Of the rows that a rule is given, how many nodes of a run each stands for; None: one."""

    def normal(self, graph: Graph) -> NormalForm:
        """Return the normal form of what the outputs reach.

        What a choice never takes is left out: nothing is asked of it.
        """
        small = pruned(graph)
        edges = self._all(small)
        if (less := self._without_what_is_never_chosen(small, edges)) is not None:
            small, edges = less, self._all(less)
        copied = edges[:0] if small.several is None else edges[small.several]
        return NormalForm(
            graph=small,
            edges=edges,
            outputs={name: edges[nodes] for name, nodes in small.outputs.items()},
            fired=dict(self.fired),
            vanished=_distinct(self._vanished),
            divisors=_distinct(self._divisors),
            nonzero=_distinct(self._nonzero),
            fused=ids(np.flatnonzero(self._sums & _FUSED)),
            rounded=ids(np.flatnonzero(self._sums & _PLAIN)),
            either=_distinct([np.flatnonzero(self._sums & _FUSED == _FUSED), copied >> 1]),
            cancelled=_distinct(self._cancelled),
            cancelling=_distinct(self._cancelling),
        )

    def _all(self, small: Graph) -> Ids:
        """Return the edges of all nodes, and note what their rules need, and nothing else."""
        self.fired, self._vanished, self._divisors, self._cancelled = Counter(), [], [], []
        self._nonzero, self._cancelling = [], []
        self._sums = np.zeros(1, dtype=np.int8)
        edges = np.full(len(small) + 1, -1, dtype=np.int64)
        held = np.zeros(len(small) + 1, dtype=np.int64)
        for level in levels(small):
            operations = small.operation[level]
            for code in distinct(ids(operations)).tolist():
                nodes = level[operations == code]
                self._made = None if small.made is None else small.made[nodes]
                below = small.operands.take(nodes, axis=0)
                edges[nodes], held[nodes] = self.nodes(
                    small.names[code], below, small.value[nodes], edges[below], held[below], small.formats
                )
                self._cancelling.append(nodes[self._cancels])
        self._made = None
        return ids(edges[:-1])

    def _without_what_is_never_chosen(self, graph: Graph, edges: Ids) -> Graph | None:
        """Return the graph without what choices between known numbers never take; None: they take all."""
        if "ite" not in graph.names:
            return None
        nodes = np.flatnonzero(graph.operation == graph.names.index("ite"))
        asked = self.terms.numbers(edges[graph.operands[nodes, 0]])
        nodes, asked = nodes[~np.isnan(asked)], asked[~np.isnan(asked)]
        if not nodes.size:
            return None
        operands = graph.operands.copy()
        operands[nodes, 1:] = np.where(asked != 0.0, operands[nodes, 1], operands[nodes, 2])[:, None]
        less = pruned(replace(graph, operands=operands))
        return less if len(less) < len(graph) else None

    def formed(self, operation: Opcode, edges: Ids, of: Mask | None = None) -> Ids:
        """Return the normal form of an operation on edges (m, 3); of: see `Former`."""
        return self._noted(operation, edges, of, frozenset())

    def fused(self, operation: Opcode, edges: Ids, of: Mask | None = None) -> Ids:
        """Return that of sums whose first operands are not rounded, or of quotients that are not."""
        return self._noted(operation, edges, of, ROUNDED)

    def _noted(self, operation: Opcode, edges: Ids, of: Mask | None, without: frozenset[str]) -> Ids:
        found, cancels = self._formed(operation, edges, self._made_of(of), without)
        self._cancels[slice(None) if of is None else of] |= cancels
        return found

    def _made_of(self, of: Mask | None) -> Ids | None:
        return self._made if self._made is None or of is None else self._made[of]

    def is_fused(self, terms: Ids) -> Mask:
        """Return which terms are sums that have been formed so."""
        self.asked = True
        last = len(self._sums) - 1  # terms beyond were formed elsewhere
        return np.asarray((terms <= last) & (self._sums[np.minimum(terms, last)] & _FUSED != 0))

    def _note(self, terms: Ids, how: int | Ids) -> None:
        """Note how sums are made; terms may be repeated."""
        if len(self._sums) < self.terms.count:
            room = np.zeros(2 * self.terms.count - len(self._sums), dtype=np.int8)
            self._sums = np.concatenate([self._sums, room])
        np.bitwise_or.at(self._sums, terms, np.asarray(how, dtype=np.int8))

    def _formed(
        self, operation: Opcode, edges: Ids, made: Ids | None, without: frozenset[str]
    ) -> tuple[Ids, Mask]:
        """Return the edges that rows of an operation become, and of which of them equal ones cancelled."""
        result = np.full(len(edges), -1, dtype=np.int64)
        cancels: Mask = np.zeros(len(edges), dtype=np.bool_)
        flip = np.zeros(len(edges), dtype=np.int64)
        rows, edges, unrounded = np.arange(len(edges)), edges.copy(), edges[:, 0] >> 1
        constant = self._any_constant(edges)
        for rule in self._rules.get(operation.family, ()):
            if rule.name in without or not (constant or rule.of_data):
                continue
            outer = self._made, self._cancels
            self._made, self._cancels = made, np.zeros(len(edges), dtype=np.bool_)
            found = rule.apply(self, operation, edges)
            cancels[rows] |= self._cancels
            self._made, self._cancels = outer
            if not found.where.any():
                continue
            part = None if made is None else made[found.where]
            self.fired[rule.name] += int(found.where.sum() if part is None else part.sum())
            flip[rows[found.where]] ^= found.flip
            if found.vanishes is not None:
                self._vanished.append(found.vanishes)
                if rule.name in CANCELS:
                    self._cancelled.append(found.vanishes)
                    cancels[rows[found.where]] = True
            if found.nonzero is not None:
                self._nonzero.append(found.nonzero)
            if found.into == operation:
                edges[found.where] = found.edges
                continue
            done = found.edges[:, 0]
            if found.into is not None:
                done, below = self._formed(found.into, found.edges, part, without)
                cancels[rows[found.where]] |= below
            result[rows[found.where]] = done
            kept = ~found.where
            rows, edges = rows[kept], edges.compress(kept, axis=0)
            made = None if made is None else made[kept]
            if not rows.size:
                break
        if rows.size:
            if operation.divisor >= 0:
                self._divisors.append(edges[:, operation.divisor])
            made = self.terms.shared(operation.name, edges)
            if operation.family == "add" or operation.name.startswith("div.full"):
                first = edges[:, 0] >> 1 == unrounded[rows]
                either = edges[:, 0] == edges[:, 1] ^ 1  # a * b - a * b: signs tell no more which was fused
                how = np.where(either, _FUSED, np.where(first, _FIRST_FUSED, _SECOND_FUSED))
                self._note(made, how if without else _PLAIN)
            result[rows] = 2 * made
        return ids(result ^ flip), cancels

    def _any_constant(self, edges: Ids) -> bool:
        """Return whether any operand is a constant: rules change signs and order of operands alone."""
        numbers = self.terms.number[edges >> 1]
        return not bool((np.isnan(numbers) | (edges < 0)).all())

    def nodes(  # noqa: PLR0917
        self, name: str, operands: Ids, value: Bits, edges: Ids, held: Ids, formats: Mapping[str, str]
    ) -> tuple[Ids, int | Ids]:
        """Return the edges of nodes of one name, and the formats they are held in.

        operands: (n, 3), -1 where absent; edges, held: those of operands. value: (n,) of leaves. formats: of
        the elements of arguments.
        """
        self._cancels = np.zeros(len(value), dtype=np.bool_)
        kind, _, detail = name.partition(":")
        if kind == "literal" and detail in FULL_NAMES:
            numbers = decoded(detail, value)
            known = ~np.isnan(numbers)
            found: Ids = np.empty(len(value), dtype=np.int64)
            found[known] = self.terms.constants(numbers[known])
            found[~known] = self.terms.unknowns(int((~known).sum()))
            return found, _CODE[detail]
        if kind in {"input", "scalar"} and detail:
            kept, absent = formats.get(detail, ""), np.full((len(value), 3), -1, dtype=np.int64)
            found = 2 * self.terms.shared(f"{name}:{kept}", absent, value)
            return found, _CODE.get(kept, 0)
        operation = opcode(name)
        if operation is None or (operation.family == "unordered" and not self._unordered):
            return self.terms.unknowns(len(value)), 0
        typed, result = _typed(operation, held, operands)
        if typed.all():
            return self.formed(operation, edges), result
        found = np.empty(len(value), dtype=np.int64)
        found[typed] = self.formed(operation, edges.compress(typed, axis=0), typed)
        found[~typed] = self.terms.unknowns(int((~typed).sum()))
        return found, ids(np.where(typed, result, 0))


def _typed(operation: Opcode, held: Ids, operands: Ids) -> tuple[Mask, Ids]:
    """Return which nodes have operands in the formats that are read, and the formats of results."""
    right = np.ones(len(operands), dtype=np.bool_)
    for place in range(operands.shape[1]):
        right &= (operands[:, place] >= 0) == (place < operation.arity)
    if operation.family == "choice":
        right &= (held[:, 0] == _CODE["pred"]) & (held[:, 1] == held[:, 2]) & (held[:, 1] > 0)
        return right, held[:, 1]
    wanted = _CODE[operation.source]
    for place in range(operation.arity):
        right &= held[:, place] == wanted
    return right, np.full(len(held), _CODE[operation.result])


def _distinct(parts: Iterable[Ids]) -> Ids:
    return distinct(np.concatenate([np.zeros(0, np.int64), *parts]))


def cancelled_ambiguously(terms: SharedTerms, forms: Iterable[NormalForm]) -> Ids:
    """Return the terms that stand for two numbers and are part of what was taken for equal.

    That is what cancels, and what a choice compares and gives, as a clamp does.
    """
    known = list(forms)
    several = _distinct([each for form in known for each in (form.mixed, form.either)])
    cancelled = np.intersect1d(several, reached(terms, _distinct([form.cancelled for form in known])))
    return _distinct([cancelled, *(_compared_and_given(form, several) for form in known)])


def _compared_and_given(form: NormalForm, several: Ids) -> Ids:
    """Return the terms that a choice compares, and gives as another number than it compares, perhaps.

    That is one of several as another node, and all that depends on a node in whose place that of a copy may
    stay: it may be one number where a register was read, and another where memory was.
    """
    graph, found = form.graph, [np.zeros(0, dtype=np.int64)]
    copied = np.zeros(0, dtype=np.int64) if graph.several is None else np.flatnonzero(graph.several)
    copied_below = reaching(graph.operands, copied)
    choice = np.array([name == "ite" for name in graph.names], dtype=np.bool_)
    chosen = graph.operands[choice[graph.operation]]
    compared = graph.operands[chosen[:, 0]]
    for asked, given in ((asked, given) for asked in (0, 1) for given in (1, 2)):
        u, w = compared[:, asked], chosen[:, given]
        terms = form.edges[u] >> 1
        apart = ((u != w) & np.isin(terms, several)) | copied_below[u]
        found.append(terms[(u >= 0) & apart & (terms == form.edges[w] >> 1)])
    return _distinct(found)


def first_difference(terms: SharedTerms, left: int, right: int) -> tuple[int, int]:
    """Return the edges at which two edges that differ first differ, operands from left to right."""
    while True:
        a, b = left >> 1, right >> 1
        if a == b or (left ^ right) & 1 or terms.operation[a] != terms.operation[b]:
            return left, right
        pairs = [(int(x), int(y)) for x, y in zip(terms.edges[a], terms.edges[b], strict=True) if x != y]
        if not pairs or min(pairs[0]) < 0:
            return left, right
        left, right = pairs[0]


def place_of(terms: SharedTerms, form: NormalForm, edge: int) -> str:
    """Return where a graph computes a term, or first uses it where no operation of its own became it."""
    if line := form.line_of(edge):
        return line
    uses = (terms.edges[form.edges >> 1] >> 1 == edge >> 1).any(axis=1)
    lines = (form.graph.lines[line] for line in form.graph.line[uses][:64])
    return next((line for line in lines if line), "")

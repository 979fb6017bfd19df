"""Holds a drawn graph against its normal form: every node, bound of a sign and range, at many points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from graph_arithmetic import computed, power, reciprocal, sum_with_product
from random_graphs import FORMATS_OF_INPUTS, Drawn, drawn, inputs_of

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.levels import levels_of
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser, cancelled_ambiguously
from verifier.arithmetic.graph.opcodes import SUM_WITH_PRODUCT, opcode
from verifier.arithmetic.graph.ranges import finite_terms
from verifier.arithmetic.graph.signs import Signs

LEVELS = ("E", "EZ", "EZF", "EZFC")
_FIRST_FUSED, _FUSED = 2, 6


@dataclass(kw_only=True)
class Held:
    """What was found of one graph: faults in words, rules that fired, and how many numbers were compared."""

    faults: list[str]
    fired: Counter[str]
    compared: int = 0


class Numbers:
    """The numbers of all terms of a table in one normal form, each of one copy of a graph."""

    def __init__(
        self, terms: SharedTerms, form: NormalForm, sums: Ids, inputs: dict[str, Array], was: Array
    ) -> None:
        """Compute all terms. sums: how each was made. was: (nodes, points) of the graph itself."""
        self.terms, self.form, self._inputs = terms, form, inputs
        copies, points = next(iter(inputs.values())).shape
        self.owner = np.full(terms.count, -1)
        self.several = np.zeros(terms.count, dtype=np.bool_)
        self.several[np.union1d(form.mixed, form.either)] = True
        self.values = np.full((terms.count, points), np.nan)
        edges = form.outputs["y"].ravel()
        unknown = terms.names.index("unknown") if "unknown" in terms.names else -1
        sums = np.concatenate([sums, np.zeros(terms.count, sums.dtype)])
        below = np.where(terms.edges[: terms.count] < 0, -1, terms.edges[: terms.count] >> 1)
        for level in levels_of(below):
            for code in np.unique(terms.operation[level]).tolist():
                these = level[terms.operation[level] == code]
                name = terms.names[code]
                if code == unknown:
                    for term in these.tolist():
                        nodes = np.flatnonzero(edges == 2 * term)
                        self.values[term], self.owner[term] = was[nodes[0]], nodes[0] % copies
                elif name == "constant":
                    self.values[these] = terms.number[these, None]
                elif name.startswith("input:"):
                    self.owner[these] = terms.value[these]
                    self.values[these] = inputs[name.split(":")[1]][self.owner[these]]
                else:
                    fused = (
                        np.full(len(these), _FIRST_FUSED)
                        if name == SUM_WITH_PRODUCT
                        else sums[these] & _FUSED
                    )
                    self._compute(name, these[fused == 0])
                    self._compute_fused(name, these[fused != 0], sums)

    def of(self, edges: Ids) -> Array:
        """Return the numbers of edges, (n, points)."""
        return np.where((edges & 1 == 1)[:, None], -self.values[edges >> 1], self.values[edges >> 1])

    def copies_of(self, edge: int) -> Ids:
        """Return the copies that a term may be of; where none is known, all."""
        term = edge >> 1
        if self.owner[term] >= 0:
            return self.owner[[term]]
        if not np.isnan(self.terms.number[term]):
            return np.zeros(0, dtype=np.int64)
        return np.arange(self.form.outputs["y"].shape[1])

    def _inherit(self, terms: Ids) -> list[Ids]:
        edges = self.terms.edges[terms]
        used = [edges[:, place] for place in range(3) if len(edges) and (edges[:, place] >= 0).all()]
        for one in used:
            self.owner[terms] = np.maximum(self.owner[terms], self.owner[one >> 1])
            self.several[terms] |= self.several[one >> 1]
        return used

    def _compute(self, name: str, terms: Ids) -> None:
        if terms.size:
            known = "div.full.f32" if name.startswith("div.full.f32") else name
            self.values[terms] = computed(known, *(self.of(one) for one in self._inherit(terms)))

    def _compute_fused(self, name: str, terms: Ids, sums: Ids) -> None:
        """Compute sums of which an operand is not rounded, and quotients that are such operands."""
        if name.startswith("div.full"):
            self._compute(name, terms)
            return
        self._inherit(terms)
        for term in terms.tolist():
            first = name == SUM_WITH_PRODUCT or bool(sums[term] & _FIRST_FUSED)
            product, other = (int(one) for one in self.terms.edges[term, :2][:: 1 if first else -1])
            factors = self._factors(product)
            if factors is None:
                self.values[term] = computed(
                    "add.f32" if name == SUM_WITH_PRODUCT else name,
                    self.of(np.array([product]))[0],
                    self.of(np.array([other]))[0],
                )
                continue
            with np.errstate(all="ignore"):
                self.values[term] = sum_with_product(
                    name.rpartition(".")[2], *factors, self.of(np.array([other]))[0]
                )

    def _factors(self, edge: int) -> tuple[Array, Array] | None:
        """Return two factors of which an edge is the rounded product, None where it is none."""
        sign, term = -1.0 if edge & 1 else 1.0, edge >> 1
        name = self.terms.names[int(self.terms.operation[term])]
        if name.startswith("cvt.rn") and not self.terms.edges[term, 0] & 1:
            within = int(self.terms.edges[term, 0]) >> 1
            if self.terms.names[int(self.terms.operation[within])] == "mul.f32":
                return self._factors(2 * within + (edge & 1))
        operands = [
            self.of(self.terms.edges[term, [k]])[0] for k in range(2) if self.terms.edges[term, k] >= 0
        ]
        with np.errstate(all="ignore"):
            if name in {"mul.f16", "mul.bf16", "mul.f32", "mul.f64"}:
                return sign * operands[0], operands[1]
            if name == "div.full.f32":
                return sign * operands[0], reciprocal(operands[1])
            if name.startswith("exp."):
                return sign * power(operands[0]), np.ones(())
        return None


def held(seed: int, claims: str, *, copies: int = 16) -> Held:
    """Draw the graph of a seed and hold all of its nodes against their normal form."""
    one, inputs = drawn(seed, copies=copies), inputs_of(seed, copies)
    return _held(one, inputs, claims)


def _held(one: Drawn, inputs: dict[str, Array], claims: str) -> Held:
    values = one.values(inputs)
    was = values.reshape(-1, values.shape[-1])
    terms = SharedTerms()
    normaliser = Normaliser(terms, claims, unordered=True)
    form = normaliser.normal(one.graph())
    found = Held(faults=[], fired=Counter(form.fired))
    numbers = Numbers(terms, form, normaliser._sums, inputs, was)
    needed = _obligations(one, values, numbers)
    ambiguous = cancelled_ambiguously(terms, [form])
    for term in ambiguous.tolist():
        needed[numbers.copies_of(2 * term)] = False
    edges = form.outputs["y"].ravel()
    copy = np.tile(np.arange(one.copies), len(one.steps))
    asked = needed[copy] & ~numbers.several[edges >> 1][:, None]
    now = numbers.of(edges)
    same = (was == now) | (np.isnan(was) & np.isnan(now))
    if claims == "E":
        same &= (np.signbit(was) == np.signbit(now)) | np.isnan(was)
    found.compared += int(asked.sum())

    def differs(node: int, point: int) -> str:
        return f"is {now[node, point]:.9g} in the normal form {terms.text(int(edges[node]), 5)}"

    found.faults += _named(one, asked & ~same, was, differs)
    if claims != "E":
        found.faults += _signs(one, numbers, edges, was, needed[copy])
    return found


def _obligations(one: Drawn, values: Array, numbers: Numbers) -> Array:
    """Return at which points (copies, points) what the rules ask for holds."""
    form, terms = numbers.form, numbers.terms
    copies, points = values.shape[1:]
    needed = np.ones((copies, points), dtype=np.bool_)
    if not (form.divisors.size or form.vanished.size or form.nonzero.size):
        return needed
    for edges, wanted in (
        (form.divisors, lambda n: n != 0.0),
        (form.nonzero, lambda n: n != 0.0),
        (form.vanished, np.isfinite),
    ):
        right = wanted(numbers.of(edges))
        for place in np.flatnonzero(~right.all(axis=1)).tolist():
            needed[numbers.copies_of(int(edges[place]))] &= right[place]
    if (terms.numbers(form.divisors) == 0.0).any():  # of which copy they are is not known
        for step in one.steps:
            known = opcode(step.name) if step.operands else None
            if known is not None and known.divisor >= 0:
                needed &= values[step.operands[known.divisor]] != 0.0
    return needed


def _signs(one: Drawn, numbers: Numbers, edges: Ids, was: Array, needed: Array) -> list[str]:
    """Return where a number is below the bound of its term, though all that it is computed from is finite."""
    terms, form = numbers.terms, numbers.form
    signs = Signs(terms, edges, np.union1d(form.mixed, form.either), form.fused)
    fine = _finite(one, was)
    found = []
    for turned in (0, 1):
        low = signs._lows(edges ^ turned)
        below = needed & fine & ((-was if turned else was) < low[:, None])

        def exceeds(node: int, _: int, low: Array = low, turned: int = turned) -> str:
            return f"is below {low[node]} of {terms.text(int(edges[node]) ^ turned, 5)}, {turned} turned"

        found += _named(one, below, was, exceeds)
    zero = needed & fine & (was == 0.0)  # asked of a few copies: it is slow
    zero[np.arange(len(was)) % one.copies >= 5] = False
    for node in np.flatnonzero(zero.any(axis=1)).tolist():
        zero[node] &= signs.nonzero(int(edges[node]))
    found += _named(one, zero, was, lambda node, _: f"is no zero: {terms.text(int(edges[node]), 6)}")
    return found


def _finite(one: Drawn, was: Array) -> Array:
    """Return where a node and all that it is computed from are finite, literals aside."""
    fine = np.isfinite(was).reshape(len(one.steps), one.copies, -1)
    for place, step in enumerate(one.steps):
        if step.numbers is not None:
            fine[place] = True
        for below in step.operands:
            fine[place] &= fine[below]
    return fine.reshape(was.shape)


def _named(one: Drawn, wrong: Array, was: Array, said: Callable[[int, int], str]) -> list[str]:
    """Return in words the first of what is wrong, (nodes, points)."""
    found = []
    for node in np.flatnonzero(wrong.any(axis=1))[:3].tolist():
        point = int(np.flatnonzero(wrong[node])[0])
        place, copy = divmod(node, one.copies)
        name = one.steps[place].name
        found.append(f"step {place} ({name}) of copy {copy}: {was[node, point]!r} {said(node, point)}")
    return found


def ranged(seed: int, *, copies: int = 3) -> Iterator[str]:
    """Yield what is not finite though `finite_terms` says so; then how many exponents were found."""
    one = drawn(seed, copies=copies, tame=True)
    for copy in range(copies):
        which = slice(copy, copy + 1)
        terms = SharedTerms()
        form = Normaliser(terms, "EZ").normal(one.graph(which))
        exponent = finite_terms(terms, form.either).exponent
        if exponent is None:
            continue
        largest = 2.0**exponent
        random = np.random.default_rng([seed, copy, 11])
        inputs = dict[str, Array]()
        for name, held_in in FORMATS_OF_INPUTS.items():
            numbers = largest * random.choice(
                [1.0, -1.0, 1.0, -1.0, 0.5, 0.999, 0.0, 1e-9, -1e-30], (copies, 200)
            )
            with np.errstate(all="ignore"):
                numbers = computed(f"cvt.rn.{held_in}.f64", numbers)
            most = {"f16": 65504.0, "bf16": 3.3895313892515355e38, "f32": 3.4028234663852886e38}.get(
                held_in, np.inf
            )
            inputs[name] = np.clip(numbers, -most, most)
        found = one.values(inputs, which)
        for place in np.flatnonzero(~np.isfinite(found).all(axis=(1, 2))).tolist():
            yield f"step {place} ({one.steps[place].name}) of copy {copy} is not finite below 2^{exponent}"
        yield ""

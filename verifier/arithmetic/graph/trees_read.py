"""What a sum of compiled code takes: each term once, or which it takes twice, leaves out or adds to them.

`order_read` finds the order of a sum that has exactly the wanted terms. Where there is none, `misread` says
in what the sum that comes nearest differs, and at which line. `exact_tree` makes a `Tree` of an order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.signs import reached
from verifier.arithmetic.trees.steps import Step
from verifier.arithmetic.trees.tree import Tree

SHOWN = 3
"""So many terms of a kind are named."""


@dataclass(frozen=True, kw_only=True)
class Misread:
    """In what the sum that comes nearest to the wanted one differs from it.

    root: the term of the sum. taken: how many of the wanted terms it has.
    left_out: places of wanted terms that it lacks. repeated: places of those that it has more than once, with
    how often. turned: places of those that it subtracts where it adds the first. others: edges that it sums
    beside them, with how often. users: for each repeated place the additions that take it.
    """

    root: int
    taken: int
    left_out: tuple[int, ...]
    repeated: tuple[tuple[int, int], ...]
    turned: tuple[int, ...]
    others: tuple[tuple[int, int], ...]
    users: tuple[tuple[int, ...], ...]

    def text(self, terms: SharedTerms, leaves: Ids, line_of: Callable[[int], str]) -> str:
        """Say it of a sum of `leaves`; line_of: the place in the source of an edge."""

        def some(edges: Sequence[int]) -> str:
            shown = ", ".join(terms.text(edge, 2) for edge in edges[:SHOWN])
            return shown if len(edges) <= SHOWN else f"{shown} and {len(edges) - SHOWN} more"

        def named(places: Sequence[int]) -> str:
            return some([int(leaves[place]) for place in places])

        said = [f"leaves out {named(self.left_out)}"] if self.left_out else []
        for (place, count), users in list(zip(self.repeated, self.users, strict=True))[:SHOWN]:
            lines = sorted({line for user in users if (line := line_of(2 * user))})
            at = f" (at {', '.join(lines)})" if lines else ""
            said.append(f"takes {named([place])} {count} times{at}")
        if self.turned:
            said.append(f"subtracts {named(self.turned)}")
        if self.others:
            times = sum(count for _, count in self.others)
            more = some([edge for edge, _ in self.others])
            said.append(f"takes {more} as well{f', {times} times' if times > 1 else ''}")
        line = line_of(2 * self.root)
        return f"the sum {f'at {line} ' if line else ''}of {self.taken} of them {'; '.join(said)}"


def misread(terms: SharedTerms, outputs: Ids, leaves: Ids) -> Misread | None:
    """Return in what the sum that has most of the terms `leaves` differs from their sum, each once.

    outputs: edges of what is looked at. None: no addition takes two of them, or one sums them all, each once.
    A sum is followed through additions, and fused products, of any format, down to wanted terms and to what
    is no addition.
    """
    sums = _Sums(terms, leaves)
    root = sums.nearest(reached(terms, outputs))
    if root is None:
        return None
    found = sums.below(root)
    taken = {place: tally for place, tally in found.items() if place >= 0}
    others = tuple((-1 - place, sum(tally)) for place, tally in found.items() if place < 0)
    repeated = tuple((place, sum(tally)) for place, tally in taken.items() if sum(tally) > 1)
    first = min(taken)
    turned = tuple(p for p, (_, minus) in sorted(taken.items()) if bool(minus) != bool(taken[first][1]))
    left_out = tuple(place for place in range(len(leaves)) if place not in taken)
    if not (left_out or repeated or turned or others):
        return None
    return Misread(
        root=root,
        taken=len(taken),
        left_out=left_out,
        repeated=tuple(sorted(repeated)),
        turned=turned,
        others=others,
        users=tuple(sums.users(root, place) for place, _ in sorted(repeated)),
    )


def exact_tree(steps: Sequence[Step], n: int) -> Tree:
    """Return the tree of an order that was read off code for n terms; it knows no other number of terms.

    Raises:
        ValueError: the order does not combine n terms, each once.

    """
    left = set(range(n))
    for step in steps:
        for kept, gone in zip(step.left.tolist(), step.right.tolist(), strict=True):
            if kept == gone or not {kept, gone} <= left:
                raise ValueError(f"a step combines {kept} and {gone}, which are not both there")
            left.remove(gone)
    if len(left) != 1:
        raise ValueError(f"of {n} terms {len(left)} are left uncombined")
    height = [0] * n
    for step in steps:
        for kept, gone in zip(step.left.tolist(), step.right.tolist(), strict=True):
            height[kept] = max(height[kept], height[gone]) + 1

    def only(count: int) -> None:
        if count != n:
            raise ValueError(f"the order was read off for {n} terms and says nothing of {count}")

    def depth_of(count: int) -> int:
        only(count)
        return max(height)

    def steps_of(count: int) -> Iterator[Step]:
        only(count)
        yield from steps

    return Tree(kind="custom", depth_of=depth_of, steps_of=steps_of)


class _Sums:
    """The additions of a table of terms, seen as sums of wanted terms and of others."""

    def __init__(self, terms: SharedTerms, leaves: Ids) -> None:
        self._terms = terms
        self._place = {int(edge) >> 1: place for place, edge in enumerate(leaves)}
        self._minus = [int(edge) & 1 for edge in leaves]
        self._families = [name.split(".")[0] for name in terms.names]
        self._products = {
            self._factors(int(edge) >> 1): int(edge) >> 1
            for edge in leaves
            if self._family(int(edge) >> 1) == "mul"
        }

    def nearest(self, live: Ids) -> int | None:
        """Return the addition that has most of the wanted terms, if one has two.

        Of several the one that takes as many terms as are wanted, or most nearly so; then the first.
        """
        held = {term: 1 << place for term, place in self._place.items()}
        count = dict[int, int]()
        best, root = (1, 0), None
        for term in live.tolist():
            if not self._sums(term):
                continue
            parts = [part for part, _ in self._parts(term)]
            held[term] = held.get(parts[0], 0) | held.get(parts[1], 0)
            count[term] = count.get(parts[0], 1) + count.get(parts[1], 1)
            rank = held[term].bit_count(), -abs(count[term] - len(self._place))
            if rank[0] > 1 and rank > best:
                best, root = rank, term
        return root

    def below(self, root: int) -> dict[int, tuple[int, int]]:
        """Return how often the sum takes each wanted place, added and subtracted; others as -1 - edge."""
        found: dict[int, tuple[int, int]] = {}
        for term, (plus, minus) in self._tallies(root).items():
            if term in self._place:
                place = self._place[term]
                found[place] = (minus, plus) if self._minus[place] else (plus, minus)
            elif not self._sums(term):
                found[-1 - 2 * term] = (plus, minus)
        return found

    def users(self, root: int, place: int) -> tuple[int, ...]:
        """Return the additions of a sum that take a wanted term."""
        additions = [term for term in self._tallies(root) if self._sums(term)]
        return tuple(t for t in additions if place in {self._place.get(part) for part, _ in self._parts(t)})

    def _tallies(self, root: int) -> dict[int, tuple[int, int]]:
        """Return how often each term enters the sum, added and subtracted, additions included."""
        tally, order, pending = {root: (1, 0)}, list[int](), [root]
        seen = set(pending)
        while pending:
            term = pending.pop()
            order.append(term)
            more = {part for part, _ in self._parts(term)} - seen if self._sums(term) else set()
            seen |= more
            pending.extend(more)
        for term in sorted(order, reverse=True):  # operands have smaller numbers, but for products made here
            if not self._sums(term):
                continue
            plus, minus = tally[term]
            for part, sign in self._parts(term):
                a, b = tally.get(part, (0, 0))
                tally[part] = (a + minus, b + plus) if sign else (a + plus, b + minus)
        return tally

    def _sums(self, term: int) -> bool:
        return term not in self._place and self._family(term) in {"add", "fma"}

    def _parts(self, term: int) -> list[tuple[int, int]]:
        """Return the terms that an addition adds, each with whether it is subtracted."""
        first, second, third = map(int, self._terms.edges[term])
        if self._family(term) == "add":
            return [(first >> 1, first & 1), (second >> 1, second & 1)]
        key = self._factors(term)
        if key not in self._products:
            held = self._terms.names[int(self._terms.operation[term])].rpartition(".")[2]
            edges = self._terms.edges[term : term + 1].copy() & ~1
            edges[0, 2] = -1
            self._products[key] = int(self._terms.shared(f"mul.{held}", edges)[0])
            if len(self._families) < len(self._terms.names):
                self._families.append("mul")
        return [(self._products[key], (first ^ second) & 1), (third >> 1, third & 1)]

    def _factors(self, term: int) -> tuple[int, int]:
        first, second = (int(edge) >> 1 for edge in self._terms.edges[term][:2])
        return min(first, second), max(first, second)

    def _family(self, term: int) -> str:
        return self._families[int(self._terms.operation[term])]

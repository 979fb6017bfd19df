"""What a proof of the code at one shape says of a claim: division, contraction, clamp and trees.

It is a claim about that shape alone: of another one the trees know nothing but that their order is any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import cast

import numpy as np

from verifier.arithmetic.formats import DivideByN
from verifier.arithmetic.trees.steps import Stages, Step, stages_along
from verifier.arithmetic.trees.tree import Tree, any_order, either, of_all, tree
from verifier.checks.support.certificate_at_shape import FirstCertified
from verifier.checks.support.compared_graphs import merges_parts
from verifier.checks.support.read_orders import OrderOfSum
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.subject import Subject, Trees
from verifier.records.verdict import ReadTree

ROLES = tuple(one.name for one in fields(Trees))
"""The reductions of which a tree is declared."""
_SETTLED = frozenset({"divide_by_n", "formula", "trees"})
"""What a declaration may leave out, and a proof of it does not."""


def attempts(subject: Subject) -> Iterator[Subject]:
    """Yield the claims to prove, the tightest first: each with trees that say nothing.

    A product that several uses share counts as one number where the claim is proved so.
    """
    bare = subject.differing(trees=Trees(), divide_by_n="either")
    for options in _options(subject):
        for contraction in ("none", "mixed"):
            yield bare.differing(variance_options=options, mean_contraction=contraction)


def _options(subject: Subject) -> Iterator[dict[str, object]]:
    """Yield the options of the claim, and of merges the same with one mean for each lane, or one for all."""
    claim = subject.claim
    own = dict(claim.variance_options)
    yield own
    if merges_parts(op(subject.op), subject):
        yield {**own, "per_lane_means": not own.get("per_lane_means", False)}


def claim_proved(found: FirstCertified, case: Case) -> Subject:
    """Return the subject with the claim that was proved at the shape of a case.

    found: of one of `attempts`. What ptxas may fuse in one use and round in another is no single number.
    """
    subject, proofs = found.subject, found.certificate.proofs
    claim = subject.claim
    divisions = {proof.way["divide_by_n"] for proof in proofs}
    # A quotient by div.full ends in a product, which ptxas may fuse as any other.
    open_ = any(proof.mixed or any("div.full" in name for name in proof.approximate) for proof in proofs)
    shares = claim.mean_contraction == "none" and not open_
    return subject.differing(
        divide_by_n=cast("DivideByN", divisions.pop() if len(divisions) == 1 else "either"),
        mean_contraction="none" if shares else "mixed",
        clamp=all(bool(proof.way["clamp"]) for proof in proofs),
        trees=trees_read(claim.trees, _every(found), case, exact=_follows_either(found)),
        assumed=claim.assumed - _SETTLED - ({"mean_contraction"} if shares else frozenset()),
    )


def _follows_either(found: FirstCertified) -> bool:
    """Return whether bounds along the orders that were read hold for the copies of lanes, too.

    These merge the same parts, and perhaps correct the other one of two: that is counted where lanes keep
    means of their own (T8). That they do no more is what the certificate assumes of them.
    """
    return not found.copies or bool(found.subject.claim.variance_options.get("per_lane_means"))


def depths_read(found: FirstCertified, declared: Trees, case: Case) -> tuple[ReadTree, ...]:
    """Return, of each reduction with a declared tree, the sum whose depth is furthest from the declared one.

    found: with trees that say nothing. A sum that is deeper than declared comes before all others.
    """
    told = []
    for role in ROLES:
        allowed: Tree = getattr(declared, role)
        orders = [one for one in _every(found) if one.declared is getattr(found.subject.claim.trees, role)]
        if not (allowed.declared and orders):
            continue
        each = [
            ReadTree(
                role=role,
                rows=case.rows,
                columns=case.columns,
                terms=one.terms,
                compiled=one.depth,
                declared=allowed.depth(one.width or one.terms),
            )
            for one in orders
        ]
        told.append(max(each, key=lambda one: (one.compiled - one.declared > 0, _apart(one), one.terms)))
    return tuple(told)


def _apart(one: ReadTree) -> int:
    return abs(one.compiled - one.declared)


def _every(found: FirstCertified) -> list[OrderOfSum]:
    return [order for orders in found.orders for order in orders]


def trees_read(declared: Trees, orders: Iterable[OrderOfSum], case: Case, *, exact: bool) -> Trees:
    """Return trees that allow for no more than the orders that were read.

    declared: those that the orders were held against, three of them. A reduction of which no sum was met
    keeps its own. exact: whether each merge was read with the part that it corrects, see `FirstCertified`.
    """
    every = list(orders)
    known = {role: cast("Tree", getattr(declared, role)) for role in ROLES}
    made = {
        role: _tree([one for one in every if one.declared is of], exact=exact) or of
        for role, of in known.items()
    }
    totals = [one for one in every if not any(one.declared is of for of in known.values())]
    return _with_totals(Trees(**made), totals, declared, case)


def _with_totals(made: Trees, totals: Sequence[OrderOfSum], declared: Trees, case: Case) -> Trees:
    """Return trees that allow for sums of all elements, too, which follow two of them one after the other.

    A tree of columns that no other sum has, and then the tree of rows, gets the additions that are left.
    """
    if not totals:
        return made
    deepest = max(one.depth for one in totals)
    of_rows = made.row_gradients.depth(case.columns) if made.row_gradients.declared else 0
    columns = made.columns if made.columns.declared else tree(depth=max(deepest - of_rows, 0))
    rows = tree(depth=max(of_rows, deepest - columns.depth(case.rows)))
    whole = of_all(rows, columns, case.rows, case.columns)
    if all(one.depth <= whole.depth(one.terms) for one in totals):
        return replace(made, row_gradients=rows, columns=columns)
    return replace(made, row_gradients=declared.row_gradients, columns=declared.columns)


def _tree(orders: Sequence[OrderOfSum], *, exact: bool) -> Tree | None:
    """Return a tree of sums as deep as those read, or of merges in the orders read; None: of none."""
    if not orders:
        return None
    depth = max(one.depth for one in orders)
    merges = [one for one in orders if one.kind == "merges"]
    return _of_merges(merges, depth, exact=exact) if merges else tree(depth=depth)


def _of_merges(orders: Sequence[OrderOfSum], depth: int, *, exact: bool) -> Tree:
    """Return a tree of the orders in which parts were merged, of which a kernel follows each somewhere."""
    count = orders[0].terms
    if count < 2 or any(one.terms != count for one in orders):
        return any_order()
    steps = {one.exact.text: one.steps for one in orders if one.exact is not None}
    try:
        trees = [_of_steps(each, count, depth, exact=exact) for each in steps.values()]
    except ValueError:  # single elements enter after merges: stages say nothing of such an order
        return any_order()
    if not trees:
        return any_order()
    if exact:
        return trees[0] if len(trees) == 1 else either(*trees)
    stages = [one.stages(count) for one in trees]
    return _only_of(
        count,
        depth,
        Stages(
            updates=max(one.updates for one in stages),
            merges=max(one.merges for one in stages),
            imbalance=max(one.imbalance for one in stages),
        ),
    )


def _of_steps(steps: tuple[Step, ...], count: int, depth: int, *, exact: bool) -> Tree:
    stages = stages_along(steps, count)
    if not exact:
        stages = replace(stages, imbalance=_either_way(steps, count))
        return _only_of(count, depth, stages)

    def steps_of(n: int) -> Iterator[Step]:
        if n != count:
            raise ValueError(f"an order that was read of {count} elements names none of {n}")
        yield from steps

    return replace(_only_of(count, depth, stages), steps_of=steps_of)


def _only_of(count: int, depth: int, stages: Stages) -> Tree:
    """Return a tree with depth and stages of so many elements; of others any order is possible."""

    def depth_of(n: int) -> int:
        return depth if n == count else n - 1

    def stages_of(n: int) -> Stages:
        return stages if n == count else any_order().stages(n)

    return Tree(kind="custom", depth_of=depth_of, stages_of=stages_of)


def _either_way(steps: Iterable[Step], count: int) -> float:
    """Return how much a part of a merge may outweigh the other, whichever is the one that is corrected."""
    counts, most = np.ones(count), 1.0
    for step in steps:
        left, right = counts[step.left], counts[step.right]
        if not step.update:
            most = max(most, float((right / left).max()), float((left / right).max()))
        counts[step.left] = left + right
    return most

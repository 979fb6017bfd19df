"""Whether an order of merges, read off code, is one for which the bounds of a declared tree are proved.

Bounds of merges (T7 and T8 of docs/explanation/bounds.md) do not follow from the depth alone: they count
updates and merges, their imbalance, and follow the lanes and the orders that a declaration names.
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.arithmetic.trees.steps import Step, stages_along
from verifier.arithmetic.trees.tree import Tree

Joins = dict[tuple[int, int, bool], int]


def not_admitted(declared: Tree, steps: Sequence[Step], n: int, *, own: bool) -> str:
    """Return why the bound of a declared tree does not hold for merges in these steps, "" where it does.

    own: lanes may keep means of their own, so that either part of a merge may be the one corrected.
    """
    if n < 2:
        return ""
    try:
        mine = stages_along(steps, n)
    except ValueError as error:
        return str(error)
    allowed = declared.stages(n)
    most = allowed.updates + allowed.merges if allowed.mixed else allowed.updates
    if mine.updates > most:
        return f"an element meets {mine.updates} updates, {most} are declared"
    if mine.merges > allowed.merges or (allowed.mixed and mine.updates + mine.merges > most):
        return f"a part meets {mine.merges} merges after its updates, {allowed.merges} are declared"
    ratio = float(n - 1) if own else max(allowed.imbalance, 1.0)
    if mine.imbalance > ratio:
        return f"a part is corrected by one {mine.imbalance:g} times as large, {ratio:g} times are declared"
    lanes = declared.updates(n)
    if lanes is not None and _lanes(lanes, n) != _lanes(steps, n):
        return "the elements of the lanes are others than those declared"
    if declared.named:
        known: Joins = {}
        either = own or declared.symmetric
        mine_root = _root(steps, n, known, either=either)
        if mine_root not in [_root(order, n, known, either=either) for order in declared.orders(n)]:
            return "the parts are merged in another order than declared"
    return ""


def _lanes(steps: Sequence[Step], n: int) -> dict[int, list[int]]:
    """Return the elements of each lane in order, by the first: what updates join."""
    lanes = {first: [first] for first in range(n)}
    for step in steps:
        if step.update:
            for left, right in zip(step.left.tolist(), step.right.tolist(), strict=True):
                lanes[left] += lanes.pop(right)
    return lanes


def _root(steps: Sequence[Step], n: int, known: Joins, *, either: bool) -> int:
    """Return the number of a tree: the same for the same one, by what is known of all trees.

    either: the same as well where the parts of merges are exchanged.
    """
    held, root = list(range(n)), 0
    for step in steps:
        for left, right in zip(step.left.tolist(), step.right.tolist(), strict=True):
            a, b = held[left], held[right]
            a, b = (min(a, b), max(a, b)) if either and not step.update else (a, b)
            held[left] = known.setdefault((a, b, step.update), n + len(known))
            root = left
    return held[root]

"""The bound of a certificate: a theorem's constants as read off the code, and what it gives on rows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from verifier.arithmetic.row_statistics import RowStatistics, exact_statistics
from verifier.arithmetic.trees.tree import Tree, tree
from verifier.bounds import variance
from verifier.bounds.table import hold_rows, proved
from verifier.bounds.variance import Reduction
from verifier.bounds.variance import options as variance_options
from verifier.checks.support.compared_graphs import Agreement
from verifier.checks.support.read_orders import OrderOfSum
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import RowBound, TheoremBound
from verifier.records.subject import Subject

KAPPAS = (1.0, 100.0)
SEED = 0


def bound_read(subject: Subject, case: Case, found: Agreement) -> TheoremBound | None:
    """Return the bound of the statistics of each row.

    Of sums the trees are as deep as those of the code: a bound by depth holds for every order so deep.
    Of merges it is the declared tree, to which the code's orders belong: by depth alone it would say less.
    """
    claim = subject.claim
    if claim.variance is None or not op(subject.op).needs_variance:
        return None
    statistics = [order for order in found.orders if order.declared is claim.trees.statistics]
    if not statistics:
        return None
    form = op(subject.op).form(claim, case.dtype)
    depth = max(order.depth for order in statistics)
    common = Reduction(
        arithmetic=backend("machine").setting(subject, case.dtype).arithmetic,
        tree=claim.trees.statistics,
        divide_by_n=found.way.divide_by_n,
        mean_contraction="mixed" if "C" in found.claims else found.way.mean_contraction,
        clamp=found.way.clamp,
        mean_cast=case.dtype if form.reads_saved and claim.saved_dtype == "input" else None,
    )

    def reduction(of: Tree) -> Reduction:
        assert claim.variance is not None
        return variance_options.reduction(claim.variance, claim.variance_options, replace(common, tree=of))

    merges = variance_options.merges(claim.variance)
    declared = reduction(claim.trees.statistics)
    read = declared if merges else reduction(tree(depth=depth))
    held = read.arithmetic
    return TheoremBound(
        theorems=tuple(variance.algorithm(claim.variance).THEOREMS),
        format=held.format.name,
        u=held.u,
        depth=depth,
        declared_depth=_declared(statistics),
        divide_by_n=found.way.divide_by_n,
        mean_contraction=common.mean_contraction,
        clamp=found.way.clamp,
        root=found.way.root,
        rows=tuple(_rows(claim.variance, case, read, declared)),
    )


def _declared(statistics: Iterable[OrderOfSum]) -> int | None:
    depths = [order.declared_depth for order in statistics]
    return None if None in depths else max(depth for depth in depths if depth is not None)


def _rows(name: str, case: Case, read: Reduction, declared: Reduction) -> Iterable[RowBound]:
    for kappa in KAPPAS if case.columns > 1 else ():
        statistics = _statistics(case.columns, kappa, case.dtype)
        if statistics is None:
            continue
        tight, loose = (proved(name, statistics, one, eps=case.eps) for one in (read, declared))
        yield RowBound(
            kappa=kappa,
            variance=_known(tight.variance),
            rstd=_known(tight.rstd),
            declared_variance=_known(loose.variance),
        )


@lru_cache(maxsize=8)
def _statistics(columns: int, kappa: float, dtype: str) -> RowStatistics | None:
    """Return the statistics of the rows of which a bound is told; None: the dtype has no such rows."""
    rows = hold_rows(columns, kappa, dtype, SEED)
    return None if rows is None else exact_statistics(rows)


def _known(error: float) -> float | None:
    return error if math.isfinite(error) else None

"""Statistics of the declared computation on symbols: the variance algorithm itself, running ones included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import FORMATS, Array, Format, ieee
from verifier.arithmetic.graph.graph import Ids
from verifier.arithmetic.graph.symbols import Symbols
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.steps import Step
from verifier.bounds import variance
from verifier.bounds.variance import Reduction
from verifier.bounds.variance import options as variance_options
from verifier.bounds.variance.options import Merged
from verifier.ops import Op
from verifier.ops.rows.twin_numbers import NoTwinError, TwinNumbers, TwinValue, Way
from verifier.ops.rows.twin_orders import Merges
from verifier.ops.running_statistics import weighted
from verifier.records.case import Scalars
from verifier.records.subject import Claim


def reduction_of(  # noqa: PLR0917
    op: Op, claim: Claim, way: Way, form: Form, accumulation: Format, saved: str
) -> Reduction:
    """Return what a declaration says of the statistics, along a way."""
    if claim.variance is None or not op.needs_variance:
        return Reduction(arithmetic=ieee(accumulation.name), tree=claim.trees.row_gradients)
    if form.reads_saved and claim.saved_dtype not in {None, "input"}:
        raise NoTwinError("statistics that are read as saved have no twin yet")
    found = variance_options.reduction(
        claim.variance,
        claim.variance_options,
        Reduction(
            arithmetic=ieee(accumulation.name),
            tree=claim.trees.statistics,
            divide_by_n=way.divide_by_n,
            mean_contraction=way.mean_contraction,
            clamp=way.clamp,
            mean_cast=saved if form.reads_saved and claim.saved_dtype == "input" else None,
        ),
    )
    return replace(found, squares=way.squares)


def statistics(  # noqa: PLR0917
    numbers: TwinNumbers,
    claim: Claim,
    x: Array,
    eps: float,
    saved: str,
    merges: Callable[..., Merges],
) -> None:
    """Let mean and rstd be what the variance algorithm gives, and those saved what `saved` holds of them."""
    assert claim.variance is not None
    rounded = numbers.rounded
    if not isinstance(numbers.reduction.options, Merged):
        numbers.computed, numbers.spread = _computed(numbers, claim.variance, x, eps)
        kept = numbers.computed
    else:
        found = merges(rounded.nodes(x), numbers.reduction.tree, own=numbers.reduction.per_lane_means)
        each = [_computed(numbers, claim.variance, x, eps, order) for order in found.orders]
        kept, numbers.spread = each[found.saved]
        numbers.computed = (
            kept if len(each) == 1 else _by_column(numbers, [one for one, _ in each], found.column)
        )
    pair = [numbers.plain(rounded.cast(FORMATS[saved], value.array)) for value in kept]
    numbers.saved = pair[0], pair[1]
    in_parts = getattr(variance.algorithm(claim.variance), "simulate_parts", None)
    if in_parts is not None:
        high, low = in_parts(rounded, x, numbers.reduction)
        numbers.parts = numbers.plain(high[:, None]), numbers.plain(low[:, None])


def held_statistics(numbers: TwinNumbers, mean: Array, spread: Array, eps: float) -> None:
    """Let mean and rstd be those of running statistics, (rows, 1): evaluation."""
    rounded = numbers.rounded
    held = RoundedArithmetic(format=rounded.format).of(np.asarray(eps))
    root = numbers.rsqrt(numbers.plain(rounded.add(spread, held)))
    numbers.computed = numbers.saved = (numbers.plain(mean), root)


def _computed(
    numbers: TwinNumbers, algorithm: str, x: Array, eps: float, order: tuple[Step, ...] | None = None
) -> tuple[tuple[TwinValue, TwinValue], Array]:
    """Return mean and rstd, (rows, 1), and the variance, (rows,); order: in which elements are merged."""
    rounded = numbers.rounded if order is None else replace(numbers.rounded, merged=order)
    mean, spread = variance.algorithm(algorithm).simulate(rounded, x, numbers.reduction)
    held = RoundedArithmetic(format=rounded.format).of(np.asarray(eps))
    root = numbers.rsqrt(numbers.plain(rounded.add(spread, held)[:, None]))
    return (numbers.plain(mean[:, None]), root), spread


def _by_column(
    numbers: TwinNumbers, each: list[tuple[TwinValue, TwinValue]], column: Ids
) -> tuple[TwinValue, TwinValue]:
    """Return statistics (rows, columns), of which each column has those of its lane."""
    found = []
    for which in range(2):
        nodes = np.stack([numbers.rounded.nodes(pair[which].array)[:, 0] for pair in each], axis=1)
        found.append(numbers.plain(numbers.rounded.symbols(nodes[:, column])))
    return found[0], found[1]


def moved_statistics(
    numbers: TwinNumbers, form: Form, leaves: Mapping[str, Array], scalars: Scalars, names: Iterable[str]
) -> dict[str, Array]:
    """Return the running statistics that a batch leaves, (rows, 1)."""
    if form.update is not None:
        raise NoTwinError("running statistics that are rounded in steps have no twin yet")
    assert numbers.saved is not None
    share = RoundedArithmetic(format=numbers.rounded.format).of(np.full((1, 1), float(scalars["momentum"])))
    new = {"running_mean": numbers.saved[0], "running_var": _unbiased(numbers)}
    return {
        name: weighted(numbers, numbers.plain(leaves[name]), new[name], numbers.plain(share)).array
        for name in sorted(names)
    }


def _unbiased(numbers: TwinNumbers) -> TwinValue:
    """Return the sum of squared deviations over N - 1: of the sum that the variance is made of."""
    if numbers.spread is None or numbers.way.clamp:
        raise NoTwinError("a running variance that is clamped has no twin yet")
    variance_of = cast("Symbols", cast("object", numbers.spread))
    name, parts = numbers.rounded.builder.made_by(variance_of.nodes)
    if not name.startswith(("div.rn", "mul.rn")):
        raise NoTwinError("a variance that is no quotient by N has no sum to divide by N - 1: no twin yet")
    count = numbers.constant(float(numbers.columns)) - numbers.constant(1.0)
    return numbers.plain(numbers.rounded.symbols(parts[:, 0])[:, None]) / count

"""Draws the table of bounds: error against kappa for every variance algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from verifier.arithmetic.trees.tree import Tree
from verifier.bounds.table import Point, reduction, sweep
from verifier.bounds.variance import algorithm
from verifier.records.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = "os^vDP*X<>"
_DASH = 5.0
"""Length of a dash, in widths of the line."""
_NEAR = 1.25
"""Largest ratio of two bounds that a reader takes for one: a hundredth of the ten decades that are drawn."""


def plot(
    path: str | Path,
    *,
    columns: int,
    dtype: str,
    tree: Tree,
    accumulates: str | None = None,
    seed: int = 0,
    name: str | None = None,
) -> Path:
    """Draw the variance error against kappa, proved lines over observed points, log-log; return the file.

    For rms it is the error of the mean square. name: what the title calls the tree (None: its kind).
    Lines that nearly coincide have dashes in turn, so that none hides another.
    """
    from matplotlib.figure import Figure

    curves = sweep(
        columns=columns, dtype=dtype, tree=tree, accumulates=accumulates, seed=seed, with_observed=True
    )
    figure = Figure(figsize=(10.0, 6.0), layout="constrained")
    axes = figure.subplots()
    _draw_curves(axes, curves)
    sums = reduction(dtype, tree, accumulates).arithmetic.format
    _draw_levels(axes, sums.u)
    order = name or tree.kind.replace("_", " ")
    held = dtype if sums.name == dtype else f"{dtype}, sums in {sums.name}"
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="kappa = |mean| / standard deviation",
        ylabel="relative error of the variance",
        ylim=(sums.u / 30.0, 30.0),
        title=f"{held}, N = {columns}, {order}: proved bounds (lines) over observed errors (points)",
    )
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    with replacing(Path(path)) as part:
        figure.savefig(part, dpi=150)
    return Path(path)


def _draw_curves(axes: Axes, curves: Mapping[str, Sequence[Point]]) -> None:
    """Draw the bounds of each algorithm as a line and its observed errors as points."""
    turns = {n: (turn, len(names)) for names in _alike(curves) for turn, n in enumerate(names)}
    for number, (name, curve) in enumerate(curves.items()):
        kappas = [p.kappa for p in curve]
        seen = [p.observed.variance if p.observed.variance > 0.0 else math.nan for p in curve]
        colour, dashes = f"C{number % 10}", _dashes(*turns[name])
        marked = partial(
            axes.plot,
            color=colour,
            marker=_MARKS[number % len(_MARKS)],
            markersize=4.5,
            markeredgewidth=0.8,
            fillstyle="none",
        )
        axes.plot(kappas, [p.declared.variance for p in curve], color=colour, linestyle=dashes, linewidth=1.5)
        marked(kappas, seen, linestyle="none")
        label = name if algorithm(name).CENTRED else f"{name} (mean square)"
        marked([], [], linewidth=1.5, label=label)  # one key for a line and its points


def _draw_levels(axes: Axes, u: float) -> None:
    """Draw a line across at the errors that mean something to a reader."""
    for level, text in ((u, "u"), (math.sqrt(u), "half of the bits gone"), (1.0, "no bits left")):
        axes.axhline(level, color="0.7", linewidth=0.8, zorder=0)
        axes.annotate(
            text,
            (1.0, level),
            xycoords=("axes fraction", "data"),
            xytext=(4, -3),
            textcoords="offset points",
            fontsize=8,
            color="0.35",
        )


def _dashes(turn: int, of: int) -> object:
    """Return the line style of one of several lines: a dash each, one after another."""
    return "-" if of == 1 else (-_DASH * turn, (_DASH, _DASH * (of - 1)))


def _alike(curves: Mapping[str, Sequence[Point]]) -> list[list[str]]:
    """Return the algorithms in groups whose bounds nearly coincide."""
    groups: list[list[str]] = []
    for name, curve in curves.items():
        near = [group for group in groups if _nearly(curve, curves[group[0]])]
        if near:
            near[0].append(name)
        else:
            groups.append([name])
    return groups


def _nearly(one: Sequence[Point], other: Sequence[Point]) -> bool:
    """Return whether two curves of bounds lie on one another at three in four kappas."""
    pairs = ((p.declared.variance, q.declared.variance) for p, q in zip(one, other, strict=True))
    near = [max(a, b) <= _NEAR * min(a, b) for a, b in pairs]
    return 4 * sum(near) >= 3 * len(near) > 0

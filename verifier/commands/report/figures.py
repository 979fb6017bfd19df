"""Figures of what was measured, as SVG that stands in a page: no colour is needed to read them."""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.bounds.variance import algorithms

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

INK = "#010203"
"""The colour that a page replaces by its own ink, on paper, on white and on black."""
_LOOKS = ("s:", "D--", "^-.", "v:", "P--", "X-.", "<:", ">--", "p-.", "h:")
"""Marker and dashes of other algorithms, so that none is told by its colour alone."""
_SERIES = 8
"""Colours that a page defines, `--series-0` to `--series-7`, each told apart by the colour-blind."""
_AT_ZERO = 0.1
"""Where kappa 0 stands on an axis of powers of ten."""
_ROUNDED = 0.5
_LEGEND_INCHES = 0.2
"""Height of a line of the legend."""
_HAIR = 1.02
"""Ratio of two numbers that are one point in a figure of several decades."""


Curve = dict[float, float]
"""A bound by kappa; NaN where there is none."""


def series_colour(index: int) -> str:
    """Return the placeholder of a page's colour."""
    return f"#0000f{index % _SERIES}"


def error_against_kappa(measured: Document, output: str, mark: str) -> str:
    """Return a figure of the errors of one output under the proved bounds of every variance algorithm.

    measured: what a release measured of one dtype. mark: what makes the names inside the figure its own.
    Empty where there are no errors at the usual magnitude and columns.
    """
    points = [p for p in _usual(parts(measured, "points")) if output in mapping(p["outputs"])]
    if not points:
        return ""
    kappas = sorted({number(p["kappa"]) for p in points})
    declared = str(measured["variance"])
    own, others = _bounds(points, output)
    curves = _alike(others, declared)
    figure, axes = _figure(4.6, 3.4 + _LEGEND_INCHES * len(curves))
    for index, (names, curve) in enumerate(curves):
        look, colour = _LOOKS[index % len(_LOOKS)], series_colour(1 + index % (_SERIES - 1))
        label = textwrap.fill(f"bound of {', '.join(names)}", 60)
        _line(axes, kappas, curve, look, names[0], colour=colour, label=label)
    if any(math.isfinite(bound) for bound in own.values()):
        label = f"bound as declared ({declared})" if declared != "none" else "bound as declared"
        _line(axes, kappas, own, "s-", "declared", colour=series_colour(0), label=label, width=2.4)
    seen = [(_place(number(p["kappa"])), _error(p, output)) for p in points]
    shown = [(at, worst) for at, worst in seen if math.isfinite(worst)]
    axes.plot(*_columns(shown), "o", color=INK, markersize=5, label="worst error seen", zorder=5, gid="seen")
    if lost := [at for at, worst in seen if not math.isfinite(worst)]:
        top = _top(axes)
        axes.plot(lost, [1.0] * len(lost), "x", color=INK, label="not finite", transform=top, clip_on=False)
    axes.axhline(_ROUNDED, color=INK, linewidth=0.8, linestyle=(0, (1, 3)))
    axes.annotate(
        "correct rounding", (0.0, _ROUNDED), xycoords=("axes fraction", "data"), xytext=(4, -11),
        textcoords="offset points", fontsize=8, color=INK,
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="kappa = |mean| / standard deviation", ylabel="error (ulp)")
    axes.set_ylim(bottom=min(axes.get_ylim()[0], _ROUNDED / 4))
    _label_kappas(axes, kappas)
    _label_errors(axes)
    figure.legend(fontsize=8, loc="outside lower center", frameon=False, labelcolor=INK)
    return _svg(figure, mark)


def errors_by_kappa_and_columns(measured: Document, output: str, mark: str) -> str:
    """Return a heat map of the worst errors of one output over kappa and the columns of a row.

    Each cell has its number; a cell without result has a dash. Empty where fewer than two lengths were tried.
    """
    worst: dict[tuple[float, float], float] = {}
    for point in parts(measured, "points"):
        if number(point["magnitude"]) == 1.0 and output in mapping(point["outputs"]):
            at = number(point["columns"]), number(point["kappa"])
            worst[at] = max(worst.get(at, 0.0), _error(point, output))
    rows, kappas = sorted({n for n, _ in worst}), sorted({k for _, k in worst})
    if len(rows) < 2:
        return ""
    figure, axes = _figure(4.6, 0.4 * len(rows) + 1.0)
    cells = [[worst.get((n, k), math.nan) for k in kappas] for n in rows]
    logs = [[math.log10(max(v, 1e-3)) if math.isfinite(v) else math.nan for v in row] for row in cells]
    known = [v for row in logs for v in row if not math.isnan(v)]
    low, high = min([*known, 0.0]), max([*known, 2.0])
    axes.pcolormesh(logs, cmap="cividis", vmin=low, vmax=high, edgecolors="none")
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            shade = (logs[y][x] - low) / (high - low)
            ink = INK if math.isnan(shade) else "white" if shade < 0.5 else "black"
            text = "-" if math.isnan(value) else "inf" if math.isinf(value) else _short(value)
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=9, color=ink)
    axes.set_xticks([x + 0.5 for x in range(len(kappas))], [_kappa_text(k) for k in kappas])
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [f"{n:.0f}" for n in rows])
    axes.set(xlabel="kappa = |mean| / standard deviation", ylabel="columns N")
    return _svg(figure, mark)


def _usual(points: Sequence[Document]) -> list[Document]:
    """Return the points of magnitude 1 with as many columns as those at which magnitudes were tried."""
    columns = {number(p["columns"]) for p in points if number(p["magnitude"]) != 1.0}
    columns = columns or {number(p["columns"]) for p in points[:1]}
    return [p for p in points if number(p["magnitude"]) == 1.0 and number(p["columns"]) in columns]


def _bounds(points: Sequence[Document], output: str) -> tuple[Curve, dict[str, Curve]]:
    """Return the largest bounds by kappa: as declared, and of each variance algorithm by name."""
    own: Curve = {}
    others: dict[str, Curve] = {}
    for point in points:
        kappa = number(point["kappa"])
        own[kappa] = _larger(own.get(kappa), number(mapping(mapping(point["outputs"])[output])["bound"]))
        for name, bounds in mapping(point["alternatives"]).items():
            if name in algorithms() and output in mapping(bounds):
                curve = others.setdefault(name, {})
                curve[kappa] = _larger(curve.get(kappa), number(mapping(bounds)[output]))
    return own, others


def _alike(others: dict[str, Curve], declared: str) -> list[tuple[list[str], Curve]]:
    """Return the curves with their names, those together that nobody can tell apart in the figure.

    The declared algorithm is left out: its bound is drawn by itself.
    """
    found: list[tuple[list[str], Curve]] = []
    for name, curve in others.items():
        if name == declared or not any(math.isfinite(bound) for bound in curve.values()):
            continue
        near = next((names for names, other in found if _coincide(curve, other)), None)
        if near is None:
            found.append(([name], curve))
        else:
            near.append(name)
    return found


def _coincide(one: Curve, other: Curve) -> bool:
    """Return whether two curves lie within a hair's breadth of each other wherever one of them is."""
    pairs = [(one.get(k, math.nan), other.get(k, math.nan)) for k in {*one, *other}]
    known = [(a, b) for a, b in pairs if math.isfinite(a) or math.isfinite(b)]
    return all(max(a, b) <= _HAIR * min(a, b) for a, b in known)


def _larger(one: float | None, other: float) -> float:
    """Return the larger of two bounds; NaN where one of them is none."""
    return other if one is None else math.nan if math.isnan(one + other) else max(one, other)


def _error(point: Document, output: str) -> float:
    return number(mapping(mapping(point["outputs"])[output])["worst"])


def _line(
    axes: Axes,
    kappas: Sequence[float],
    curve: Curve,
    look: str,
    name: str,
    *,
    colour: str,
    label: str,
    width: float = 1.2,
) -> None:
    pairs = [(_place(k), curve.get(k, math.nan)) for k in kappas]
    if any(math.isfinite(bound) for _, bound in pairs):
        places, bounds = _columns(pairs)
        gid = f"bound-{name}"
        axes.plot(
            places,
            bounds,
            look,
            color=colour,
            linewidth=width,
            markersize=4,
            fillstyle="none",
            label=label,
            gid=gid,
        )


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [one for one, _ in pairs], [other for _, other in pairs]


def _place(kappa: float) -> float:
    return max(kappa, _AT_ZERO)


def _label_errors(axes: Axes) -> None:
    """Write errors as plain numbers, and between powers of ten, too, where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    low, high = axes.get_ylim()
    between = (1.0, 2.0, 5.0) if high / low < 1e3 else (1.0,)
    axes.yaxis.set_major_locator(LogLocator(subs=between))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _kappa_text(value)))


def _short(value: float) -> str:
    return f"{value:.0f}" if 100 <= value < 1e4 else f"{value:.2g}"


def _label_kappas(axes: Axes, kappas: Sequence[float]) -> None:
    axes.set_xticks([_place(k) for k in kappas], [_kappa_text(k) for k in kappas])
    axes.minorticks_off()


def _kappa_text(kappa: float) -> str:
    return f"{kappa:g}" if kappa < 1e4 else f"1e{math.log10(kappa):.0f}"


def _top(axes: Axes) -> Transform:
    """Return coordinates of which the second is 1 at the top of the axes."""
    return axes.get_xaxis_transform()


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure as NewFigure

    figure = NewFigure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color(INK)
    for side, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(side in {"left", "bottom"})
    return figure, axes


def _svg(figure: Figure, mark: str) -> str:
    """Return a figure as an SVG element: no prolog, no fixed size, names of its own, the page's colours."""
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": mark, "axes.unicode_minus": False}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = written.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{mark}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{mark}-\1"', text).replace("url(#", f"url(#{mark}-")
    text = text.replace(INK, "var(--ink)")
    text = re.sub(r"#0000f(\d)", r"var(--series-\1)", text)
    return re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font: \1 var(--face)", text)


def outputs_of(measured: Document) -> Iterator[str]:
    """Yield the names of the outputs of which something was measured."""
    yield from (str(one["output"]) for one in parts(measured, "figures"))

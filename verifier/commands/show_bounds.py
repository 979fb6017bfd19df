"""The table of proved error bounds per variance algorithm, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from verifier.arithmetic.formats import FORMATS
from verifier.arithmetic.trees.text import parse_tree
from verifier.bounds.plot import plot
from verifier.bounds.table import LONGEST_FOLLOWED, reduction, table


def show_bounds(
    *, columns: int, kappa: float, dtype: str, tree_text: str, plot_file: Path | None
) -> Iterator[str]:
    """Yield the table for one row length and kappa; draw error against kappa if a file is given.

    Raises:
        ValueError: an unknown dtype, no tree or none of so many columns, or a file that is no picture.

    """
    if dtype not in FORMATS:
        raise ValueError(f"no dtype {dtype!r}; there are: {', '.join(FORMATS)}")
    if not math.isfinite(kappa):
        raise ValueError("kappa must be finite")
    if plot_file is not None and plot_file.suffix not in {".png", ".svg", ".pdf"}:
        raise ValueError(f"{plot_file}: a plot is a .png, .svg or .pdf file")
    name, declared = parse_tree(tree_text)
    depth, least = declared.depth(columns), (columns - 1).bit_length()
    if depth < least:
        raise ValueError(
            f"--tree {tree_text!r}: {columns} elements need at least {least} additions, not {depth}"
        )
    entries = table(columns=columns, kappa=kappa, dtype=dtype, tree=declared)
    sums = reduction(dtype, declared).arithmetic.format
    yield f"Relative errors in units of u = 2**-{sums.precision}: N = {columns}, kappa = {kappa:g}"
    yield f"rows in {dtype}, sums in {sums.name}"
    yield f"declared tree: {name}, an element meets at most {depth} additions"
    yield ""
    yield _row(("", "variance:", "", "", "rstd:", "", "output:", "", "kappa where", ""))
    heads = ("algorithm", "any order", "declared", "observed", *("declared", "observed") * 2)
    yield _row((*heads, "half the bits go", "theorem ends"))
    for entry in entries:
        e, u = entry, sums.u
        yield _row(
            (
                e.algorithm,
                _units(e.any_order.variance, u),
                _units(e.declared.variance, u),
                _units(e.observed.variance, u, missing="-"),
                _units(e.declared.rstd, u),
                _units(e.observed.rstd, u, missing="-"),
                _units(e.declared.output, u),
                _units(e.observed.output, u, missing="-"),
                _kappa(e.half_kappa),
                _kappa(e.end_kappa),
            )
        )
    yield ""
    yield "any order, declared: proved bounds, for every order of the sums or for the declared tree; none: no"
    yield "theorem. observed: the worst seen in a quick search with that tree, which proves nothing; -: not"
    yield f"simulated, over {LONGEST_FOLLOWED} additions an element. The variance of rms is the mean"
    yield "square. The last two columns are for the declared tree; -: not up to 1e8, or to where"
    yield f"{dtype} cannot hold such rows."
    if plot_file is not None:
        plot(plot_file, columns=columns, dtype=dtype, tree=declared, name=name)
        yield f"drawn: {plot_file}"


def _row(cells: tuple[str, ...]) -> str:
    widths = (24, 11, 11, 10, 12, 10, 12, 10, 18, 14)
    rest = "".join(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))
    return f"{cells[0]:<{widths[0]}}{rest}".rstrip()


def _units(error: float, u: float, missing: str = "none") -> str:
    return missing if math.isnan(error) else f"{error / u:.3g}"


def _kappa(value: float) -> str:
    return "-" if math.isinf(value) else f"{value:.2g}"

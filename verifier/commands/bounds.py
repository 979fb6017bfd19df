"""The command that shows the proved bounds of every variance algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verifier.commands.outcome import clear_errors, must_be_writable, say


def bounds(
    columns: Annotated[int, typer.Option("-N", "--columns", min=1, help="Columns of a row.")] = 4096,
    kappa: Annotated[float, typer.Option(min=0.0, help="|mean| / standard deviation.")] = 0.0,
    dtype: Annotated[
        str, typer.Option(help="Format of the rows; sums are in float32, or in a wider one.")
    ] = "float32",
    tree: Annotated[
        str,
        typer.Option(
            help="Declared order of the sums: sequential, pairwise, any_order, lanes=256, chunks=8, "
            "depth=20, or a call as in a declaration: 'tile(block=1024, threads=128)'."
        ),
    ] = "lanes=256",
    plot: Annotated[
        Path | None, typer.Option(help="Draw error against kappa to this file: PNG, SVG or PDF.")
    ] = None,
) -> None:
    """Show the proved error bounds of every variance algorithm."""
    with clear_errors():
        from verifier.commands.early_answers import must_be_names

        must_be_writable(plot)
        must_be_names(dtypes=[dtype])
        from verifier.commands.show_bounds import show_bounds

        for line in show_bounds(columns=columns, kappa=kappa, dtype=dtype, tree_text=tree, plot_file=plot):
            say(line)

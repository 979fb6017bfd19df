"""A shape to run and what it costs: the estimated seconds of its case and of compiling its kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.cases.variations import Variation

CASE_SECONDS = 15.0
"""Shapes beyond are never run: a case has a limit, and a slow one is not to look like one that hangs."""


@dataclass(frozen=True, kw_only=True)
class Reaching:
    """A shape to run: its extents and its price in seconds, compilations not paid for by earlier ones.

    A list of them is in the order of worth for the price. opens: whether a kernel runs there that none before
    it in the list launches. shows: whether a loop turns more than once there, a statement of the wrapper
    runs, or a number lies that kernels compare with, as in none before it.
    variation: how it differs from a case with all given, contiguous. launches: the kernels that run there,
    turns: file and line of each of their loops that may turn more than once, as far as a dry run told.
    """

    rows: int
    columns: int
    variant: int = 0
    seconds: float = 0.0
    opens: bool = False
    shows: bool = False
    variation: Variation | None = None
    launches: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    turns: frozenset[tuple[str, int]] = field(default=frozenset(), compare=False, repr=False)

    def __str__(self) -> str:
        """Print the extents."""
        return f"({self.rows} x {self.columns})" + (f" {self.variation}" if self.variation else "")


def price(rows: int, columns: int) -> float:
    """Return the estimated seconds of one case without compilation: the machine, its judge, its blocks.

    Measured on one core of a server: 2.5 s a million elements, of which the oracle takes 2, 20 us a row.
    """
    return 0.05 + 2.5e-6 * rows * columns + 2e-5 * rows


def compilation(width: int) -> float:
    """Return the estimated seconds of compiling one kernel whose widest tile has so many elements.

    Measured likewise: 0.3 s for a narrow tile, 1.2 s for one of 16384.
    """
    return 0.3 + width / 16000

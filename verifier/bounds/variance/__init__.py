"""Variance algorithms, one file each: the proved bound, its source and a model that can be simulated.

A module of this folder is a variance algorithm when it defines

- `NAME`: the word used in declarations,
- `CENTRED`: whether it computes mean and variance (true) or a mean square (false),
- `NONNEGATIVE`: whether the computed variance can never be negative, whatever the rounding,
- `THEOREMS`: the numbers of its theorems in docs/explanation,
- `bound(rows: RowStatistics, claim: Reduction) -> MomentBound`,
- `simulate(rounded: RoundedArithmetic, values, claim: Reduction) -> (mean, variance)`, the algorithm itself,

and, where a declaration may say more of it, `OPTIONS`: a frozen dataclass (see `options.py`); where it keeps
the mean as two numbers, `simulate_parts(rounded, values, claim) -> (high, low)` and `MomentBound.parts`.

Being in the folder is the registration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal, Protocol, TypeVar, cast

import numpy as np

from strategies.registry import registry
from verifier.arithmetic.formats import Arithmetic, Array, Contraction, DivideByN
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import RoundedArithmetic
from verifier.arithmetic.trees.tree import Tree

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Merge = Literal["increment", "weighted", "pooled"]
SquareOrder = Literal["delta_first", "crossed", "counts_first", "scaled", "nested"]
Options = TypeVar("Options")


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a declaration says of the statistics: arithmetic, tree, and how the mean is made and used.

    `squares_tree` is the tree of the sum of squares where it differs from `tree`.
    `mean_cast` names a narrower format that the mean passes through before its use, if any.
    `per_lane_means`: each lane uses the statistics that it merged itself, in its own order, as a
    shuffle by exclusive or leaves them; sums are alike in all lanes, Welford merges are not.
    `squares` is how simulated merges write what they add to the squared deviations: bounds hold for each.
    `options` is the algorithm's own record of options (see `options.py`), None where nothing was chosen.
    """

    arithmetic: Arithmetic
    tree: Tree
    squares_tree: Tree | None = None
    divide_by_n: DivideByN = "division"
    mean_contraction: Contraction = "mixed"
    clamp: bool = False
    mean_cast: str | None = None
    per_lane_means: bool = False
    squares: SquareOrder = "delta_first"
    options: object = None

    def chosen(self, record: type[Options]) -> Options:
        """Return the algorithm's own options: those that were chosen, or else the defaults of its record.

        Raises:
            TypeError: the options are another algorithm's.

        """
        if self.options is None:
            return record()
        if not isinstance(self.options, record):
            raise TypeError(f"{type(self.options).__name__} is no {record.__name__}")
        return self.options


@dataclass(frozen=True, kw_only=True)
class MeanParts:
    """Bounds on a mean that is kept as two numbers, h and l = mean(x - h); every array has shape (rows,).

    `high_error` >= |h - exact mean|, `low_error` >= |l - (exact mean - h)|, each for every h that is used;
    `high_spread` >= the difference between two of them.
    """

    high_error: Array
    high_spread: Array
    low_error: Array


@dataclass(frozen=True, kw_only=True)
class MomentBound:
    """Bounds on the computed statistics of each row; every array has shape (rows,).

    `mean_error` >= |computed mean - exact mean| for every mean that the kernel uses;
    `mean_spread` >= the difference between two such means (0: it is one machine number);
    `variance_error` >= |computed variance - exact variance|, for rms: of the mean square.
    Where `covered` is false there is no theorem, and `why` says which hypothesis fails.
    `centred` is false for rms; `nonnegative` says that the computed variance is never below zero.
    `parts`: bounds on the two numbers that an algorithm keeps of the mean, if it does.
    """

    mean_error: Array
    mean_spread: Array
    variance_error: Array
    covered: Mask
    why: str
    centred: bool = True
    nonnegative: bool = False
    parts: MeanParts | None = None


class Algorithm(Protocol):
    """What a module of this folder that is a variance algorithm has."""

    NAME: str
    CENTRED: bool
    NONNEGATIVE: bool
    THEOREMS: tuple[str, ...]

    def bound(self, rows: RowStatistics, claim: Reduction) -> MomentBound:
        """Bound mean and variance of rows."""

    def simulate(self, rounded: RoundedArithmetic, values: Array, claim: Reduction) -> tuple[Array, Array]:
        """Run the algorithm on values (rows, columns); return mean and variance, (rows,)."""


@cache
def algorithms() -> dict[str, Algorithm]:
    """Return the variance algorithms by name, in alphabetical order."""
    return {name: cast("Algorithm", module) for name, module in registry(__name__, "NAME").items()}


def algorithm(name: str) -> Algorithm:
    """Return the variance algorithm of that name.

    Raises:
        ValueError: there is none.

    """
    known = algorithms()
    if name not in known:
        raise ValueError(f"no variance algorithm {name!r}; there are: {', '.join(known)}")
    return known[name]

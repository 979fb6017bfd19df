"""Variance algorithms, one file each: the proved bound, its source and a model that can be simulated.

A module of this folder is a variance algorithm when it defines

- `NAME`: the word used in declarations,
- `CENTRED`: whether it computes mean and variance (true) or a mean square (false),
- `NONNEGATIVE`: whether the computed variance can never be negative, whatever the rounding,
- `THEOREMS`: the numbers of its theorems in docs/explanation,
- `bound(rows: RowStatistics, claim: Reduction) -> MomentBound`,
- `simulate(rounded: Rounded, values, claim: Reduction) -> (mean, variance)`, the algorithm itself,

and, where a declaration may say more of it, `OPTIONS`: a frozen dataclass (see `options.py`).

Being in the folder is the registration.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

import numpy as np

from verifier.arithmetic import Arithmetic, Array, Contraction, DivideByN
from verifier.trees import Tree

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
Merge = Literal["increment", "weighted", "pooled"]


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """What a declaration says of the statistics: arithmetic, tree, and how the mean is made and used.

    `squares_tree` is the tree of the sum of squares where it differs from `tree`.
    `mean_cast` names a narrower format that the mean passes through before its use, if any.
    `shift_index` is the element whose value the shifted algorithm subtracts.
    `corrects_mean`: the corrected algorithms normalise with the corrected mean.
    `merge` is how two nodes' means are merged: m_A + delta*f ("increment"), f_A*m_A + f_B*m_B
    ("weighted") or (n_A*m_A + n_B*m_B)/n ("pooled").
    `per_lane_means`: each lane uses the statistics that it merged itself, in its own order, as a
    shuffle by exclusive or leaves them; sums are alike in all lanes, Welford merges are not.
    `options` is the algorithm's own record of options, for those that have no field here.
    """

    arithmetic: Arithmetic
    tree: Tree
    squares_tree: Tree | None = None
    divide_by_n: DivideByN = "division"
    mean_contraction: Contraction = "mixed"
    clamp: bool = False
    mean_cast: str | None = None
    shift_index: int = 0
    corrects_mean: bool = False
    merge: Merge = "increment"
    per_lane_means: bool = False
    options: Any = None


@dataclass(frozen=True, kw_only=True)
class MomentBound:
    """Bounds on the computed statistics of each row; every array has shape (rows,).

    `mean_error` >= |computed mean - exact mean| for every mean that the kernel uses;
    `mean_spread` >= the difference between two such means (0: it is one machine number);
    `variance_error` >= |computed variance - exact variance|, for rms: of the mean square.
    Where `covered` is false there is no theorem, and `why` says which hypothesis fails.
    `centred` is false for rms; `nonnegative` says that the computed variance is never below zero.
    """

    mean_error: Array
    mean_spread: Array
    variance_error: Array
    covered: Mask
    why: str
    centred: bool = True
    nonnegative: bool = False


@cache
def algorithms() -> dict[str, ModuleType]:
    """Return the variance algorithms by name, in alphabetical order."""
    found = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    named = {module.NAME: module for module in found if hasattr(module, "NAME")}
    return dict(sorted(named.items()))


def algorithm(name: str) -> ModuleType:
    """Return the variance algorithm of that name.

    Raises:
        ValueError: there is none.

    """
    known = algorithms()
    if name not in known:
        raise ValueError(f"no variance algorithm {name!r}; there are: {', '.join(known)}")
    return known[name]

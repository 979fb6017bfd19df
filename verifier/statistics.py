"""Exact statistics of rows, rounded outwards: what the theorems need to know of the input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verifier.arithmetic import Array


@dataclass(frozen=True, kw_only=True)
class RowStatistics:
    """Certified statistics of each row x of an input; every field but `count` has shape (rows,).

    `mean` is the float64 nearest the exact mean; the others are bounds in float64:
    `mean_magnitude` >= |mean|, `variance_lower` <= population variance <= `variance_upper`,
    `mean_absolute` >= mean |x|, `mean_square` >= mean x**2, `mean_deviation` >= mean |x - mean|,
    `largest_deviation` >= max |x - mean|, `largest` >= max |x|.
    `finite` is false for rows that hold a NaN or an infinity; their other fields are NaN.
    `values` are the rows themselves, (rows, count), for bounds that follow the reduction.
    """

    count: int
    mean: Array
    mean_magnitude: Array
    variance_lower: Array
    variance_upper: Array
    mean_absolute: Array
    mean_square: Array
    mean_deviation: Array
    largest_deviation: Array
    largest: Array
    finite: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    values: Array

    @property
    def sigma(self) -> Array:
        """Upper bound on the standard deviation."""
        return np.sqrt(self.variance_upper) * (1.0 + 2.0**-52)

    @property
    def kappa(self) -> Array:
        """|mean| / standard deviation, in float64 (infinite for constant rows with a mean)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.mean_magnitude / np.sqrt(self.variance_lower)
        return np.where(self.mean_magnitude == 0, 0.0, ratio)

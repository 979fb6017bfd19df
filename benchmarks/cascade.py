"""Compares torch's own layer norm on the CPU with the bounds of the order that `torch_cascade` declares.

    python benchmarks/cascade.py

prints, for rows of several lengths and |mean| / std, the largest error of the mean and of rstd divided by its
bound, and by which factor following the declared order (T8) makes the bound of the variance smaller than
counting its stages alone (T7). Values are drawn from a fixed seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import torch

from verifier.arithmetic.formats import ieee
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.trees.tree import torch_cascade
from verifier.bounds.variance import Reduction, algorithm
from verifier.bounds.variance.rstd import rstd_bound

LANES = {"AVX512": 16, "AVX2": 8}
"""float32 lanes of a vector register, by what torch says of the processor."""
COUNTS = (5, 33, 100, 1000, 4103, 8192)
KAPPAS = (0.0, 30.0, 1e3)
ROWS = 8
EPS = 1e-5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.parse_args()
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in LANES:
        print(f"torch's vector width on this processor ({capability}) is unknown", file=sys.stderr)
        return 2
    print(f"float32, {capability}, {ROWS} rows each, seed 0\n")
    for line in lines(LANES[capability]):
        print(line)
    return 0


def lines(lanes: int) -> Iterator[str]:
    """Yield a table: error / bound of mean and rstd, and T7 / T8 of the variance."""
    yield "| N | kappa | mean | rstd | T7 / T8 |\n|---|---|---|---|---|"
    random = np.random.default_rng(0)
    for count in COUNTS:
        for kappa in KAPPAS:
            rows = torch.from_numpy(random.normal(size=(ROWS, count)) + kappa).float()
            mean, rstd, tighter = against(rows, lanes)
            yield f"| {count} | {kappa:g} | {mean:.2g} | {rstd:.2g} | {tighter:.2g} |"


def against(rows: torch.Tensor, lanes: int) -> tuple[float, float, float]:
    """Return error / bound of mean and of rstd, the largest over rows, and the median of T7 / T8."""
    ones = torch.ones(rows.shape[1])
    _, mean, rstd = torch.native_layer_norm(rows, rows.shape[1:], ones, 0 * ones, EPS)
    statistics = exact_statistics(rows.double().numpy())
    order = torch_cascade(lanes=lanes)
    claim = Reduction(arithmetic=ieee("float32"), tree=order, mean_contraction="none")
    followed = algorithm("welford").bound(statistics, claim)
    counted = algorithm("welford").bound(statistics, replace(claim, tree=replace(order, steps_of=None)))
    root = rstd_bound(statistics, followed, EPS, claim.arithmetic.u, claim.arithmetic)
    assert followed.covered.all()
    assert root.covered.all()
    worst = [0.0, 0.0]
    for i in range(ROWS):
        exact_mean, variance, _ = exact_moments(statistics.values[i])
        error = abs(Fraction(float(mean[i, 0])) - exact_mean)
        worst[0] = max(worst[0], float(error) / float(followed.mean_error[i]))
        exact = 1 / mpmath.sqrt(mpmath.mpf(variance.numerator) / variance.denominator + mpmath.mpf(EPS))
        relative = abs(mpmath.mpf(float(rstd[i, 0])) / exact - 1)
        worst[1] = max(worst[1], float(relative) / float(root.relative_error[i]))
    return worst[0], worst[1], float(np.median(counted.variance_error / followed.variance_error))


if __name__ == "__main__":
    sys.exit(main())

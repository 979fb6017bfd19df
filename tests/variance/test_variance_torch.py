"""torch's own CPU layer norm, whose order we declare, stays inside the running bound."""

import mpmath
import numpy as np
import pytest
import torch

from verifier.arithmetic import ieee
from verifier.statistics import exact_moments, exact_statistics
from verifier.trees import any_order, torch_cascade
from verifier.variance import Reduction, algorithm
from verifier.variance.rstd import rstd_bound

LANES = {"AVX512": 16, "AVX2": 8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [5, 33, 1000, 4103])
def test_torch_layer_norm_stays_inside_the_bound_of_its_cascade(dtype, count):
    lanes = LANES.get(torch.backends.cpu.get_cpu_capability())
    if lanes is None:
        pytest.skip("torch's vector width on this processor is unknown")
    random = np.random.default_rng(count)
    named = torch_cascade(lanes=lanes, registers=1 if dtype == torch.float32 else 2)
    claim = Reduction(arithmetic=ieee("float32"), tree=named, mean_contraction="none")
    for kappa in (0.0, 30.0, 1e3):
        x = torch.from_numpy(random.normal(size=(2, count)) + kappa).to(dtype)
        parameters = torch.ones(count), torch.zeros(count)
        _, mean, rstd = torch.native_layer_norm(x, (count,), *parameters, 1e-5)
        statistics = exact_statistics(x.to(torch.float64).numpy())
        bound = algorithm("welford").bound(statistics, claim)
        root = rstd_bound(statistics, bound, 1e-5, 2.0**-24, claim.arithmetic)
        assert bound.covered.all()
        assert root.covered.all()
        for i in range(2):
            exact_mean, variance, _ = exact_moments(statistics.values[i])
            assert abs(float(mean[i, 0]) - exact_mean) <= bound.mean_error[i]
            t = mpmath.mpf(variance.numerator) / variance.denominator + mpmath.mpf(1e-5)
            exact = 1 / mpmath.sqrt(t)
            assert abs(mpmath.mpf(float(rstd[i, 0])) - exact) <= root.relative_error[i] * exact


def test_the_declared_cascade_is_far_better_than_any_order():
    random = np.random.default_rng(1)
    statistics = exact_statistics(np.float32(random.normal(size=(2, 4096)) + 100).astype(np.float64))
    bounds = [
        algorithm("welford")
        .bound(statistics, Reduction(arithmetic=ieee("float32"), tree=declared))
        .variance_error
        for declared in (torch_cascade(lanes=16), any_order())
    ]
    assert (100 * bounds[0] < bounds[1]).all()

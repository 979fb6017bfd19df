"""torch's own CPU norms stay inside the bounds of mean, variance and root, as they are declared."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.row_statistics import exact_moments, exact_statistics
from verifier.arithmetic.trees.tree import any_order, torch_cascade
from verifier.bounds.variance import MomentBound, Reduction, algorithm
from verifier.bounds.variance.rstd import rstd_bound

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


def every_variance(dtype):
    """Return every finite number of a 16-bit format that is not negative, (numbers,)."""
    largest = torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(torch.int16)
    return torch.arange(int(largest) + 1, dtype=torch.int16).view(dtype)


def bound_of_given(variance, eps, held):
    """Bound the root of variances that are given exactly, in float32 with steps rounded to `held`."""
    rows = replace(exact_statistics(np.zeros((1, 1))), variance_lower=variance, variance_upper=variance)
    nothing, everywhere = np.zeros(len(variance)), np.ones(len(variance), dtype=np.bool_)
    moments = MomentBound(
        mean_error=nothing,
        mean_spread=nothing,
        variance_error=nothing,
        covered=everywhere,
        why="",
        nonnegative=True,
    )
    eps_error = abs(float(np.float32(eps)) - eps) / eps * (1 + 2.0**-50)
    return rstd_bound(rows, moments, eps, eps_error, ieee("float32"), held=held)


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 1e-5, 1e-3, 0.5])
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_the_root_of_every_running_variance_in_half_stays_inside_its_bound(name, eps):
    """Of one as input, zero as mean and an input that is not contiguous the output is the root itself."""
    dtype = getattr(torch, name)
    variance = every_variance(dtype)
    count = len(variance)
    x = torch.ones(2, count + 1, dtype=dtype)[:, :count]
    given = torch.nn.functional.batch_norm(x, torch.zeros(count, dtype=dtype), variance, eps=eps)
    rstd, exact = given[0].double().numpy(), 1.0 / np.sqrt(variance.double().numpy() + eps)
    bound = bound_of_given(variance.double().numpy(), eps, FORMATS[name])
    error = np.abs(rstd / exact - 1.0)
    with np.errstate(invalid="ignore"):
        used = error / bound.relative_error
    assert not (used[bound.covered] > 1.0).any()
    assert used[bound.covered].max() > 0.55
    assert bound.covered[variance.double().numpy() > 1.0].mean() > 0.98
    assert np.isfinite(rstd[bound.covered]).all()
    once = bound_of_given(variance.double().numpy(), eps, None)
    assert (error > (1.0 + once.relative_error) * (1.0 + FORMATS[name].u) - 1.0)[once.covered].any()


def test_a_root_has_no_bound_where_half_loses_eps_and_the_variance():
    found = bound_of_given(np.array([0.0, 2.0**-24, 1.0, 65504.0]), 1e-12, FORMATS["float16"])
    assert found.covered.tolist() == [False, True, True, True]
    assert found.why == "the variance error reaches variance + eps"
    beyond = bound_of_given(np.array([65504.0]), 17.0, FORMATS["float16"])
    assert beyond.why == "variance + eps may overflow"

"""The oracle poses each op as PyTorch defines it: an independent reference in mpmath agrees."""

import itertools
import math

import numpy as np
import pytest
from mpmath import mp, mpf
from rounded_ops import declared, truth_of, variants

from strategies.values import Values
from verifier.cases.recipe import Recipe

BITS = 200


def numbers(tensor):
    """Return a tensor's exact values as an object array of mpmath numbers."""
    values = [mpf(float(v)) for v in tensor.double().flatten()]
    return np.array(values, dtype=object).reshape(tuple(tensor.shape))


def softmax_reference(case, *, logarithm):
    x, g = numbers(case.given["input"]), numbers(case.given["grad_output"])
    dim, out, gradient = case.scalars["dim"], np.empty_like(x), np.empty_like(x)
    rest = [range(n) for axis, n in enumerate(x.shape) if axis != dim % x.ndim]
    for index in itertools.product(*rest):
        at = list(index)
        at.insert(dim % x.ndim, slice(None))
        row, d = x[tuple(at)], g[tuple(at)]
        powers = [mp.exp(v) for v in row]
        y = [p / sum(powers) for p in powers]
        out[tuple(at)] = [mp.log(v) if logarithm else v for v in y]
        if logarithm:
            gradient[tuple(at)] = [di - yi * sum(d) for di, yi in zip(d, y, strict=True)]
        else:
            dot = sum(di * yi for di, yi in zip(d, y, strict=True))
            gradient[tuple(at)] = [yi * (di - dot) for di, yi in zip(d, y, strict=True)]
    return {"output": out, "grad_input": gradient}


def normalized_reference(case, members, given=None):
    """Normalize by sets of indices; `members` lists them, `given` their (mean, variance) if constant."""
    x, g = numbers(case.given["input"]), numbers(case.given["grad_output"])
    channels = x.shape[1]
    one, zero = [mpf(1)] * channels, [mpf(0)] * channels
    w = numbers(case.given["weight"]) if "weight" in case.given else one
    b = numbers(case.given["bias"]) if "bias" in case.given else zero
    out, gradient = np.empty_like(x), np.empty_like(x)
    grad_weight, grad_bias, statistics = list(zero), list(zero), []
    for row, places in enumerate(members):
        count = len(places)
        mean = sum(x[p] for p in places) / count
        var = sum((x[p] - mean) ** 2 for p in places) / count
        statistics.append((mean, var))
        mean, var = (mean, var) if given is None else given[row]
        rstd = 1 / mp.sqrt(var + mpf(case.eps))
        hat = {p: (x[p] - mean) * rstd for p in places}
        c1 = sum(hat[p] * g[p] * w[p[1]] for p in places) / count
        c2 = sum(g[p] * w[p[1]] for p in places) / count
        for p in places:
            out[p] = hat[p] * w[p[1]] + b[p[1]]
            through = 0 if given is not None else hat[p] * c1 + c2
            gradient[p] = (g[p] * w[p[1]] - through) * rstd
            grad_weight[p[1]] += g[p] * hat[p]
            grad_bias[p[1]] += g[p]
    results = {"output": out, "grad_input": gradient}
    results |= {"grad_weight": np.array(grad_weight), "grad_bias": np.array(grad_bias)}
    return results, statistics


def group_norm_reference(case):
    shape, groups = case.given["input"].shape, case.scalars["num_groups"]
    size = shape[1] // groups
    members = [
        list(itertools.product([n], range(k * size, (k + 1) * size), *(range(e) for e in shape[2:])))
        for n in range(shape[0])
        for k in range(groups)
    ]
    results, statistics = normalized_reference(case, members)
    rstd = [1 / mp.sqrt(v + mpf(case.eps)) for _, v in statistics]
    return results | {"mean": np.array([m for m, _ in statistics]), "rstd": np.array(rstd)}


def instance_norm_reference(case):
    shape = case.given["input"].shape
    members = [
        list(itertools.product([n], [c], *(range(e) for e in shape[2:])))
        for n in range(shape[0])
        for c in range(shape[1])
    ]
    return normalized_reference(case, members)[0]


def batch_norm_reference(case):
    shape, training = case.given["input"].shape, case.scalars["training"]
    held = {n: numbers(case.given[n]) for n in ("running_mean", "running_var") if n in case.given}
    members = [
        list(itertools.product(range(shape[0]), [c], *(range(e) for e in shape[2:]))) for c in range(shape[1])
    ]
    given = None if training else list(zip(held["running_mean"], held["running_var"], strict=True))
    results, statistics = normalized_reference(case, members, given)
    if not held:
        return results
    if training:
        a, count = mpf(case.scalars["momentum"]), math.prod(shape) // shape[1]
        new = [(m, v * count / (count - 1)) for m, v in statistics]
        held["running_mean"] = np.array(
            [(1 - a) * r + a * m for r, (m, _) in zip(held["running_mean"], new, strict=True)]
        )
        held["running_var"] = np.array(
            [(1 - a) * r + a * v for r, (_, v) in zip(held["running_var"], new, strict=True)]
        )
    return results | held


REFERENCES = {
    "softmax": lambda case: softmax_reference(case, logarithm=False),
    "log_softmax": lambda case: softmax_reference(case, logarithm=True),
    "group_norm": group_norm_reference,
    "batch_norm": batch_norm_reference,
    "instance_norm": instance_norm_reference,
}
CASES = [(name, variant) for name in REFERENCES for variant in variants(name)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "variant"), CASES)
def test_exact_results_enclose_an_independent_reference(name, variant, dtype):
    rows = 1 if name.endswith("softmax") and variant == 3 else 6
    for seed, columns in ((0, 12), (1, 7), (2, 2)):
        recipe = Recipe(
            rows=rows,
            columns=columns,
            variant=variant,
            input=Values(seed=seed, hazard="cancellation" if seed else "ordinary", strength=2),
            weight=None if seed == 1 else Values(seed=3),
            bias=None if seed == 2 else Values(seed=4),
            grad_output=Values(seed=5),
        )
        truth = truth_of(declared(name), dtype, dtype, recipe)
        with mp.workprec(BITS):
            expected = REFERENCES[name](truth.case)
            assert set(expected) <= set(truth.exact)
            for result, reference in expected.items():
                enclosed = truth.exact[result]
                wanted = truth.op.canonical(truth.case, result, reference)
                low, radius = (np.broadcast_to(p, enclosed.shape) for p in (enclosed.low, enclosed.radius))
                parts = zip(wanted.ravel(), enclosed.high.ravel(), low.ravel(), radius.ravel(), strict=True)
                for exact, high, rest, spread in parts:
                    assert np.isfinite(spread)
                    error = abs(exact - mpf(float(high)) - mpf(float(rest)))
                    slack = mpf(2) ** -150 * (abs(exact) + 1)  # of the reference itself, which has 200 bits
                    assert error <= mpf(float(spread)) + slack, result
                    assert spread <= 2.0**-30 * (1.0 + abs(high)), "an enclosure that says nothing"

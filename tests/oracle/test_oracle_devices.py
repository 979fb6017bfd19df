"""The fast rungs give certified answers on torch tensors as on NumPy arrays, and refuse other arithmetics."""

from fractions import Fraction

import numpy as np
import oracle_data
import pytest
import torch
from test_oracle_radius import violations

from verifier.arithmetic.error_free import numpy_or_torch
from verifier.arithmetic.error_free.numpy_or_torch import torch_kit
from verifier.arithmetic.lazy_fields import Later
from verifier.oracle.rows import operands, solve_fast
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.solve import solve


@pytest.fixture
def on_torch(monkeypatch):
    """Make the oracle work with torch operators, on the CPU."""
    monkeypatch.setattr(operands, "_kit", lambda value: torch_kit("cpu"))


@pytest.mark.parametrize("rung", ["float64", "double_double", "auto"])
@pytest.mark.parametrize("block", [16, 2**24])
def test_torch_operators_keep_the_radius(rung, block, on_torch, monkeypatch):
    monkeypatch.setattr(solve_fast, "DEVICE_BLOCK", block)
    for dtype in oracle_data.DTYPES:
        problem = oracle_data.ordinary(dtype, rows=4, mean=3.0)
        assert violations(problem, solve(problem, rung=rung)) == {}
    for name, problem in oracle_data.hostile(1):
        assert violations(problem, solve(problem, rung=rung)) == {}, name
    for name, problem in oracle_data.scalable(1):
        assert violations(problem, solve(problem, rung=rung), bits=14000) == {}, name


def test_torch_operators_group_by_an_index(on_torch):
    index = np.arange(6)[:, None] % 3 * 2 + np.arange(8)[None, :] // 4
    problem = oracle_data.ordinary("float32", rows=6, columns=8, parameter=index)
    for rung in ("float64", "double_double"):
        assert violations(problem, solve(problem, rung=rung)) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_every_dtype_are_exact_inputs(dtype):
    x = torch.randn(3, 17, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.randn(1, 17, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    given = solve(RowProblem(input=x, weight=weight, grad_output=x.flip(1), eps=1e-5))
    arrays_of = [t.detach().double().numpy() for t in (x, weight, x.flip(1))]
    wanted = solve(RowProblem(input=arrays_of[0], weight=arrays_of[1], grad_output=arrays_of[2], eps=1e-5))
    for name in ("output", "grad_input", "grad_weight"):
        assert np.array_equal(getattr(given, name).high, getattr(wanted, name).high)


def test_nan_rows_on_torch(on_torch):
    problem = oracle_data.ordinary("float32")
    problem.input[1, 1] = np.nan
    solution = solve(problem)
    assert np.isnan(solution.output.high).all(1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "broken",
    [
        {"device": lambda a: np.asarray(a).astype(np.float32)},
        {"device": lambda a: np.trunc(np.asarray(a) * 2.0**51) / 2.0**51},
    ],
)
def test_a_device_with_other_arithmetic_is_refused(broken):
    from dataclasses import replace

    kit = replace(numpy_or_torch.NUMPY, **broken)
    with pytest.raises(RuntimeError, match="not IEEE 754"):
        numpy_or_torch._require_ieee(kit, "broken")


class Contracted:
    """Numbers whose products are not rounded before a subtraction, as a contracting compiler makes them."""

    def __init__(self, values):
        self.values = values

    def __add__(self, other):
        return Contracted([float(Fraction(v) + Fraction(other)) for v in self.values])

    def __mul__(self, other):
        others = other.values if isinstance(other, Contracted) else [other] * len(self.values)
        return Contracted([Fraction(v) * Fraction(o) for v, o in zip(self.values, others, strict=True)])

    def __sub__(self, other):
        return Contracted([float(v - Fraction(other)) for v in self.values])


def test_a_device_that_contracts_products_is_refused():
    from dataclasses import replace

    kit = replace(
        numpy_or_torch.NUMPY,
        device=lambda a: Contracted(a.tolist()),
        host=lambda a: np.array([float(v) for v in a.values]),
    )
    with pytest.raises(RuntimeError, match="not IEEE 754"):
        numpy_or_torch._require_ieee(kit, "contracting")


@pytest.mark.gpu
@pytest.mark.parametrize("rung", ["float64", "double_double"])
def test_a_gpu_gives_the_bits_of_the_cpu(rung):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    random = torch.Generator().manual_seed(0)
    x, gradient = (torch.randn(64, 1000, generator=random) for _ in range(2))
    weight = torch.randn(1, 1000, generator=random)
    here = solve(RowProblem(input=x, weight=weight, grad_output=gradient, eps=1e-5), rung=rung)
    there = solve(
        RowProblem(input=x.cuda(), weight=weight.cuda(), grad_output=gradient.cuda(), eps=1e-5), rung=rung
    )
    for name in ("output", "grad_input", "normalized"):
        assert np.array_equal(getattr(here, name).high, getattr(there, name).high)
        assert np.array_equal(getattr(here, name).low, getattr(there, name).low)
    # sums over columns are taken in another order there: both enclosures must still share a value
    ends = (here.grad_weight, there.grad_weight)
    for k in range(1000):
        centres = [Fraction(e.high[k]) + Fraction(e.low[k]) for e in ends]
        assert abs(centres[0] - centres[1]) <= sum(Fraction(e.radius[k]) for e in ends)


def test_elements_stay_on_the_device_until_they_are_read(on_torch):
    solution = solve(oracle_data.ordinary("float32"))
    for record, fields in ((solution.output, ("high", "low", "radius")), (solution.statistics, ("values",))):
        assert all(isinstance(vars(record)[field], Later) for field in fields)
        for field in fields:
            assert isinstance(getattr(record, field), np.ndarray)
        assert not any(isinstance(vars(record)[field], Later) for field in fields)

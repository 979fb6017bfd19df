"""The true error lies inside the claimed radius, whatever the rows."""

from dataclasses import replace

import numpy as np
import oracle_data
import oracle_reference as reference
import pytest

from verifier.oracle.rows import solve_fast
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.solve import solve

RUNGS = ("float64", "double_double", "arb", "auto")
ELEMENTS = ("output", "normalized", "grad_input")


def rows_of(problem, bits):
    shape = problem.input.shape

    def spread(operand):
        return None if operand is None else np.broadcast_to(operand, shape)

    return reference.rows_in_mpmath(
        problem.input,
        problem.eps,
        centred=problem.centred,
        weight=spread(problem.weight),
        bias=spread(problem.bias),
        grad=problem.grad_output,
        given=None if problem.rstd is None else (problem.mean[:, 0], problem.rstd[:, 0]),
        running=None if problem.variance is None else (problem.mean[:, 0], problem.variance[:, 0]),
        bits=bits,
    )


def entry_index(problem):
    rows, columns = problem.input.shape
    if isinstance(problem.parameter, str):
        line = np.arange(columns)[None, :] if problem.parameter == "columns" else np.arange(rows)[:, None]
        return np.broadcast_to(line, (rows, columns))
    return problem.parameter


def violations(problem, solution, bits=reference.BITS):
    """Return the outputs with a true error beyond the radius, refused rows aside, with the places."""
    refused = np.isinf(solution.rstd.radius)
    kept = np.flatnonzero(~refused)
    rows = problem.input.shape[0]

    def cut(operand):
        return operand if operand is None or operand.shape[0] != rows else operand[kept]

    names = ("input", "weight", "bias", "grad_output", "mean", "rstd", "variance")
    found = rows_of(replace(problem, **{n: cut(getattr(problem, n)) for n in names}), bits)
    own = [row["own_error"] for row in found]
    wrong = {}
    scalars = ("mean", "rstd") if problem.rstd is not None else ("mean", "variance", "rstd")
    for name in scalars:
        wrong[name] = reference.outside(
            getattr(solution, name)[kept], [row[name] for row in found], own, bits
        )
    for name in ELEMENTS:
        values = [value for row in found for value in row[name]]
        slack = [error for error in own for _ in range(problem.input.shape[1])]
        wrong[name] = reference.outside(getattr(solution, name)[kept], values, slack, bits)
    if kept.size == rows:
        index = entry_index(problem)
        for name, summand in (("grad_weight", "contribution"), ("grad_bias", "grad")):
            enclosure = getattr(solution, name)
            sums = reference.entry_sums(found, enclosure.shape[0], index, summand, bits)
            wrong[name] = reference.outside(enclosure, sums, sum(own), bits)
    return {name: places for name, places in wrong.items() if places}


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", oracle_data.DTYPES)
@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("centred", [True, False])
def test_ordinary_rows(rung, dtype, mean, centred):
    problem = oracle_data.ordinary(dtype, mean=mean, centred=centred)
    assert violations(problem, solve(problem, rung=rung)) == {}


@pytest.mark.parametrize("rung", ["float64", "double_double"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_elements_of_one_row(rung, dtype):
    for seed in range(3):
        problem = oracle_data.ordinary(dtype, seed=seed, rows=1, columns=300, mean=0.3)
        assert violations(problem, solve(problem, rung=rung)) == {}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_thirty_thousand_float64_elements_against_double_double(dtype):
    rows, columns = 60, 500
    alone = np.arange(rows * columns).reshape(rows, columns)  # every element an entry of its own
    problem = oracle_data.ordinary(dtype, rows=rows, columns=columns, mean=0.3, bias=None, parameter=alone)
    first, second = solve(problem, rung="float64"), solve(problem, rung="double_double")
    for name in (*ELEMENTS, "grad_weight"):
        rough, fine = getattr(first, name), getattr(second, name)
        distance = np.abs((rough.high - fine.high) - fine.low)  # within 2**-52 relative of itself
        assert (distance * (1 - 2.0**-50) <= rough.radius + fine.radius).all(), name
        assert (distance > 0.4 * rough.radius).any(), name  # the radius is not idle either


def test_where_the_gradient_cancels_its_own_rounding_is_in_the_radius():
    random = np.random.default_rng(2)
    weight = random.normal(size=(1, 500))
    # grad_output * weight is 1.01 and a little, so that grad_input is hardly more than roundings
    gradient = (1.01 + 1e-13 * random.normal(size=(60, 500))) / weight
    problem = oracle_data.ordinary("float64", rows=60, columns=500, weight=weight, grad_output=gradient)
    rough, fine = (solve(problem, rung=rung).grad_input for rung in ("float64", "double_double"))
    distance = np.abs((rough.high - fine.high) - fine.low)
    assert (distance * (1 - 2.0**-50) <= rough.radius + fine.radius).all()
    assert (distance > 0.6 * rough.radius).any()


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("centred", [True, False])
def test_hostile_rows(rung, centred):
    for seed in range(3):
        for name, problem in oracle_data.hostile(seed):
            case = replace(problem, centred=centred)
            assert violations(case, solve(case, rung=rung)) == {}, name


@pytest.mark.parametrize("rung", ["arb", "auto"])
def test_rows_beyond_the_window_are_done_in_arb(rung):
    for name, problem in oracle_data.beyond_window():
        solution = solve(problem, rung=rung)
        assert violations(problem, solution, bits=14000) == {}, name
        assert np.isfinite(solution.output.radius).all(), name


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("centred", [True, False])
def test_rows_that_a_power_of_two_brings_back(rung, centred):
    for seed in range(3):
        for name, problem in oracle_data.scalable(seed):
            if not centred and problem.mean is not None:
                continue  # without a mean there is none to give
            case = replace(problem, centred=centred)
            assert violations(case, solve(case, rung=rung), bits=14000) == {}, (name, seed)


@pytest.mark.parametrize(("rung", "limit"), [("float64", 2.0**-48), ("double_double", 2.0**-90)])
def test_the_fast_rungs_themselves_do_scaled_rows(rung, limit):
    for name, problem in oracle_data.scalable():
        solution = solve(problem, rung=rung)
        for output in ELEMENTS:
            found = getattr(solution, output)
            largest = np.abs(found.high).max(1, keepdims=True)
            assert (found.radius <= limit * largest + 2.0**-1068).all(), (name, output)


def test_a_scaled_gradient_beyond_float64_is_admitted():
    problem = RowProblem(
        input=np.array([[1.0, 3.0, 4.0], [1.0, 3.0, 4.0]]) * [[2.0**-1060], [1.0]],
        grad_output=np.array([[2.0, 0.0, 1.0]] * 2),
        eps=0.0,
    )
    for rung in ("float64", "double_double"):
        solution = solve(problem, rung=rung)
        assert np.isinf(solution.grad_input.radius).any(1).tolist() == [True, False]
        assert np.isfinite(solution.output.radius).all()
        assert violations(problem, solution, bits=14000) == {}


@pytest.mark.parametrize("rung", ["float64", "double_double"])
def test_a_wrong_radius_of_a_scaled_row_would_be_caught(rung):
    for name, problem in oracle_data.scalable():
        solution = solve(problem, rung=rung)
        for output in ELEMENTS:
            found = getattr(solution, output)
            narrowed = replace(found, radius=found.radius * 2.0**-30)
            if output == "grad_input" and np.abs(found.high).max() < 2.0**-900:
                continue  # the radius is mostly what gradual underflow may lose, and did not
            assert violations(problem, replace(solution, **{output: narrowed}), bits=14000), (name, output)


@pytest.mark.parametrize("rung", ["float64", "double_double"])
def test_fast_rungs_admit_that_a_row_is_beyond_them(rung):
    for name, problem in oracle_data.beyond_window():
        solution = solve(problem, rung=rung)
        assert violations(problem, solution, bits=14000) == {}, name
        assert np.isinf(solution.output.radius[-1]).all(), name


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_given_statistics_are_exact_inputs(rung, dtype):
    problem = oracle_data.ordinary(dtype, mean=3.0)
    mean = oracle_data.rounded([[3.0], [2.9], [-1.0]], dtype)
    rstd = oracle_data.rounded([[1.1], [0.0], [7.5]], dtype)
    case = replace(problem, mean=mean, rstd=rstd)
    assert violations(case, solve(case, rung=rung)) == {}


@pytest.mark.parametrize("rung", RUNGS)
def test_running_statistics_are_constants_to_the_gradient(rung):
    problem = oracle_data.ordinary("float32", mean=3.0)
    case = replace(problem, mean=np.array([[3.0], [2.9], [0.0]]), variance=np.array([[1.1], [0.0], [7.5]]))
    assert violations(case, solve(case, rung=rung)) == {}


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("block", [16, 2**14])
@pytest.mark.parametrize("kind", ["rows", "columns", "index"])
def test_every_way_weights_belong_to_elements(rung, block, kind, monkeypatch):
    monkeypatch.setattr(solve_fast, "BLOCKS", {"float64": block, "double_double": block})
    rows, columns = 6, 8
    index = np.arange(rows)[:, None] % 3 * 2 + np.arange(columns)[None, :] // 4
    weight = np.random.default_rng(5).normal(size=(6,))
    spread = {"rows": weight[:, None], "columns": np.tile(weight, 2)[None, :8], "index": weight[index]}[kind]
    case = oracle_data.ordinary(
        "float32",
        rows=rows,
        columns=columns,
        weight=oracle_data.rounded(spread, "float32"),
        parameter=index if kind == "index" else kind,
        mean=0.5,
    )
    assert violations(case, solve(case, rung=rung)) == {}


@pytest.mark.parametrize("rung", RUNGS)
def test_no_weight_no_bias_no_gradient(rung):
    problem = oracle_data.ordinary("float32", weight=None, bias=None)
    assert violations(problem, solve(problem, rung=rung)) == {}
    forward = solve(replace(problem, grad_output=None), rung=rung)
    assert forward.grad_input is None
    assert forward.grad_weight is None


@pytest.mark.parametrize("rung", RUNGS)
def test_a_wrong_radius_would_be_caught(rung):
    problem = oracle_data.ordinary("float32", mean=10.0)
    solution = solve(problem, rung=rung)
    for name in ELEMENTS:
        enclosure = getattr(solution, name)
        narrowed = replace(solution, **{name: replace(enclosure, radius=enclosure.radius * 2.0**-30)})
        assert name in violations(problem, narrowed)
        moved = replace(
            enclosure,
            low=enclosure.low + 2.5 * np.maximum(enclosure.radius, np.spacing(np.abs(enclosure.low))),
        )
        assert len(violations(problem, replace(solution, **{name: moved}))[name]) == enclosure.high.size


def test_radii_are_as_small_as_the_rungs_promise():
    problem = oracle_data.ordinary("float32", rows=8, columns=500, mean=1000.0)
    for rung, limit in (("float64", 2.0**-48), ("double_double", 2.0**-96), ("arb", 2.0**-104)):
        solution = solve(problem, rung=rung)
        for name in ELEMENTS:
            enclosure = getattr(solution, name)
            assert np.median(enclosure.radius / np.abs(enclosure.high)) < limit, (rung, name)


@pytest.mark.parametrize("rung", ["float64", "double_double"])
def test_underflow_of_low_parts_stays_inside_the_published_floor(rung):
    problem = oracle_data.five()
    solution = solve(problem, rung=rung)
    assert violations(problem, solution) == {}
    assert (solution.grad_input.radius >= 2.0**-900).all()
    assert (solution.output.radius >= 2.0**-900).all()


def test_a_refused_row_has_infinite_radius_and_poisons_the_weights():
    problem = RowProblem(input=np.array([[1.0, 1.0], [1.0, 2.0]]), eps=0.0, grad_output=np.ones((2, 2)))
    for rung in RUNGS:
        solution = solve(problem, rung=rung)
        assert np.isinf(solution.output.radius).all(1).tolist() == [True, False], rung
        assert np.isinf(solution.rstd.radius).tolist() == [True, False], rung
        assert np.isinf(solution.grad_weight.radius).all(), rung
        assert np.isfinite(solution.grad_bias.radius).all(), rung


@pytest.mark.parametrize("rung", RUNGS)
def test_rows_with_nan_have_no_exact_value(rung):
    problem = oracle_data.ordinary("float32")
    problem.input[1, 3] = np.nan
    problem.bias[0, 2] = np.inf
    solution = solve(problem, rung=rung)
    assert np.isnan(solution.output.high).all(1).tolist() == [False, True, False]
    assert np.isnan(solution.output.high[0]).nonzero()[0].tolist() == [2]
    assert np.isnan(solution.grad_input.high).any(1).tolist() == [False, True, False]
    assert np.isnan(solution.grad_weight.high).all()
    assert solution.statistics.finite.tolist() == [True, False, True]
    clean = replace(problem, input=problem.input[[0, 2]], bias=None, grad_output=problem.grad_output[[0, 2]])
    assert np.array_equal(solution.normalized.high[[0, 2]], solve(clean, rung=rung).normalized.high)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_nan_in_the_gradient_leaves_the_forward_alone(rung):
    problem = oracle_data.ordinary("float32")
    problem.grad_output[2, 4] = np.inf
    solution = solve(problem, rung=rung)
    assert np.isfinite(solution.output.high).all()
    assert np.isnan(solution.grad_input.high).all(1).tolist() == [False, False, True]
    assert np.flatnonzero(np.isnan(solution.grad_weight.high)).tolist() == [4]
    assert np.flatnonzero(np.isnan(solution.grad_bias.high)).tolist() == [4]


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_empty_problems(rung, shape):
    solution = solve(RowProblem(input=np.zeros(shape), grad_output=np.zeros(shape), eps=1e-5), rung=rung)
    assert solution.output.shape == shape
    assert solution.grad_weight.shape == shape[1:]
    assert solution.mean.shape == shape[:1]
    assert np.isinf(solution.rstd.radius).all() or shape[0] == 0


def test_misshapen_problems_are_refused_with_a_sentence():
    x = np.ones((2, 3))
    with pytest.raises(ValueError, match="rows and columns"):
        solve(RowProblem(input=np.ones(3), eps=1e-5))
    with pytest.raises(ValueError, match="weight has shape"):
        solve(RowProblem(input=x, eps=1e-5, weight=np.ones((1, 4))))
    with pytest.raises(ValueError, match="given together"):
        solve(RowProblem(input=x, eps=1e-5, rstd=np.ones((2, 1))))
    with pytest.raises(ValueError, match="no rung"):
        solve(RowProblem(input=x, eps=1e-5), rung="float32")

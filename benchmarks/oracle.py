"""Speed of the oracle's rungs against mpmath, layer norm forward and backward, in one run.

Run: `OMP_NUM_THREADS=1 python benchmarks/oracle.py`. Figures are million elements a second, best of the
repetitions in processor time of the one thread, for all seven results (mean, variance, rstd, output and
three gradients); contenders take turns, so that all meet the same machine. mpmath runs plain formulas at
200 bits on fewer rows, since its cost is proportional to the elements.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from mpmath import libmp, mp, mpf

from verifier.oracle.decide import decide
from verifier.oracle.rows.problem import RowProblem
from verifier.oracle.softmax.problem import SoftmaxProblem
from verifier.oracle.solve import solve

MPMATH_BITS = 200


def rows_problem(dtype, rows, columns):
    random = np.random.default_rng(0)

    def draw(*shape):
        return random.normal(size=shape).astype(dtype).astype(np.float64)

    return RowProblem(
        input=draw(rows, columns),
        weight=draw(1, columns),
        bias=draw(1, columns),
        grad_output=draw(rows, columns),
        eps=1e-5,
    )


def by_mpmath(problem):
    with mp.workprec(MPMATH_BITS):
        x, dy = ([[mpf(a) for a in row] for row in v.tolist()] for v in (problem.input, problem.grad_output))
        w, b = ([mpf(a) for a in v[0].tolist()] for v in (problem.weight, problem.bias))
        n = len(w)
        grad_weight, grad_bias, outputs = [mpf(0)] * n, [mpf(0)] * n, []
        for row, grad in zip(x, dy, strict=True):
            mean = mp.fsum(row) / n
            deviations = [a - mean for a in row]
            rstd = 1 / mp.sqrt(mp.fsum(d * d for d in deviations) / n + mpf(problem.eps))
            h = [d * rstd for d in deviations]
            y = [p * q + r for p, q, r in zip(h, w, b, strict=True)]
            g = [p * q for p, q in zip(grad, w, strict=True)]
            c1, c2 = mp.fdot(g, h) / n, mp.fsum(g) / n
            dx = [(p - q * c1 - c2) * rstd for p, q in zip(g, h, strict=True)]
            grad_weight = [s + p * q for s, p, q in zip(grad_weight, grad, h, strict=True)]
            grad_bias = [s + p for s, p in zip(grad_bias, grad, strict=True)]
            outputs.append((y, dx))
        return outputs, grad_weight, grad_bias


def rate(function, elements, repetitions):
    function()  # the first call fills caches and the heap
    best = float("inf")
    for _ in range(repetitions):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return elements / best / 1e6


def interleaved(problem, few, repetitions):
    """Return the best speed of each contender, all timed in turn so that they meet the same machine."""
    contenders = {"mpmath": (lambda: by_mpmath(few), few)}
    for rung in ("float64", "double_double", "arb"):
        contenders[rung] = (lambda rung=rung: solve(problem, rung=rung), problem)
    best = dict.fromkeys(contenders, 0.0)
    for round_number in range(repetitions):
        for name, (function, posed) in contenders.items():
            if name != "arb" or round_number < 2:
                best[name] = max(best[name], rate(function, posed.input.size, 1))
    return best


def on_device(device, rows, columns, repetitions):
    """Print the wall time of one fp16 forward on a torch device, and of copying one result to the host.

    The solution's elements stay on the device until they are read; the statistics of rows do not.
    """
    import torch

    x, weight, bias = (torch.randn(n, columns, device=device).half() for n in (rows, 1, 1))
    problem = RowProblem(input=x, weight=weight, bias=bias, eps=1e-5)
    best = read = float("inf")
    for _ in range(repetitions + 1):  # the first call makes the kernels
        start = time.perf_counter()
        output = solve(problem, rung="float64").output
        if device == "cuda":
            torch.cuda.synchronize()
        best, start = min(best, time.perf_counter() - start), time.perf_counter()
        _ = output.high, output.radius
        read = min(read, time.perf_counter() - start)
    name = torch.cuda.get_device_name() if device == "cuda" else device
    speed = x.numel() / best / 1e6
    print(f"{name}: layer_norm forward, float16, {rows} x {columns}: {best:.3f} s, {speed:.1f} M/s")
    print(f"{name}: its output and radius to the host: {read:.3f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="default 64; with --device 65536")
    parser.add_argument(
        "--device", help="time one fp16 forward on this torch device instead, for instance cuda"
    )
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=25)
    options = parser.parse_args()
    if options.device:
        on_device(options.device, options.rows or 65536, options.columns, min(options.repetitions, 3))
        return
    rows, columns = options.rows or 64, options.columns
    print(f"layer_norm forward + backward, {rows} x {columns}; mpmath backend: {libmp.BACKEND}")
    for dtype in ("float16", "float32", "float64"):
        problem, few = rows_problem(dtype, rows, columns), rows_problem(dtype, max(1, rows // 16), columns)
        speeds = interleaved(problem, few, options.repetitions)
        base = speeds["mpmath"]
        for name, speed in speeds.items():
            print(f"{dtype:8} {name:14} {speed:9.3f} M/s  {speed / base:7.1f} x mpmath")
    small = rows_problem("float32", 4, 33)
    speed = rate(lambda: solve(small), small.input.size, 200)
    print(f"one 4 x 33 problem, auto: {small.input.size / speed / 1e3:.3f} ms")
    actual = solve(small).output.high.astype(np.float32).astype(np.float64)
    bound = np.full(actual.shape, 1e-6)
    speed = rate(lambda: decide(small, "output", actual, bound), actual.size, 200)
    print(f"one 4 x 33 decision on its output: {actual.size / speed / 1e3:.3f} ms")
    x = rows_problem("float32", rows, columns)
    softmax = SoftmaxProblem(input=x.input, grad_output=x.grad_output)
    speed = rate(lambda: solve(softmax), x.input.size, options.repetitions)
    print(f"softmax  double_double  {speed:9.3f} M/s")


if __name__ == "__main__":
    main()

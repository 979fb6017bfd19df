"""Speed of the PTX machine against Triton's own interpreter, side by side in one run.

Run it as `python benchmarks/machine.py`; it starts the interpreter in a second process of its own, since
Triton decides at import whether it interprets. Prints milliseconds (least and median) and their ratios,
the cost of each arithmetic beside the plain run, and time and memory of one large launch.
"""

# ruff: noqa: PLR0917 - kernels take their arguments by position

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
import triton
import triton.language as tl

ROWS, COLUMNS, REPEATS, LARGE = 64, 1024, 40, 4096
ARITHMETICS = ("lifted", "field", "taint", "ball")
CASES = ("forward", "backward", "backward with contention")


@triton.jit
def layer_norm_forward(X, Y, W, B, Mean, Rstd, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * N + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    d = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(d * d, axis=0) / N + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    b = tl.load(B + cols, mask=mask).to(tl.float32)
    tl.store(Y + row * N + cols, (d * rstd * w + b).to(Y.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_backward(DX, DY, DW, X, W, Mean, Rstd, Lock, N, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * N + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + row * N + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    rstd = tl.load(Rstd + row)
    xhat = tl.where(mask, (x - tl.load(Mean + row)) * rstd, 0.0)
    g = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(xhat * g, axis=0) / N
    c2 = tl.sum(g, axis=0) / N
    tl.store(DX + row * N + cols, ((g - (xhat * c1 + c2)) * rstd).to(DX.dtype.element_ty), mask=mask)
    part = (dy * xhat).to(DW.dtype.element_ty)
    place = DW + row % GROUPS * N + cols
    while tl.atomic_cas(Lock + row % GROUPS, 0, 1) == 1:
        pass
    part += tl.load(place, mask=mask)
    tl.store(place, part, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock + row % GROUPS, 0)


def milliseconds(function) -> list[float]:
    """Sorted processor times of several runs, the first one (compilation) left out.

    Processor time, since everything runs in one thread and other processes may share the machine.
    """
    function()
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        function()
        times.append(1e3 * (time.process_time() - start))
    return sorted(times)


def measure() -> dict[str, list[float]]:
    """Times of every case in whatever runs Triton kernels here."""
    torch.manual_seed(0)
    x, dy, y, dx = (torch.randn(ROWS, COLUMNS).half() for _ in range(4))
    w, b = torch.randn(COLUMNS).half(), torch.randn(COLUMNS).half()
    mean, rstd = torch.empty(ROWS), torch.empty(ROWS)

    def forward():
        layer_norm_forward[(ROWS,)](x, y, w, b, mean, rstd, COLUMNS, 1e-5, BLOCK=1024, num_warps=4)

    def backward(groups):
        dw, lock = torch.zeros(groups, COLUMNS).half(), torch.zeros(groups, dtype=torch.int32)
        layer_norm_backward[(ROWS,)](
            dx, dy, dw, x, w, mean, rstd, lock, COLUMNS, GROUPS=groups, BLOCK=1024, num_warps=4
        )

    cases = (forward, lambda: backward(256), lambda: backward(4))
    return {name: milliseconds(case) for name, case in zip(CASES, cases, strict=True)}


def large() -> tuple[float, float]:
    """Seconds and largest resident memory in GiB of one large forward, this process included."""
    from verifier import machine

    x, w, b = torch.randn(LARGE, LARGE).half(), torch.randn(LARGE).half(), torch.randn(LARGE).half()
    y, mean, rstd = torch.empty_like(x), torch.empty(LARGE), torch.empty(LARGE)
    with machine.session():
        start = time.perf_counter()
        layer_norm_forward[(LARGE,)](x, y, w, b, mean, rstd, LARGE, 1e-5, BLOCK=LARGE, num_warps=8)
        seconds = time.perf_counter() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux: KiB


def in_process(part: str, **environment: str):
    """What a part measures in a process of its own."""
    script = [sys.executable, str(Path(__file__).resolve()), part]
    output = subprocess.run(
        script, env={**os.environ, **environment}, check=True, capture_output=True, text=True
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    """Print the table."""
    from verifier import machine

    if len(sys.argv) > 1:
        print(json.dumps({"--here": measure, "--large": large}[sys.argv[1]]()))
        return
    with machine.session():
        ours = measure()
    shadowed = {}
    for name in ARITHMETICS:
        with machine.session(arithmetic=name):
            shadowed[name] = measure()
    theirs = in_process("--here", TRITON_INTERPRET="1")
    print(f"{ROWS} x {COLUMNS} float16, least and median of {REPEATS} runs in milliseconds of processor time")
    for case in CASES:
        a, b = ours[case], theirs[case]
        ratio = f"{b[0] / a[0]:.1f} (least), {b[REPEATS // 2] / a[REPEATS // 2]:.1f} (median)"
        times = [f"{t[0]:.1f} {t[REPEATS // 2]:.1f}" for t in (a, b)]
        print(f"{case}: machine {times[0]}, interpreter {times[1]}, ratio {ratio}")
        costs = ", ".join(f"{name} {t[case][0] / a[0]:.1f}x" for name, t in shadowed.items())
        print(f"  arithmetics against the plain machine: {costs}")
    seconds, gibibytes = in_process("--large")
    print(f"forward {LARGE} x {LARGE} float16: {seconds:.1f} s, at most {gibibytes:.2f} GiB resident")


if __name__ == "__main__":
    main()

"""Measure the approximate float32 instructions of a CUDA device: largest errors over every input.

    python benchmarks/constants.py --json constants.json

Unary instructions meet all 2**32 inputs; of a division, every significand of the divisor meets a set of
numerators at ordinary exponents. The exact values are float64 functions of the device, whose own
relative error is below 2**-50 and is added to what is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

REFERENCE_ERROR = 2.0**-50
"""Relative error of the float64 functions that serve as exact values: a few units of 2**-53."""
CHUNK = 2**25
SMALLEST_NORMAL = 2.0**-126
LARGEST = float(torch.finfo(torch.float32).max)
NUMERATORS = (1.0, 1.5, 1.0 + 2.0**-23, 2.0 - 2.0**-23, 1.3333333730697632, 1.7320507764816284)
UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rcp": lambda x: 1.0 / x,
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1.0 / torch.sqrt(x),
    "ex2": torch.exp2,
    "lg2": torch.log2,
}
Operation = Callable[..., torch.Tensor]


@dataclass(kw_only=True)
class Worst:
    """Largest errors seen where argument and exact value are normal numbers; `at` are the argument's bits.

    relative: |answer - exact| / |exact|; ulp: the same in units of the last place of the exact value.
    absolute: over all finite exact values. near_one: absolute, for arguments within a factor of two of 1.
    unexpected: answers that are not finite although the exact value is a normal number.
    """

    relative: float = 0.0
    at: int = 0
    ulp: float = 0.0
    absolute: float = 0.0
    near_one: float = 0.0
    inputs: int = 0
    unexpected: int = 0

    def add(self, x: torch.Tensor, answer: torch.Tensor, exact: torch.Tensor) -> None:
        """Take in answers (float32) to arguments x (float32) whose exact values are given in float64."""
        size = exact.abs()
        normal = (size >= SMALLEST_NORMAL) & (size <= LARGEST) & (x.abs() >= SMALLEST_NORMAL) & x.isfinite()
        self.inputs += int(normal.sum())
        self.unexpected += int((normal & ~answer.isfinite()).sum())
        error = torch.where(normal & answer.isfinite(), (answer.double() - exact).abs(), 0.0)
        relative = torch.where(normal, error / size, 0.0)
        worst = int(relative.argmax())
        if float(relative[worst]) + REFERENCE_ERROR > self.relative and float(relative[worst]) > 0.0:
            self.relative = float(relative[worst]) + REFERENCE_ERROR
            self.at = int(x.view(torch.int32)[worst]) & 0xFFFFFFFF
        _, exponent = torch.frexp(torch.where(normal, size, 1.0))
        last_place = ((exponent.long() - 24 + 1023) << 52).view(torch.float64)
        self.ulp = max(self.ulp, float((error / last_place).max()))
        self.absolute = max(self.absolute, float(error.max()))
        near = (x >= 0.5) & (x <= 2.0)
        self.near_one = max(self.near_one, float(torch.where(near, error, 0.0).max()))


def every_float32(device: str, count: int = 2**32, chunk: int = CHUNK) -> Iterator[torch.Tensor]:
    """Yield the first `count` bit patterns as float32, in chunks."""
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        bits = torch.arange(start, stop, dtype=torch.int64, device=device)
        signed = torch.where(bits >= 2**31, bits - 2**32, bits).to(torch.int32)
        yield signed.view(torch.float32)


def measure_unary(operation: Operation, exact: Operation, arguments: Iterator[torch.Tensor]) -> Worst:
    """Return the largest errors of a unary operation over the arguments."""
    worst = Worst()
    for x in arguments:
        worst.add(x, operation(x), exact(x.double()))
    return worst


def measure_division(operation: Operation, device: str, significands: int = 2**23) -> Worst:
    """Return the largest errors of a / b for every significand of b, some exponents and numerators."""
    worst = Worst()
    bits = torch.arange(significands, dtype=torch.int32, device=device)
    for numerator in NUMERATORS:
        for exponent in (-100, -1, 0, 1, 60):
            b = (bits + ((127 + exponent) << 23)).view(torch.float32)
            a = torch.full_like(b, numerator)
            worst.add(b, operation(a, b), a.double() / b.double())
    return worst


@triton.jit
def _unary(x, y, count, ASM: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < count, other=1.0)
    found = tl.inline_asm_elementwise(ASM, "=f,f", [value], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + at, found, mask=at < count)


@triton.jit
def _binary(a, b, y, count, ASM: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917 (Triton launches by position)
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(a + at, mask=at < count, other=1.0)
    right = tl.load(b + at, mask=at < count, other=1.0)
    found = tl.inline_asm_elementwise(ASM, "=f,f,f", [left, right], dtype=tl.float32, is_pure=True, pack=1)
    tl.store(y + at, found, mask=at < count)


def device_operations() -> dict[str, Operation]:
    """Return the instructions of the device by name, through Triton's inline PTX."""

    def launched(instruction: str, kernel: Any, operands: str) -> Operation:
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            y = torch.empty_like(tensors[0])
            grid = (triton.cdiv(y.numel(), 1024),)
            kernel[grid](*tensors, y, y.numel(), ASM=f"{instruction}.f32 {operands};", BLOCK=1024)
            return y

        return run

    found = {}
    for flush in ("", ".ftz"):
        for name in UNARY:
            found[f"{name}.approx{flush}"] = launched(f"{name}.approx{flush}", _unary, "$0, $1")
        for kind in ("approx", "full"):
            found[f"div.{kind}{flush}"] = launched(f"div.{kind}{flush}", _binary, "$0, $1, $2")
    return found


def facts() -> dict[str, Any]:
    """Name the device, its driver and the toolchain."""
    properties = torch.cuda.get_device_properties(0)
    driver = getattr(torch._C, "_cuda_getDriverVersion", lambda: None)()
    return {
        "device": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver,
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def measure(operations: dict[str, Operation], device: str, count: int = 2**32) -> dict[str, Any]:
    """Return the worst errors of each operation by name."""
    found = {}
    for name, operation in operations.items():
        stem = name.split(".")[0]
        if stem == "div":
            worst = measure_division(operation, device, min(count, 2**23))
        else:
            worst = measure_unary(operation, UNARY[stem], every_float32(device, count))
        found[name] = asdict(worst)
        print(
            f"{name:16} relative {worst.relative * 2.0**24:8.4f} u  ulp {worst.ulp:7.4f}  {worst}", flush=True
        )
    return found


def main() -> int:
    """Measure and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", required=True, help="the file to write")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here", file=sys.stderr)
        return 2
    document = {**facts(), "instructions": measure(device_operations(), "cuda")}
    Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How far expf, logf and tanhf, as compilers write them, are from the exact ones: for all of float32.

    python benchmarks/functions.py [NAME ...] [--step 1] [--jobs 2]

The expressions are those that graphs are searched for (`verifier/arithmetic/graph/device_functions.py`), made
of the machine's own operations, with the ex2.approx that was read off an H200 for all 2^32 numbers.
Logarithms are asked for of positive finite numbers alone, as the code around them sees to (`within.f32`).
The exact values are float64 functions of NumPy, which err by less than 2^-50 of themselves; that is added.
Prints a line of a table for each function. step: of the bit patterns only each so-manieth.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from verifier.arithmetic.graph.device_functions import pattern_of
from verifier.machine.arithmetic.special_function_unit import device
from verifier.machine.shadow.graph_nodes import Nodes

CHUNK = 1 << 16
REFERENCE_ERROR = 2.0**-50
SMALLEST_NORMAL, LARGEST = 2.0**-126, float(np.finfo(np.float32).max)
_INFINITE = 0x7F800000
_MINUS_INFINITE = 0xFF800000
RANGES = {
    "exp.cuda.f32": ((0, _INFINITE + 1), (1 << 31, _MINUS_INFINITE + 1)),
    "log.cuda.f32": ((1, _INFINITE),),
    "log.libdevice.f32": ((1, _INFINITE),),
    "tanh.libdevice.f32": ((1 << 23, _INFINITE + 1), ((1 << 31) + (1 << 23), _MINUS_INFINITE + 1)),
}
"""The bits of arguments, from and to: of all numbers for exponentials, of all above 0 for logarithms, of all
but subnormal ones for tangents, which flush those to zero."""
_PART = 1 << 24
EXACT = {
    "exp.cuda.f32": np.exp,
    "log.cuda.f32": np.log,
    "log.libdevice.f32": np.log,
    "tanh.libdevice.f32": np.tanh,
}
_INTEGERS = {"and.b32", "or.b32", "add.s32", "sub.s32", "shl.b32", "setp.lt.u32"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """Numbers tried, the largest error in ulp of the exact value and where, special values that are wrong.

    An ulp is that of the smallest normal number, at least. at: the bits of the argument.
    """

    tried: int = 0
    ulp: float = 0.0
    at: int = 0
    wrong: int = 0

    def and_also(self, other: Found) -> Found:
        """Return what both found."""
        worst = max(self, other, key=lambda one: one.ulp)
        tried, wrong = self.tried + other.tried, self.wrong + other.wrong
        return Found(tried=tried, ulp=worst.ulp, at=worst.at, wrong=wrong)


@cache
def _nodes(name: str, count: int) -> tuple[Nodes, np.ndarray]:
    """Return the expression of a function of so many numbers, and the nodes of the results."""
    pattern, nodes, made = pattern_of(name), Nodes(), []
    uses = list(zip(pattern.names, pattern.operands, strict=True))
    for number, (term, operands) in enumerate(uses):
        if term == "x":
            made.append(nodes.add("input:x", (count,), value=np.arange(count, dtype=np.uint64)))
        elif term.startswith("0x"):
            user = next(one for one, of in uses if number in of)
            kind = "b32" if user in _INTEGERS else "f32"
            made.append(nodes.add(f"literal:{kind}", (count,), value=np.asarray(int(term, 16))))
        else:
            made.append(nodes.add(term, (count,), tuple(made[operand] for operand in operands), None))
    return nodes, made[-1]


def computed(name: str, bits: np.ndarray) -> np.ndarray:
    """Return the function of the numbers with these bits, float32."""
    nodes, result = _nodes(name, len(bits))
    found, known = nodes.evaluate({"x": bits.astype(np.uint64)}, device())
    assert known.all()
    return found[result].astype(np.uint32).view(np.float32)


def measured(name: str, bits: np.ndarray) -> Found:
    """Compare a function of the numbers with these bits with the exact one."""
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
        results = computed(name, bits).astype(np.float64)
        rounded = exact.astype(np.float32)
        ordinary = np.isfinite(rounded)
        spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(SMALLEST_NORMAL))).astype(np.float64)
        ulp = (np.abs(results - exact) + np.abs(exact) * REFERENCE_ERROR) / spacing
        # Beyond the largest number a result may round to it; what is no number, or infinite, has to be that.
        near = (np.abs(exact) < LARGEST * (1 + 2.0**-22)) & (np.abs(results) >= LARGEST)
        right = (np.isnan(results) & np.isnan(exact)) | (results == rounded) | near
        wrong = int((~ordinary & ~right).sum()) + int((ordinary & ~np.isfinite(results)).sum())
    ulp = np.where(ordinary & np.isfinite(ulp), ulp, 0.0)
    place = int(ulp.argmax())
    return Found(tried=len(bits), ulp=float(ulp[place]), at=int(bits[place]), wrong=wrong)


def _of_part(name: str, step: int, part: tuple[int, int]) -> Found:
    """Measure a part of the bit patterns."""
    found, bits = Found(), np.arange(*part, step, dtype=np.uint64).astype(np.uint32)
    for start in range(0, len(bits), CHUNK):
        found = found.and_also(measured(name, bits[start : start + CHUNK]))
    return found


def _lines(names: list[str], step: int, jobs: int) -> Iterator[str]:
    yield "| function | numbers | largest error in ulp | at | special values that are wrong |"
    yield "|---|---|---|---|---|"
    with ProcessPoolExecutor(jobs) as pool:
        for name in names:
            found = Found()
            parts = [(a, min(a + _PART, to)) for start, to in RANGES[name] for a in range(start, to, _PART)]
            for part in pool.map(partial(_of_part, name, step), parts):
                found = found.and_also(part)
            at = float(np.array([found.at], dtype=np.uint32).view(np.float32)[0])
            yield f"| `{name}` | {found.tried:,} | {found.ulp:.4f} | {at!r} | {found.wrong} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=sorted(EXACT), metavar="NAME")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    for line in _lines(arguments.names, arguments.step, arguments.jobs):
        print(line, flush=True)


if __name__ == "__main__":
    main()

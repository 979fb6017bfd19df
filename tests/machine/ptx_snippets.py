"""Small PTX kernels around one instruction, and exact references in rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from verifier.machine import Machine, launch_ptx

LOAD = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
REGISTER = {1: "b16", 2: "b16", 4: "b32", 8: "b64"}

STORE = "mad.lo.s64 %a0, %wide, 4, %base0; st.global.b32 [%a0], %r0;"
REGISTERS = ".reg .b32 %r<20>; .reg .pred %p<9>; .reg .f32 %f<9>; .shared .align 4 .b8 tile[4096];"


def kernel(body: str, parameters: int, *, registers: str = "", target: int = 90) -> str:
    """A kernel `k` with pointer parameters p0.. whose addresses for this thread are in %a0.. (64-bit)."""
    names = ", ".join(f".param .u64 p{n}" for n in range(parameters))
    loads = "\n".join(f"ld.param.u64 %base{n}, [p{n}];" for n in range(parameters))
    return f"""
.version 8.6
.target sm_{target}
.address_size 64
.visible .entry k({names})
{{
.reg .b64 %base<{parameters + 1}>; .reg .b64 %a<{parameters + 1}>; .reg .b64 %wide; .reg .b32 %t;
{registers}
mov.u32 %t, %tid.x;
cvt.u64.u32 %wide, %t;
{loads}
{body}
ret;
}}
"""


def arrange(opcode: str, operands: list[np.ndarray], result: str, *, guard: str = "") -> str:
    """PTX of kernel `k` that runs one instruction, an element a thread; pointers to operands, then result."""
    lines, registers = [], []
    for number, operand in enumerate(operands):
        size = operand.dtype.itemsize
        registers.append(f".reg .{REGISTER[size]} %x{number};")
        lines.append(f"mad.lo.s64 %a{number}, %wide, {size}, %base{number};")
        lines.append(f"ld.global.{LOAD[size]} %x{number}, [%a{number}];")
    out = len(operands)
    size = np.dtype(result).itemsize
    registers.append(f".reg .{REGISTER[size]} %y;")
    lines.append(f"{guard}{opcode} %y, {', '.join(f'%x{n}' for n in range(out))};")
    lines.append(f"mad.lo.s64 %a{out}, %wide, {size}, %base{out};")
    lines.append(f"st.global.{LOAD[size]} [%a{out}], %y;")
    return kernel("\n".join(lines), out + 1, registers="\n".join(registers))


def execute(
    opcode: str, operands: list[np.ndarray], result: str, *, guard: str = "", machine: Machine | None = None
) -> np.ndarray:
    """Run one instruction on arrays of equal length, one element a thread, up to 1024."""
    text = arrange(opcode, operands, result, guard=guard)
    tensors = [torch.from_numpy(np.ascontiguousarray(x).view(np.uint8).copy()) for x in operands]
    answer = torch.zeros(len(operands[0]) * np.dtype(result).itemsize, dtype=torch.uint8)
    launch_ptx(text, "k", (1,), (len(operands[0]),), 0, [*tensors, answer], machine=machine or Machine())
    return answer.numpy().view(result)


def run(
    body, threads=64, *, machine=None, registers=REGISTERS, out=None, grid=(1,), target=90, replicated=False
):
    """Run a body with one pointer parameter; return the memory there, by default an int32 for each thread."""
    result = torch.zeros(threads * int(np.prod(grid)), dtype=torch.int32) if out is None else out
    launch_ptx(
        kernel(body, 1, registers=registers, target=target),
        "k",
        grid,
        (threads,),
        0,
        [result],
        machine=machine or Machine(),
        replicated=replicated,
    )
    return result


# Formats as (precision in bits, smallest exponent of a normal number, largest exponent).
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}


def rounded(value: Fraction, kind: str, mode: str = "rn") -> float:
    """The number of a format that IEEE 754 rounds a rational to, as a Python float."""
    precision, smallest, largest = FORMATS[kind]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    if Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, smallest) - precision + 1)
    steps, rest = divmod(magnitude, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and steps % 2 == 1),
        "rz": False,
        "rm": rest > 0 and value < 0,
        "rp": rest > 0 and value > 0,
    }[mode]
    result = (steps + up) * unit
    ceiling = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** largest
    if result > ceiling:
        towards_infinity = mode == "rn" or (mode == "rp" and value > 0) or (mode == "rm" and value < 0)
        result_float = float("inf") if towards_infinity else float(ceiling)
    else:
        result_float = result.numerator / result.denominator
    return -result_float if value < 0 else result_float


def decode(values: np.ndarray, kind: str) -> np.ndarray:
    """Float64 values of an array of a format; bfloat16 is given as bit patterns."""
    if kind == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN is widened to a quiet one
        return values.astype(np.float64)


def samples(kind: str, count: int, seed: int) -> np.ndarray:
    """Floats of a format over all exponents, with zeros, subnormals and near-ties."""
    generator = np.random.default_rng(seed)
    width = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}[kind]
    dtype = {"f16": "f2", "bf16": "u2", "f32": "f4", "f64": "f8"}[kind]
    bits = generator.integers(0, 2**width, count, dtype=np.uint64)
    special = np.array([0, 1, 2 ** (width - 1), 2 ** (width - 1) + 1], dtype=np.uint64)
    bits[: len(special)] = special
    values = bits.astype(f"u{width // 8}").view(dtype)
    finite = np.isfinite(decode(values, kind))
    return np.where(finite, values, values.dtype.type(0))


def close_exponents(kind: str, count: int, seed: int) -> np.ndarray:
    """Floats of magnitude between 1/8 and 8, where sums cancel and ties are common."""
    generator = np.random.default_rng(seed)
    precision = FORMATS[kind][0]
    whole = generator.integers(2 ** (precision - 1), 2**precision, count)
    values = np.ldexp(whole.astype(np.float64), generator.integers(-3, 3, count) - precision + 1)
    values *= generator.choice([-1.0, 1.0], count)
    if kind == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype({"f16": "f2", "f32": "f4", "f64": "f8"}[kind])

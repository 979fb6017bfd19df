"""What compilers leave open: contraction as ptxas does it, approximate instructions, and their counts."""

# ruff: noqa: E501 - lines of PTX are kept whole

from __future__ import annotations

import re
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from ptx_snippets import close_exponents, execute, rounded

from verifier.machine import Adversarial, Correct, Table
from verifier.machine.arithmetic.approximation import allowed_error
from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.instruction_counts import count_instructions
from verifier.machine.ptx.parser import parse

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .f32 %f<24>; .reg .b64 %rd<4>; .reg .pred %p<4>; .reg .b32 %r<9>;
ld.param.u64 %rd1, [p];
ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+8]; ld.global.f32 %f4, [%rd1+12];
"""
STORE = " st.global.f32 [%rd1+16], %f9; st.global.f32 [%rd1+20], %f10; ret; }"
CASES = {
    "one sum": "mul.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3;",
    "two sums": "mul.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; add.f32 %f10,%f5,%f4;",
    "also stored": "mul.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; st.global.f32 [%rd1+24],%f5;",
    "also multiplied": "mul.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; mul.f32 %f10,%f5,%f4;",
    "rounded product": "mul.rn.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3;",
    "rounded sum": "mul.f32 %f5,%f1,%f2; add.rn.f32 %f9,%f5,%f3;",
    "difference": "mul.f32 %f5,%f1,%f2; sub.f32 %f9,%f5,%f3; mul.f32 %f6,%f1,%f3; sub.f32 %f10,%f4,%f6;",
    "two products": "mul.f32 %f5,%f1,%f2; mul.f32 %f6,%f3,%f4; add.f32 %f9,%f6,%f5;",
    "two products, one shared": "mul.f32 %f5,%f1,%f2; mul.f32 %f6,%f3,%f4; add.f32 %f9,%f5,%f6; add.f32 %f10,%f5,%f1;",
    "two products, other shared": "mul.f32 %f5,%f1,%f2; mul.f32 %f6,%f3,%f4; add.f32 %f9,%f5,%f6; add.f32 %f10,%f6,%f1;",
    "mixed flushing": "mul.ftz.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3;",
    "same flushing": "mul.ftz.f32 %f5,%f1,%f2; add.ftz.f32 %f9,%f5,%f3;",
    "other block": "mul.f32 %f5,%f1,%f2; setp.gt.f32 %p1,%f4,%f3; @%p1 bra L1; st.global.f32 [%rd1+24],%f3; L1: add.f32 %f9,%f5,%f3;",
    "across a barrier": "mul.f32 %f5,%f1,%f2; bar.sync 0; add.f32 %f9,%f5,%f3;",
    "negated": "mul.f32 %f5,%f1,%f2; neg.f32 %f6,%f5; add.f32 %f9,%f6,%f3;",
    "selected": "mul.f32 %f5,%f1,%f2; setp.gt.f32 %p1,%f4,%f3; selp.f32 %f6,%f5,%f4,%p1; add.f32 %f9,%f6,%f3;",
    "doubled": "mul.f32 %f5,%f1,%f1; add.f32 %f9,%f5,%f5;",
    "addend of a fused one": "mul.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; fma.rn.f32 %f10,%f3,%f4,%f5;",
    "guarded sum": "mul.f32 %f5,%f1,%f2; mov.f32 %f9,%f4; setp.gt.f32 %p1,%f4,%f3; @%p1 add.f32 %f9,%f5,%f3;",
    "saturated sum": "mul.f32 %f5,%f1,%f2; add.sat.f32 %f9,%f5,%f3;",
    "copied": "mul.f32 %f5,%f1,%f2; mov.f32 %f6,%f5; add.f32 %f9,%f6,%f3;",
}
DIVISIONS = {
    "quotient used once": "div.full.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; mov.f32 %f10, %f4;",
    "quotient also stored": "div.full.f32 %f5,%f1,%f2; add.f32 %f9,%f5,%f3; mov.f32 %f10, %f5;",
}


def tools():
    triton = pytest.importorskip(
        "triton", reason="ptxas and nvdisasm come with Triton, which is not installed"
    )
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    if not (folder / "ptxas").exists():
        pytest.skip("this Triton carries no ptxas")
    return folder


def whole(body):
    """Return a module whose kernel k does this."""
    if "%f10" not in body:
        body += " mov.f32 %f10, %f4;"
    return HEAD + body + STORE


@pytest.fixture(scope="module")
def counts_of_ptxas(tmp_path_factory):
    """Fused operations and sums in the machine code of each case: one call of ptxas for all."""
    bodies = {**CASES, **DIVISIONS}
    header = HEAD.split(".visible", 1)[0]
    kernels = [
        ".visible" + whole(body).split(".visible", 1)[1].replace(" k(", f" k{number}(", 1)
        for number, body in enumerate(bodies.values())
    ]
    folder, where = tools(), tmp_path_factory.mktemp("ptxas")
    source, cubin = where / "k.ptx", where / "k.cubin"
    source.write_text("\n".join([header, *kernels]))
    subprocess.run([folder / "ptxas", "-arch=sm_90", source, "-o", cubin], check=True, capture_output=True)
    sass = subprocess.run(
        [folder / "nvdisasm", "-c", cubin], check=True, capture_output=True, text=True
    ).stdout
    code = dict(re.findall(r"\n\.text\.(k\d+):\n(.*?)(?=\n\.text\.|\Z)", sass, re.DOTALL))
    return {
        name: tuple(len(re.findall(rf"\b{word}\b", code[f"k{number}"])) for word in ("FFMA", "FADD"))
        for number, name in enumerate(bodies)
    }


def counts_of_the_pass(text):
    module = parse(text)
    names = [
        i.parts[0]
        for i in build(module, module.functions["k"], contraction=True).instructions()
        if i.parts[-1] == "f32"
    ]
    return sum(n in ("fma", "divfma") for n in names), sum(n in ("add", "sub") for n in names)


@pytest.mark.parametrize("name", [*CASES, *DIVISIONS])
def test_contraction_fuses_what_ptxas_fuses(name, counts_of_ptxas):
    assert counts_of_the_pass(whole((CASES | DIVISIONS)[name])) == counts_of_ptxas[name]
    if name in DIVISIONS:
        assert counts_of_ptxas[name] == ((1, 0) if name == "quotient used once" else (0, 1))


NAMES = ["rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"]


def exact(name, x):
    import mpmath

    functions = {
        "rcp": lambda v: 1 / v, "sqrt": mpmath.sqrt, "rsqrt": lambda v: 1 / mpmath.sqrt(v),
        "ex2": lambda v: mpmath.mpf(2) ** v, "lg2": lambda v: mpmath.log(v) / mpmath.log(2),
        "sin": mpmath.sin, "cos": mpmath.cos, "tanh": mpmath.tanh,
    }  # fmt: skip
    with mpmath.workprec(300):
        sign, mantissa, exponent, _ = functions[name](mpmath.mpf(float(x)))._mpf_
    return Fraction(int(mantissa)) * Fraction(2) ** exponent * (-1 if sign else 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_default_model_rounds_correctly(name):
    x = close_exponents("f32", 400, 3)
    x = np.abs(x) if name in ("sqrt", "rsqrt", "lg2") else x
    if name == "ex2":
        x[:8] = [-126.5, -130.25, -149, -148.5, -126, 3, -140.75, 0.0]
    with np.errstate(all="ignore"):
        got = Correct().evaluate(name, x)
    assert got.tolist() == [rounded(exact(name, v), "f32") for v in x]


@pytest.mark.parametrize("name", [*NAMES, "div"])
@pytest.mark.parametrize("extreme", [False, True])
def test_the_adversary_stays_inside_the_documented_error_and_is_a_function(name, extreme):
    x = np.abs(close_exponents("f32", 300, 5))
    operands = (x, np.abs(close_exponents("f32", 300, 6))) if name == "div" else (x,)
    model = Adversarial(seed=1, extreme=extreme)
    got = model.evaluate(name, *operands)
    values = [
        exact(name, v) if name != "div" else Fraction(float(v)) / Fraction(float(w))
        for v, w in zip(x, operands[-1], strict=True)
    ]
    limits = allowed_error(name, np.array([float(v) for v in values]))
    errors = [abs(Fraction(float(g)) - v) for g, v in zip(got, values, strict=True)]
    # The limit itself is computed in float64.
    assert all(
        e <= Fraction(float(m)) * (1 + Fraction(1, 2**45)) for e, m in zip(errors, limits, strict=True)
    )
    assert (got == model.evaluate(name, *operands)).all()
    assert (got != Correct().evaluate(name, *operands)).any()
    assert (got != Adversarial(seed=2).evaluate(name, *operands)).any()


def test_the_two_binades_of_a_root_have_tables_of_their_own():
    results = np.sqrt(np.arange(0x3F800000, 0x40800000, dtype="u4").view("f4"))
    results.view("i4")[(1 << 23) + 77] += 1
    x = np.array([1 + 77 * 2.0**-23, 2 + 77 * 2.0**-22, 4 + 77 * 2.0**-21, 8 + 77 * 2.0**-20], dtype="f4")
    moved = Table(results={"sqrt": results}).evaluate("sqrt", x).view("i4") - np.sqrt(x).view("i4")
    assert moved.tolist() == [0, 1, 0, 1]


def test_division_is_the_product_with_the_tabulated_reciprocal():
    x = np.arange(0x3F800000, 0x40000000, dtype="u4").view("f4")
    results = np.float32(1) / x
    results.view("i4")[123456] -= 1
    divisor = np.array([1 + 123456 * 2.0**-23], dtype="f4")
    quotient = Table(results={"rcp": results}).evaluate("div", np.array([3.0], dtype="f4"), divisor)
    assert quotient == np.float32(3) * results[123456]
    assert quotient != Correct().evaluate("div", np.array([3.0], dtype="f4"), divisor)


def test_quick_division_by_a_huge_number_is_zero():
    a, b = np.array([2.0**100, -1.0, 3.0], dtype="f4"), np.array([2.0**127, 2.0**127, 4.0], dtype="f4")
    assert execute("div.approx.f32", [a, b], "f4").tolist() == [0.0, 0.0, 0.75]


def test_counts_say_what_a_kernel_leaves_open():
    text = HEAD + (
        "mul.f32 %f5,%f1,%f2; add.f32 %f6,%f5,%f3; fma.rn.ftz.f32 %f7,%f1,%f2,%f3; div.full.f32 %f8,%f6,%f2;"
        "sqrt.approx.ftz.f32 %f9,%f8; ex2.approx.f32 %f10,%f8; bar.sync 0; red.global.add.f32 [%rd1], %f10;"
    ) + STORE  # fmt: skip
    found = count_instructions(text)
    assert found.approximate == {"div": 1, "sqrt": 1, "ex2": 1}
    assert (found.flushing, found.fused, found.contractible) == (2, 1, 1)
    assert (found.float_atomics, found.half_atomics, found.half_sums, found.barriers) == (1, 0, 0, 1)
    assert not found.correctly_rounded()


def test_division_with_full_range_scales_huge_and_subnormal_divisors():
    a = np.array([2.0**100, 2.0**-140, 1.0], dtype="f4")
    b = np.array([2.0**127, 2.0**-130, 3.0], dtype="f4")
    assert execute("div.full.f32", [a, b], "f4").tolist() == [
        2.0**-27,
        2.0**-10,
        np.float32(1) / np.float32(3),
    ]
    assert Table(results={}).evaluate("div", a, b).tolist()[:2] == [2.0**-27, 2.0**-10]

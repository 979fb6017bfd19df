"""Contraction of whole kernels: as many fused operations as the machine code of ptxas has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="ptxas and nvdisasm come with Triton, which is not installed")

import machine_kernels as kernels
import triton

from verifier import machine
from verifier.machine.device.triton_driver import Launcher
from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.carried_products import carried
from verifier.machine.ptx.crossing_products import crossing
from verifier.machine.ptx.parser import parse

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# No inner loops, which ptxas would unroll. Divisions become several FMUL, so those are not counted.
STRAIGHT = ("layer_norm_backward", "column_sums", "softmax_rows")


def compiled(architecture, monkeypatch):
    """PTX of every kernel, by name."""
    found, execute = {}, Launcher.execute

    def record(self, kernel, *arguments):
        found[kernel] = self.ptx
        execute(self, kernel, *arguments)

    monkeypatch.setattr(Launcher, "execute", record)
    with machine.session(architecture=architecture):
        x, w, b, dy = kernels.inputs(4, 300, torch.float16)
        _, mean, rstd = kernels.forward(x, w, b)
        kernels.backward(dy, x, w, mean, rstd, groups=2)
        kernels.softmax(x)
    return found


def machine_code(text, where):
    """What ptxas makes of the text; the newer assembler where the older does not know its version."""
    source, cubin = where / "k.ptx", where / "k.cubin"
    source.write_text(text)
    target = re.search(r"\.target\s+(sm_\w+)", text)[1]
    for name in ("ptxas", "ptxas-blackwell"):
        if (TOOLS / name).exists():
            command = [TOOLS / name, f"-arch={target}", source, "-o", cubin]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                command = [TOOLS / "nvdisasm", "-c", cubin]
                return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pytest.skip("this Triton carries no assembler for the PTX that it emits")
    return ""


def counts_of_the_pass(text, kernel, *, contraction):
    module = parse(text)
    program = build(module, module.functions[kernel], contraction=contraction)
    names = [i.parts[0] for i in program.instructions() if i.parts[-1] == "f32"]
    return sum(n in ("fma", "divfma") for n in names), sum(n in ("add", "sub") for n in names)


@pytest.mark.parametrize("architecture", [80, 90])
def test_our_kernels_are_contracted_as_ptxas_contracts_them(architecture, monkeypatch, tmp_path):
    texts = compiled(architecture, monkeypatch)
    for kernel in STRAIGHT:
        code = machine_code(texts[kernel], tmp_path)
        fused, sums = (len(re.findall(rf"\b{name}\b", code)) for name in ("FFMA", "FADD"))
        ours = counts_of_the_pass(texts[kernel], kernel, contraction=True)
        assert fused == ours[0], kernel
        # ptxas drops sums that it finds to be computed twice, and adds none.
        assert 0 < sums <= ours[1], kernel


def test_what_is_contracted_in_the_forward_changes_the_counts(monkeypatch):
    texts = compiled(90, monkeypatch)
    plain, fused = (
        counts_of_the_pass(texts["layer_norm_forward"], "layer_norm_forward", contraction=c)
        for c in (False, True)
    )
    assert fused[0] > plain[0]
    assert fused[1] < plain[1]


LOOP = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p, .param .u64 q, .param .u32 n)
{
.reg .b64 %rd<9>; .reg .f32 %f<20>; .reg .pred %p<3>; .reg .b32 %r<9>;
ld.param.u64 %rd1, [p];
ld.param.u64 %rd2, [q];
ld.param.u32 %r2, [n];
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.b32 %r1, 0;
BEFORE
$L1:
EARLY
ld.global.f32 %f3, [%rd1];
ld.global.f32 %f4, [%rd1+4];
LATE
add.s64 %rd1, %rd1, 8;
add.s32 %r1, %r1, 1;
setp.lt.s32 %p1, %r1, %r2;
@%p1 bra $L1;
add.f32 %f5, %f1, %f2;
st.global.f32 [%rd2], %f5;
ret;
}
"""
SUM = "add.f32 %f1, %f1, %f2;"
SQUARE = "ld.global.f32 %f6, [%rd1];\nmul.f32 %f2, %f6, %f6;"


@pytest.mark.parametrize(
    ("places", "fuses"),
    [
        ({"EARLY": SUM, "LATE": "mul.f32 %f2, %f3, %f4;"}, True),
        ({"EARLY": SUM, "LATE": "mul.f32 %f6, %f3, %f4;\nneg.f32 %f2, %f6;"}, True),
        ({"EARLY": SUM, "LATE": "mul.rn.f32 %f2, %f3, %f4;"}, False),
        (
            {
                "EARLY": "ld.global.f32 %f6, [%rd1+8];\nmul.f32 %f2, %f6, %f6;",
                "LATE": "add.f32 %f1, %f1, %f3;",
            },
            False,
        ),
        ({"BEFORE": SQUARE, "EARLY": SUM}, False),
    ],
    ids=["next_turn", "its_negative", "rounded", "after_the_loop", "before_the_loop"],
)
def test_ptxas_fuses_a_product_into_a_sum_of_the_next_turn_of_a_loop(places, fuses, tmp_path):
    text = LOOP
    for place in ("BEFORE", "EARLY", "LATE"):
        text = text.replace(place, places.get(place, ""))
    module = parse(text)
    program = build(module, module.functions["k"])
    assert [one.parts[0] for one in carried(program)] == ["mul"] * fuses
    assert counts_of_the_pass(text, "k", contraction=True)[0] == 0
    assert ("FFMA" in machine_code(text, tmp_path)) == fuses


ACROSS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n, .param .f32 s)
{
.reg .b64 %rd<9>; .reg .f32 %f<20>; .reg .pred %p<3>; .reg .b32 %r<9>;
ld.param.u64 %rd1, [p];
ld.param.u32 %r1, [n];
ld.param.f32 %f1, [s];
mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd1, %rd1, %rd2;
ld.global.f32 %f2, [%rd1];
ld.global.f32 %f3, [%rd1+8];
setp.ge.u32 %p1, %r2, %r1;
BODY
st.global.f32 [%rd1], %f9;
ret;
}
"""
TURNS = """
mov.f32 %f9, 0f00000000; mov.u32 %r4, 0;
$L1: ld.global.f32 %f7, [%rd1]; EACH
add.s64 %rd1, %rd1, 4; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r1; @%p2 bra $L1;
"""
LESS = "sub.f32 %f8, %f7, %f4; fma.rn.f32 %f9, %f8, %f8, %f9;"
IN_TURNS = TURNS.replace("EACH", LESS)
TWICE = IN_TURNS + IN_TURNS.replace("$L1", "$L2").replace("mov.f32 %f9, 0f00000000;", "")
SKIPPED = "@%p1 bra $L3; st.global.f32 [%rd1+4096], %f3; bar.sync 0; $L3: sub.f32 %f9, %f4, %f2;"
CONSTANT, SCALE, DATA = (f"mul.f32 %f4, %f2, {factor};" for factor in ("0f3B000000", "%f1", "%f3"))


@pytest.mark.parametrize(
    ("body", "fuses"),
    [
        (f"{CONSTANT} {SKIPPED}", True),
        (f"{SCALE} {SKIPPED}", True),
        (f"{DATA} {SKIPPED}", False),
        (f"{CONSTANT} {IN_TURNS}", True),
        (f"{SCALE} {TWICE}", True),
        (f"{DATA} {IN_TURNS}", False),
        (f"neg.f32 %f5, %f1; mul.f32 %f6, %f2, %f5; neg.f32 %f4, %f6; {IN_TURNS}", True),
        (f"add.f32 %f5, %f1, %f1; mul.f32 %f4, %f2, %f5; {IN_TURNS}", False),
        (f"{SCALE} st.global.f32 [%rd1+64], %f4; {IN_TURNS}", False),
        (f"div.full.f32 %f4, %f2, 0f40400000; {IN_TURNS}", True),
        (
            TURNS.replace("EACH", "mul.f32 %f4, %f7, 0f3F8CCCCD; st.global.f32 [%rd1+64], %f7;")
            + "sub.f32 %f9, %f4, %f2;",
            False,
        ),
        (f"@%p1 mov.f32 %f2, %f3; {SCALE} {IN_TURNS}", True),
        (f"{SCALE} mov.f32 %f2, %f3; {IN_TURNS} add.f32 %f9, %f9, %f2;", True),
        ("@%p1 mov.f32 %f2, %f3; mul.f32 %f4, %f2, %f2; sub.f32 %f9, %f4, %f3;", True),
        ("mul.f32 %f4, %f2, %f3; sub.f32 %f4, %f4, %f3; mov.f32 %f9, %f4;", True),
        ("mul.f32 %f4, %f2, %f3; @%p1 mov.f32 %f4, %f2; sub.f32 %f4, %f4, %f3; mov.f32 %f9, %f4;", False),
        ("mul.f32 %f4, %f2, %f2; abs.f32 %f5, %f4; add.f32 %f9, %f5, %f3;", True),
        ("mul.f32 %f4, %f2, %f2; neg.f32 %f6, %f4; abs.f32 %f5, %f6; sub.f32 %f9, %f5, %f3;", True),
        ("mul.f32 %f4, %f2, %f3; abs.f32 %f5, %f4; add.f32 %f9, %f5, %f3;", False),
        ("mul.f32 %f4, %f2, %f2; abs.f32 %f5, %f4; sub.f32 %f9, %f3, %f5;", False),
        ("mul.f32 %f4, %f2, %f2; abs.f32 %f5, %f4; neg.f32 %f6, %f5; add.f32 %f9, %f6, %f3;", False),
    ],
    ids=[
        *("constant_skipped", "argument_skipped", "data_skipped", "constant_in_loop", "argument_in_loops"),
        *("data_in_loop", "negated", "computed", "stored", "divided", "after_its_loop"),
        *("operand_written_before", "operand_written_after", "operand_in_block", "own_register", "guarded"),
        *("magnitude", "magnitude_of_negative", "no_square", "subtracted_magnitude", "negated_magnitude"),
    ],
)
def test_products_are_fused_across_blocks_as_ptxas_fuses_them(body, fuses, tmp_path):
    """Only a product with a literal or an argument is taken by sums of other blocks."""
    text = ACROSS.replace("BODY", body)
    module = parse(text)
    program = build(module, module.functions["k"], contraction=True)
    names = {one.opcode for one in program.instructions()}
    assert not names & {"mul.f32", "div.full.f32"} if fuses else names & {"mul.f32", "div.full.f32"}
    assert ("FMUL" not in machine_code(text, tmp_path)) == fuses


REST = "sub.f32 %f9, %f4, %f3;"
TAIL = """
mov.f32 %f4, %f3; mov.u32 %r4, 0;
$L1: sub.f32 %f9, %f4, %f9; ld.global.f32 %f2, [%rd1]; BETWEEN mul.f32 %f4, %f2, %f3;
add.s64 %rd1, %rd1, 4; add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, %r1; @%p2 bra $L1;
"""
FOUR = TURNS.replace("EACH", LESS).replace("%r4, %r1;", "%r4, 4;")
ONE = f"mov.u32 %r4, 0; $L1: {DATA} add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 1; @%p2 bra $L1; {REST}"
LEFT = f"""
mov.u32 %r4, 0;
$L1: ld.global.f32 %f2, [%rd1]; {DATA} setp.ge.u32 %p2, %r4, %r1; @%p2 bra $L2; sub.f32 %f9, %f4, %f9;
add.s64 %rd1, %rd1, 4; add.u32 %r4, %r4, 1; bra $L1; $L2:
"""


@pytest.mark.parametrize(
    ("body", "contracted", "crosses", "fuses"),
    [
        (f"{DATA} $L1: {REST}", True, False, True),
        (f"{DATA} bra $L1; $L1: {REST}", True, False, True),
        (f"{DATA} @%p1 bra $L1; $L1: {REST}", True, False, True),
        (f"{DATA} mul.f32 %f10, %f4, %f4; {REST}", True, False, True),
        (f"{DATA} bra $L2; $L1: st.global.f32 [%rd1], %f2; ret; $L2: {REST}", False, True, True),
        (f"{DATA} setp.eq.u32 %p2, 0, 0; @%p2 bra $L1; mov.f32 %f3, %f2; $L1: {REST}", False, True, True),
        (f"{DATA} {FOUR}", False, True, True),
        (ONE, False, True, True),
        (LEFT, False, True, True),
        (TAIL.replace("BETWEEN", "@%p1 bra $L2; mov.f32 %f2, %f3; $L2:"), False, True, True),
        (TAIL.replace("BETWEEN", "bar.sync 0;"), False, True, True),
        (
            TAIL.replace("BETWEEN", "@%p1 bra $L2;").replace("%f2, %f3;", "%f2, %f3; $L2:"),
            False,
            False,
            False,
        ),
        (f"{DATA} @%p1 bra $L1; {REST} $L1:", False, False, False),
        (f"{DATA} @%p1 bra $L1; mov.f32 %f3, %f2; $L1: {REST}", False, False, False),
        (f"{DATA} @%p1 ret; {REST}", False, False, False),
    ],
    ids=[
        *("label", "jump", "guarded_jump", "unused", "only_way", "decided", "four_turns", "one_turn"),
        *("left_between", "tail_with_a_branch", "tail_with_a_barrier", "tail_in_a_branch"),
        *("sum_in_a_branch", "paths_meet", "return"),
    ],
)
def test_products_that_ptxas_fuses_where_it_makes_one_block_of_several_are_told(
    body, contracted, crosses, fuses, tmp_path
):
    text = ACROSS.replace("BODY", body)
    module = parse(text)
    program = build(module, module.functions["k"], contraction=True)
    fused = {one.opcode for one in program.instructions()} & {"fma.rn.f32"}
    assert bool(fused) == (contracted or body.endswith(FOUR))
    assert bool(list(crossing(program))) == crosses
    plain = text.replace("mul.f32", "mul.rn.f32")  # which is fused nowhere
    assert (_fused(text, tmp_path) > _fused(plain, tmp_path)) == fuses


def _fused(text, where):
    return len(re.findall(r"\bFFMA\b", machine_code(text, where)))


@pytest.mark.parametrize(
    "between",
    [
        "membar.cta;",
        "div.rn.f32 %f10, %f2, %f3; st.global.f32 [%rd1+64], %f10;",
        "@%p1 st.global.f32 [%rd1+64], %f2;",
    ],
    ids=["fence", "division", "guarded_store"],
)
def test_ptxas_fuses_no_product_past_what_ends_a_block_of_its_own(between, tmp_path):
    """`contract` does, so that such a sum may be fused in one place and rounded in another."""
    text = ACROSS.replace("BODY", f"{DATA} {between} {REST}")
    assert counts_of_the_pass(text, "k", contraction=True)[0] == 1
    assert _fused(text, tmp_path) == _fused(text.replace("mul.f32", "mul.rn.f32"), tmp_path)

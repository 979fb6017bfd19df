"""What the bounds take from the compiled code, and where it contradicts a declaration."""

import numpy as np
import pytest

from verifier import subject as declaring
from verifier.arithmetic.formats import ieee
from verifier.execution.backends import _read_code, cuda
from verifier.execution.code_against_claim import contradictions, refined, remarks, summary
from verifier.machine.arithmetic.approximation import Adversarial
from verifier.ops import Setting
from verifier.records.compiled_code import joined
from verifier.records.subject import Trees

HEAD = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
.reg .f32 %f<24>; .reg .b64 %rd<4>; .reg .pred %p<4>; .reg .b32 %r<9>;
ld.param.u64 %rd1, [p];
ld.global.f32 %f1, [%rd1]; ld.global.f32 %f2, [%rd1+4]; ld.global.f32 %f3, [%rd1+8];
"""
STORE = " st.global.f32 [%rd1+16], %f9; st.global.f32 [%rd1+20], %f10; ret; }"


def declared(**changes):
    return declaring(
        **{"op": "layer_norm", "language": "cuda", "variance": "two_pass", "dtypes": ("float16",), **changes}
    )(lambda input, normalized_shape, weight, bias, eps: input)  # noqa: A006 - PyTorch's names


HALF_SUM = ".reg .b16 %h<4>; ld.global.b16 %h1, [%rd1]; add.f16 %h2, %h1, %h1; st.global.b16 [%rd1], %h2;"
LANE_SUM = (
    ".reg .b16 %h<4>; .reg .b32 %s<3>; ld.global.b16 %h0, [%rd1+2]; ld.global.b16 %h1, [%rd1];"
    "mov.b32 %s1, {%h1, %h1}; shfl.sync.bfly.b32 %s2, %s1, 1, 31, -1; mov.b32 {%h2, %h3}, %s2;"
    "add.f16 %h3, %h1, %h2; st.global.b16 [%rd1], %h3;"
)
LANE_COPY = LANE_SUM.replace("add.f16 %h3, %h1, %h2", "add.f16 %h3, %h0, %h2")
FLUSHED, FUSED = "add.ftz.f32 %f9, %f1, %f2;", "fma.rn.f32 %f9, %f1, %f2, %f3;"
OPEN = "mul.f32 %f9, %f1, %f2; sub.f32 %f10, %f3, %f1;"
ATOMIC = "red.global.add.f32 [%rd1], %f1;"
PLAIN = "add.rn.f32 %f9, %f1, %f2;"


def read(body, host=()):
    return _read_code.of_codes([(HEAD + body + STORE, "k")], host)


def test_a_sum_over_threads_in_half_contradicts_a_declared_float32():
    (text,) = contradictions(declared(accumulates="float32"), "float16", read(LANE_SUM))
    assert "half precision" in text
    assert "float32" in text
    assert contradictions(declared(accumulates="float16"), "float16", read(LANE_SUM)) == ()


@pytest.mark.parametrize("body", [HALF_SUM, LANE_COPY, FUSED, ATOMIC, PLAIN])
def test_what_may_be_no_sum_over_threads_is_no_contradiction(body):
    assert contradictions(declared(accumulates="float32"), "float16", read(body)) == ()


@pytest.mark.parametrize(
    ("body", "changes", "word"),
    [
        (HALF_SUM, {"accumulates": "float32"}, "half precision"),
        (FUSED, {"mean_contraction": "none", "divide_by_n": "reciprocal"}, "uncontracted"),
        (ATOMIC, {"guarantees": {"determinism"}}, "atomics"),
    ],
)
def test_code_that_may_contradict_its_declaration_is_told(body, changes, word):
    (text,) = remarks(declared(**changes), "float16", read(body))
    assert word in text
    assert remarks(declared(**changes), "float16", read(PLAIN)) == ()


DOCUMENTED = ieee(
    "float32", division=5.0, reciprocal=3.0, square_root=3.0, reciprocal_square_root=8.0, exponential=6.0
)
KNOWN = {"divide_by_n": "division", "formula": "canonical"}


def setting(arithmetic=DOCUMENTED):
    return Setting(arithmetic=arithmetic, trees=Trees())


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("div.rn.f32 %f9, %f1, %f2; sqrt.rn.f32 %f10, %f9;", (1, 1, 1, 2)),
        ("div.rn.f32 %f9, %f1, %f2; sqrt.approx.ftz.f32 %f10, %f9;", (1, 1, 3, 4)),
        ("div.full.f32 %f9, %f1, %f2; sqrt.rn.f32 %f10, %f9;", (5, 3, 1, 6)),
        ("div.full.f32 %f9, %f1, %f2; sqrt.approx.f32 %f10, %f9;", (5, 3, 3, 8)),
        ("rcp.approx.f32 %f9, %f1; sqrt.rn.f32 %f10, %f9;", (5, 3, 1, 6)),
        ("div.rz.f32 %f9, %f1, %f2; sqrt.rn.f32 %f10, %f9;", (5, 3, 1, 6)),
        ("div.rn.f32 %f9, %f1, %f2; rsqrt.approx.f32 %f10, %f9;", (1, 1, 3, 5)),
        ("div.rn.f32 %f9, %f1, %f2; rsqrt.approx.f32 %f10, %f9; sqrt.rn.f32 %f11, %f9;", (1, 1, 1, 5)),
        (PLAIN, (1, 1, 3, 8)),
    ],
)
def test_the_bounds_take_the_errors_of_the_instructions_at_hand(body, wanted):
    _, seen = refined(declared(**KNOWN), setting(), read(body))
    found = seen.arithmetic
    assert (found.division, found.reciprocal, found.square_root, found.reciprocal_square_root) == wanted
    assert found.exponential == DOCUMENTED.exponential


def test_an_undeclared_quotient_may_be_a_product_with_a_reciprocal():
    _, seen = refined(declared(), setting(), read("div.rn.f32 %f9, %f1, %f2;"))
    assert (seen.arithmetic.division, seen.arithmetic.reciprocal) == (2, 1)


def test_no_bound_gets_tighter_where_torch_computes_on_the_host():
    code = read("div.rn.f32 %f9, %f1, %f2; sqrt.rn.f32 %f10, %f9;", host=["var_mean"])
    subject, seen = refined(declared(), setting(), code)
    assert seen.arithmetic == DOCUMENTED
    assert subject.claim.mean_contraction == "mixed"
    rough = read("div.full.f32 %f9, %f1, %f2; sqrt.rn.f32 %f10, %f9;", host=["mul"])
    _, seen = refined(declared(), setting(), rough)
    assert seen.arithmetic.reciprocal_square_root == 8


def test_the_documented_reciprocal_root_holds_for_every_way_to_make_it():
    x = np.linspace(1.0, 4.0, 200_001).astype(np.float32)
    exact = 1.0 / np.sqrt(x.astype(np.float64))
    device, claimed = Adversarial(seed=3, extreme=True), cuda.documented("float32")["reciprocal_square_root"]
    made = device.evaluate("div", np.ones_like(x), device.evaluate("sqrt", x)).astype(np.float64)
    worst = float(np.max(np.abs(made - exact) / exact)) * 2.0**24
    assert 5.0 < worst <= claimed


@pytest.mark.parametrize(
    ("body", "flushes"), [(FLUSHED, True), ("sqrt.approx.ftz.f32 %f9, %f1;", False), (PLAIN, False)]
)
def test_subnormals_are_lost_where_ordinary_operations_flush_them(body, flushes):
    _, seen = refined(declared(), setting(), read(body))
    assert seen.arithmetic.flush_to_zero == flushes


@pytest.mark.parametrize(
    ("body", "wanted"),
    [(PLAIN, "none"), ("mul.rn.f32 %f9, %f1, %f2;" + PLAIN, "none"), (FUSED, "mixed"), (OPEN, "mixed")],
)
def test_contraction_is_taken_from_the_code_where_none_is_declared(body, wanted):
    subject, seen = refined(declared(), setting(), read(body))
    assert subject.claim.mean_contraction == wanted
    assert seen.arithmetic.contracts == (wanted == "mixed")
    subject, _ = refined(declared(mean_contraction="uniform"), setting(), read(body))
    assert subject.claim.mean_contraction == "uniform"


def test_errors_of_float32_instructions_say_nothing_of_sums_in_double():
    double = setting(ieee("float64", exponential=3.0))
    _, seen = refined(declared(), double, read("div.full.f32 %f9, %f1, %f2;" + FUSED))
    assert seen == double


def test_what_holds_of_several_kernels_is_what_holds_of_each():
    code = joined([read(FUSED), read("div.full.f32 %f9, %f1, %f2;"), read(FLUSHED)])
    assert code.fuses
    assert code.flushes
    assert code.approximate == {"div"}
    assert joined([]) is None


def test_the_report_says_what_the_code_leaves_open():
    code = read("div.full.f32 %f9, %f1, %f2;" + FLUSHED, host=["mul"])
    assert summary(code) == (
        "compiled code (1 kernel(s)): approximate instructions div; subnormals flushed yes; "
        "products fused into sums yes; half-precision additions no; float atomics no; "
        "torch computes on the host (mul), so no bound is tightened"
    )

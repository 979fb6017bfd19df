"""The second value beside every float: exact formulas, gradients, dependencies and bounds."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the arithmetics are tried on Triton kernels; Triton is not installed")

import machine_kernels as kernels

from verifier import machine
from verifier.machine.shadow.arithmetics import field, field_exponential

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
EPS = 1e-5


def specification(x, w, b, dy, eps=EPS):
    """Layer norm and its gradients modulo p: mean, rstd, y, dx, dw, db."""
    X, W, B, DY = (field.of_floats(t.double().numpy()) for t in (x, w, b, dy))
    share = np.uint64(field.of_fraction(Fraction(1, x.shape[1])))
    minus = lambda a, c: field.add(a, field.negate(c))  # noqa: E731

    def total(values, axis):
        values = np.moveaxis(values, axis, 0)
        result = values[0]
        for row in values[1:]:
            result = field.add(result, row)
        return result

    mean = field.multiply(total(X, 1), share)
    d = minus(X, mean[:, None])
    var = field.multiply(total(field.multiply(d, d), 1), share)
    rstd = field.inverse(field.root(field.add(var, field.of_floats(np.array(float(np.float32(eps)))))))
    xhat = field.multiply(d, rstd[:, None])
    y = field.add(field.multiply(xhat, W[None]), B[None])
    g = field.multiply(DY, W[None])
    c1, c2 = field.multiply(total(field.multiply(xhat, g), 1), share), field.multiply(total(g, 1), share)
    dx = field.multiply(minus(minus(g, field.multiply(xhat, c1[:, None])), c2[:, None]), rstd[:, None])
    return mean, rstd, y, dx, total(field.multiply(DY, xhat), 0), total(DY, 0)


def residues(dtype, rows=8, columns=300, bug=None, **settings):
    with machine.session(arithmetic="field", **settings) as session:
        x, w, b, dy = kernels.inputs(rows, columns, dtype)
        y, mean, rstd = kernels.forward(x, w, b)
        dx, dw, db = kernels.backward(dy, x, w, mean, rstd, bug=bug)
        got = [session.slots.get(t) for t in (mean, rstd, y, dx, dw, db)]
        assert session.slots.counters.desynchronised == 0
    return got, specification(x, w, b, dy)


@pytest.mark.parametrize(("dtype", "architecture"), list(zip(DTYPES, [80, 90, 100], strict=True)))
def test_a_correct_formula_equals_its_specification_in_every_element(dtype, architecture):
    got, wanted = residues(dtype, architecture=architecture)
    assert all((a == b).all() for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize(
    ("bug", "wrong"), [("c1 over N-1", {3}), ("c2 dropped", {3}), ("dw without rstd", {4}), (None, set())]
)
def test_a_wrong_formula_differs_in_every_element_that_it_touches(bug, wrong):
    got, wanted = residues(torch.float16, bug=bug)
    for number, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert (a != b).all() if number in wrong else (a == b).all(), number


def test_contraction_and_block_order_change_no_residue():
    got, wanted = residues(torch.float32, contraction="on", schedule_seed=3, approximation="adversarial")
    assert all((a == b).all() for a, b in zip(got, wanted, strict=True))


def test_field_laws_against_pythons_integers():
    generator = np.random.default_rng(0)
    a, b = (generator.integers(0, field.P, 500, dtype=np.uint64) for _ in range(2))
    a[:3], b[:3] = [0, field.P - 1, 1], [field.P - 1, field.P - 1, 0]
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    assert field.multiply(a, b).tolist() == [x * y % field.P for x, y in pairs]
    assert field.add(a, b).tolist() == [(x + y) % field.P for x, y in pairs]
    assert field.inverse(a[1:]).tolist() == [pow(x, field.P - 2, field.P) for x, _ in pairs[1:]]
    values = generator.normal(size=300) * 2.0 ** generator.integers(-140, 120, 300)
    assert field.of_floats(values).tolist() == [field.of_fraction(Fraction(float(v))) for v in values]
    roots = field.root(field.multiply(a, a))
    assert (field.multiply(roots, roots) == field.multiply(a, a)).all()


def test_declared_constants_stand_for_rationals():
    arithmetic = field.build(constants={float(np.float32(0.001)): Fraction(1, 1000)})
    assert int(arithmetic.lift(np.array([0.001], dtype="f4"), "f32")[0]) * 1000 % field.P == 1


@pytest.mark.parametrize("architecture", [80, 100])  # sm_100 has a maximum over the warp as one instruction
def test_softmax_equals_its_specification_in_the_field_with_exponentials(architecture):
    with machine.session(arithmetic="field_exponential", architecture=architecture) as session:
        x = kernels.inputs(4, 100, torch.float32)[0]
        y = kernels.softmax(x)
        got = session.slots.get(y)["value"]
    p, q = field_exponential.EXPONENTS, field_exponential.VALUES
    literal = Fraction(float(np.float32(np.log2(np.e))))
    for row, residue in zip(x.double().numpy(), got, strict=True):
        shifted = [(Fraction(float(v)) - Fraction(float(row.max()))) * literal for v in row]
        powers = [pow(2, s.numerator * pow(s.denominator, -1, p) % p, q) for s in shifted]
        inverse = pow(sum(powers), -1, q)
        assert residue.tolist() == [e * inverse % q for e in powers]


def test_lifted_values_are_float64_results():
    with machine.session(arithmetic="lifted") as session:
        x, w, b, dy = kernels.inputs(6, 200, torch.float16)
        y, mean, rstd = kernels.forward(x, w, b)
        got = session.slots.get(y)
    wanted = torch.nn.functional.layer_norm(
        x.double(), (200,), w.double(), b.double(), float(np.float32(EPS))
    )
    # Two float64 evaluations of 200-term sums: 2 * 210 roundings of numbers below 2^5.
    assert np.abs(got - wanted.numpy()).max() <= 420 * 2.0**-53 * 32
    assert (y.double() - wanted).abs().max() > 1e-4
    del mean, rstd, dy


def test_slots_follow_host_operations():
    with machine.session(arithmetic="field") as session:
        x, w, b, _ = kernels.inputs(4, 64, torch.float16)
        y, *_ = kernels.forward(x, w, b)
        summed = y.float().sum(0)
        mixed = (summed * 2 - w.float()).clone().t()
        wanted = field.of_floats(np.zeros(64))
        for row in session.slots.get(y):
            wanted = field.add(wanted, row)
        assert (session.slots.get(summed) == wanted).all()
        double = field.multiply(wanted, np.uint64(2))
        assert (session.slots.get(mixed) == field.add(double, field.negate(session.slots.get(w)))).all()
        y.zero_()
        assert (session.slots.get(y) == 0).all()
        torch.cumsum(summed, 0)
        assert session.slots.counters.uncovered == {"cumsum": 1}


def test_a_stale_slot_is_noticed_and_counted():
    with machine.session(arithmetic="field") as session:
        x, w, b, _ = kernels.inputs(2, 64, torch.float32)
        session.slots.set(x, np.full((2, 64), 12345, dtype=np.uint64))
        x.numpy()[0, 0] = 0.5  # behind torch's back
        assert session.slots.get(x)[0, 0] == field.of_floats(np.array(0.5))
        assert session.slots.counters.desynchronised == 1
        kernels.forward(x, w, b)
        assert session.slots.counters.desynchronised > 1


def test_taint_shows_what_each_output_depends_on():
    with machine.session(arithmetic="taint") as session:
        rows = 8
        x, w, b, dy = kernels.inputs(rows, 100, torch.float16)
        tags = np.uint64(1) << np.arange(rows, dtype=np.uint64)
        session.slots.set(x, np.broadcast_to(tags[:, None], (rows, 100)))
        y, mean, rstd = kernels.forward(x, w, b)
        assert (session.slots.get(y) == tags[:, None]).all()
        dx, dw, db = kernels.backward(dy, x, w, mean, rstd)
        assert (session.slots.get(dx) == tags[:, None]).all()
        assert (session.slots.get(dw) == (1 << rows) - 1).all()
        assert (session.slots.get(db) == 0).all()


@pytest.mark.parametrize(
    ("operations", "told"),
    [
        ("mul.lo.s32 %f3, %f2, 3;", ["mul.lo.s32"]),
        ("not.b32 %f4, %f2; not.b32 %f3, %f4;", ["not.b32"]),
        ("not.b32 %f4, %f2; mov.b32 %f0, %f4; lop3.b32 %f3, %f0, 0, 0, 0x0f;", ["lop3.b32"]),
        ("setp.lt.f32 %p, %f2, 0f00000000; selp.b32 %f4, 1, 2, %p; mul.lo.s32 %f3, %f4, 3;", []),
    ],
)
def test_an_operation_that_breaks_the_chain_is_reported(operations, told):
    from ptx_snippets import kernel

    from verifier.machine.ptx.basic_blocks import build
    from verifier.machine.ptx.parser import parse
    from verifier.machine.translate.slot_layouts import analyse

    body = f"ld.global.f32 %f1, [%base0]; add.f32 %f2, %f1, %f1; {operations} st.global.f32 [%base0], %f3;"
    module = parse(kernel(body, 1, registers=".reg .b32 %f<5>; .reg .pred %p;"))
    broken = analyse(build(module, module.functions["k"])).broken
    assert [i.opcode for i in broken] == told


@pytest.mark.parametrize("kind", ["f32", "u32", "s32"])
def test_slots_follow_the_extremum_of_a_warp(kind):
    """Of floats, and of their bits as integers, which are in the same order for positive numbers."""
    from ptx_snippets import kernel

    body = f"""mad.lo.s64 %a0, %wide, 4, %base0; ld.global.f32 %f1, [%a0]; mul.rn.f32 %f1, %f1, 0f3F800000;
    redux.sync.max.{kind} %f2, %f1, -1; mul.rn.f32 %f2, %f2, 0f3F800000; st.global.f32 [%a0], %f2;"""
    text = kernel(body, 1, registers=".reg .b32 %f<5>;", target=100)
    values = torch.arange(1, 65, dtype=torch.float32).flip(0).reshape(2, 32)
    with machine.session(arithmetic="field") as session:
        session.slots.set(values, np.arange(64, dtype=np.uint64).reshape(2, 32) + np.uint64(1000))
        machine.launch_ptx(text, "k", (1,), (64,), 0, [values])
        # 64 and 32 are the largest of their warps: elements 0 and 32.
        assert session.slots.get(values).tolist() == [[1000] * 32, [1032] * 32]


def test_a_sum_of_bits_over_a_warp_has_no_slot():
    from ptx_snippets import kernel

    body = """mad.lo.s64 %a0, %wide, 4, %base0; ld.global.f32 %f1, [%a0]; mul.rn.f32 %f1, %f1, 0f3F800000;
    redux.sync.or.b32 %f2, %f1, -1; mul.rn.f32 %f2, %f2, 0f3F800000; st.global.f32 [%a0], %f2;"""
    values = torch.full((32,), 3.0)
    with machine.session(arithmetic="field") as session:
        session.slots.set(values, np.full(32, 1000, dtype=np.uint64))
        machine.launch_ptx(kernel(body, 1, registers=".reg .b32 %f<5>;"), "k", (1,), (32,), 0, [values])
        assert len(session.slots.counters.broken) == 1

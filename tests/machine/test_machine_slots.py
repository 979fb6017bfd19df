"""Slots beside registers and memory: where they are lifted, and where their chains break."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ptx_snippets import kernel

from verifier import machine

REGISTERS = ".reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b16 %h<9>; .reg .pred %p<3>;"
ADDRESS = "mad.lo.s64 %a0, %wide, 4, %base0; "


def run(body, values, arithmetic="lifted", **session):
    with machine.session(arithmetic=arithmetic, **session) as opened:
        tensor = torch.tensor(values, dtype=torch.float32)
        machine.launch_ptx(
            kernel(ADDRESS + body, 1, registers=REGISTERS), "k", (1,), (len(values),), 0, [tensor]
        )
        return opened.slots.get(tensor), opened.slots.counters


def test_a_float_changed_by_integer_operations_is_lost_where_it_is_read_next():
    body = """
    ld.global.f32 %f1, [%a0]; mul.f32 %f2, %f1, 0f3DCCCCCD; mov.b32 %r1, %f2;
    and.b32 %r2, %r1, 0x7fffffff; or.b32 %r2, %r2, %r1;
    xor.b32 %r2, %r2, 0x80000000;
    mov.b32 %f3, %r2; add.f32 %f4, %f3, %f1; st.global.f32 [%a0], %f4;"""
    found, counters = run(body, [1.0, 2.0, 4.0])
    assert counters.desynchronised == sum(counters.lost.values()) == 3
    (place,) = counters.lost
    assert place.startswith("k, PTX line ")
    assert "add.f32" in place
    assert any("3 values had lost their shadows at k" in sentence for sentence in counters.describe())
    rounded = np.float32(0.1)
    assert found.tolist() == [x - float(np.float32(x * rounded)) for x in (1.0, 2.0, 4.0)]


def test_nothing_is_lost_where_half_words_only_move():
    body = """
    ld.global.f32 %f1, [%a0]; mul.f32 %f2, %f1, 0f3DCCCCCD; mov.b32 %r1, %f2;
    shr.u32 %r2, %r1, 16; shl.b32 %r3, %r2, 16; and.b32 %r4, %r1, 0xffff; or.b32 %r5, %r3, %r4;
    mov.b32 %f3, %r5; add.f32 %f4, %f3, %f1; st.global.f32 [%a0], %f4;"""
    found, counters = run(body, [1.0, 2.0])
    assert (counters.desynchronised, counters.lost, counters.describe()) == (0, {}, ())
    assert found.tolist() == [x + x * float(np.float32(0.1)) for x in (1.0, 2.0)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_loaded_halves_are_lifted_as_what_they_are_read_as(kind):
    body = f"""
    ld.global.b32 %r1, [%a0]; mov.b32 {{%h1, %h2}}, %r1; cvt.f32.{kind} %f1, %h1; cvt.f32.{kind} %f2, %h2;
    add.f32 %f3, %f1, %f2; st.global.f32 [%a0], %f3;"""
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[kind]
    pairs = torch.tensor([[1.5, 2.25], [-3.0, 0.5]]).to(dtype)
    found, counters = run(body, pairs.view(torch.float32).reshape(-1).tolist())
    assert found.tolist() == [3.75, -2.5]
    assert counters.desynchronised == 0


def test_a_load_that_a_guard_leaves_out_keeps_the_literal_beside_it():
    body = """
    mov.b32 %r1, 0f40400000; setp.gt.u32 %p1, %t, 0; @%p1 ld.global.b32 %r1, [%a0];
    mov.b32 %f1, %r1; mul.f32 %f2, %f1, 0f3DCCCCCD; st.global.f32 [%a0], %f2;"""
    found, _ = run(body, [1.0, 2.0])
    assert found.tolist() == [3 * float(np.float32(0.1)), 2 * float(np.float32(0.1))]


def test_values_stored_by_one_launch_are_found_by_the_next():
    with machine.session(arithmetic="lifted") as opened:
        tensor = torch.tensor([1.0, 3.0])
        body = """
        ld.global.f32 %f1, [%a0]; mul.f32 %f2, %f1, 0f3DCCCCCD; st.global.f32 [%a0], %f2;"""
        text = kernel(ADDRESS + body, 1, registers=REGISTERS)
        for _ in range(3):
            machine.launch_ptx(text, "k", (1,), (2,), 0, [tensor])
        third = float(np.float32(0.1)) ** 3
        assert opened.slots.counters.lifted == 2
        assert (np.abs(opened.slots.get(tensor) - [third, 3 * third]) <= 3 * third * 2.0**-51).all()


def swapped(compared, written, start=(1.0, 2.0)):
    """Give each number a shadow, then compare and swap its bits."""
    body = f"""
    ld.global.b32 %r1, [%a0]; mov.b32 %f1, %r1; mul.f32 %f2, %f1, 0f40400000; mov.b32 %r2, %f2;
    st.global.f32 [%a0], %f2; atom.global.cas.b32 %r4, [%a0], {compared}, {written};"""
    return run(body, list(start))


@pytest.mark.parametrize(("start", "written"), [((1.0, 2.0), "%r1"), ((0.0, 0.0), "%r2")])
def test_what_a_compare_and_swap_has_written_is_lost_even_where_the_bits_stay(start, written):
    _, counters = swapped("%r2", written, start)
    assert counters.desynchronised == 2
    assert counters.describe() == ("2 values had lost their shadows at a host operation",)


def test_a_compare_and_swap_that_failed_has_written_nothing():
    found, counters = swapped("%r1", "0")
    assert found.tolist() == [3.0, 6.0]
    assert counters.desynchronised == 0


@pytest.mark.parametrize("operation", ["exch", "and", "max"])
def test_what_an_atomic_on_integers_has_written_is_lost(operation):
    kind = "s32" if operation == "max" else "b32"
    found, counters = run(f"ld.global.b32 %r1, [%a0]; atom.global.{operation}.{kind} %r4, [%a0], %r1;", [3.0])
    assert found.tolist() == [3.0]
    assert counters.desynchronised == 1


@pytest.mark.parametrize("arithmetic", ["lifted", "field", "field_exponential"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("form", ["red", "atom"])
def test_an_atomic_on_a_pair_of_halves_adds_the_slots_of_both(form, dtype, arithmetic):
    """Three lanes add the same pair: 1 and 2048 are lost beside 2048 in float16, and not in the shadows."""
    kind = {torch.float16: "f16x2", torch.bfloat16: "bf16x2"}[dtype]
    target = "%r2, " if form == "atom" else ""
    body = f"""
    ld.global.b32 %r1, [%base0]; {form}.global.add.noftz.{kind} {target}[%base0 + 4], %r1;"""
    with machine.session(arithmetic=arithmetic) as opened:
        halves = torch.tensor([1.0, 2048.0, 2048.0, 1.0], dtype=dtype)
        text = kernel(body, 1, registers=REGISTERS)
        machine.launch_ptx(text, "k", (1,), (3,), 0, [halves.view(torch.float32)])
        shadows, counters = opened.slots.get(halves), opened.slots.counters
        wanted = opened.slots.arithmetic.lift(np.array([1.0, 2048.0, 2051.0, 6145.0]), "f64")
    assert halves[2] == 2048.0
    assert (shadows == wanted).all()
    assert (counters.desynchronised, counters.lost) == (0, {})


WIDENED = """
    ld.global.b32 %r1, [%a0]; mov.b32 {%h1, %h2}, %r1; mov.b32 %f1, {0, %h2};
    mul.f32 %f2, %f1, 0f40400000; st.global.f32 [%a0], %f2;"""


@pytest.mark.parametrize("arithmetic", ["lifted", "field", "field_exponential", "ball"])
@pytest.mark.parametrize("again", [False, True])
def test_a_bfloat16_moved_above_zeros_keeps_its_slot_as_a_float32(arithmetic, again):
    """As CUDA widens it on compute capability 8.0; also where a register holds other floats as well."""
    other = "setp.gt.u32 %p1, %t, 7; @%p1 mov.b32 %f1, %r1;" if again else ""
    body = WIDENED.replace("mul.f32", f"{other} mul.f32", 1)
    with machine.session(arithmetic=arithmetic) as opened:
        halves = torch.tensor([[9.0, 1.5], [9.0, -2.0]]).bfloat16()
        tensor = halves.view(torch.float32).reshape(-1)
        ride = opened.slots.arithmetic
        given = (
            ride.lift(np.array([[0.0, 5.0], [0.0, 7.0]]), "f64")
            if arithmetic != "ball"
            else np.full((2, 2), 0.25)
        )
        opened.slots.set(halves, given)
        text = kernel(ADDRESS + body, 1, registers=REGISTERS)
        machine.launch_ptx(text, "k", (1,), (2,), 0, [tensor])
        found, counters = opened.slots.get(tensor), opened.slots.counters
    assert tensor.tolist() == [4.5, -6.0]
    if arithmetic == "ball":
        assert ((found >= 0.75) & (found <= 0.75 + 2.0**-20)).all()
    else:
        assert (found == ride.lift(np.array([15.0, 21.0]), "f64")).all()
    assert (counters.desynchronised, counters.broken) == (0, set())


def test_a_float16_beside_zeros_stays_one_of_a_pair():
    body = """
    ld.global.b32 %r1, [%a0]; mov.b32 {%h1, %h2}, %r1; mov.b32 %r2, {0, %h2};
    add.f16x2 %r3, %r2, %r2; st.global.b32 [%a0], %r3;"""
    with machine.session(arithmetic="lifted") as opened:
        halves = torch.tensor([9.0, 1.5]).half()
        opened.slots.set(halves, np.array([0.0, 1.75]))
        text = kernel(ADDRESS + body, 1, registers=REGISTERS)
        machine.launch_ptx(text, "k", (1,), (1,), 0, [halves.view(torch.float32)])
        assert opened.slots.get(halves).tolist() == [0.0, 3.5]
    assert halves.tolist() == [0.0, 3.0]


def summed_by_torch(arithmetic, shadows, mean=False):
    """Sum float64 columns that torch adds in another order; gives sums, sums in order, their shadows."""
    columns = torch.from_numpy(np.random.default_rng(0).standard_normal((1000, 4)))
    with machine.session(arithmetic=arithmetic) as opened:
        opened.slots.set(columns, shadows(opened.slots.arithmetic))
        total = columns.mean(0) if mean else columns.sum(0)
        in_order = np.add.accumulate(columns.numpy(), axis=0)[-1] / (1000 if mean else 1)
        assert (total.numpy() != in_order).any()
        return total.numpy(), in_order, opened.slots.get(total)


@pytest.mark.parametrize("arithmetic", ["lifted", "field", "field_exponential"])
def test_a_sum_in_double_precision_keeps_its_slot_in_any_order(arithmetic):
    """Its floats have the format of the partial sums, as those of a conversion to an integral value do."""
    ones = np.ones((1000, 4))
    _, _, found = summed_by_torch(arithmetic, lambda ride: ride.lift(ones, "f64"))
    with machine.session(arithmetic=arithmetic) as opened:
        assert (found == opened.slots.arithmetic.lift(np.full(4, 1000.0), "f64")).all()


@pytest.mark.parametrize("mean", [False, True])
def test_the_bound_of_a_sum_in_double_precision_counts_the_other_order(mean):
    total, in_order, bound = summed_by_torch("ball", lambda _: np.zeros((1000, 4)), mean)
    assert (bound > np.abs(total - in_order)).all()
    # Every partial sum is below 100, and each addition errs by half a unit of it at most.
    assert (bound < 1000 * 100 * 2.0**-53).all()


@pytest.mark.parametrize("arithmetic", ["lifted", "field", "taint", "ball"])
@pytest.mark.parametrize("average", [torch.mean, lambda x: x.mean(0), lambda x: x.mean(-1, keepdim=True)])
@pytest.mark.parametrize("shape", [(5,), (1,), ()])
def test_the_mean_of_a_row_has_its_slot(arithmetic, average, shape):
    with machine.session(arithmetic=arithmetic) as opened:
        row = torch.ones(shape)
        opened.slots.set(row, opened.slots.arithmetic.lift(np.ones(shape, dtype=np.float32), "f32"))
        mean = average(row)
        found = opened.slots.get(mean)
        assert found.shape == tuple(mean.shape)
        assert not opened.slots.counters.uncovered
        if arithmetic == "lifted":
            assert (found == 1.0).all()


PARTS = {
    "a row": lambda x: x[1],
    "the last column": lambda x: x[:, -1],
    "every other column": lambda x: x[:, 1:6:2],
    "the last rows": lambda x: x[-2:],
    "a number": lambda x: x[2, 3],
    "nothing": lambda x: x[3:3],
}


@pytest.mark.parametrize("arithmetic", ["lifted", "field", "ball"])
@pytest.mark.parametrize("name", PARTS)
def test_the_gradient_of_a_part_lies_among_zeros(name, arithmetic):
    with machine.session(arithmetic=arithmetic) as opened:
        x = torch.ones(4, 7, requires_grad=True)
        part = PARTS[name](x)
        gradient = torch.ones_like(part)
        numbers = np.arange(2.0, 2.0 + part.numel())
        lifted = opened.slots.arithmetic.lift(numbers, "f64")
        opened.slots.set(gradient, lifted.reshape(tuple(part.shape)))
        (found,) = torch.autograd.grad(part, x, gradient)
        assert not opened.slots.counters.uncovered
        given = torch.from_numpy(numbers).reshape(part.shape)
        (wanted,) = torch.autograd.grad(PARTS[name](y := x.double()), y, given)
        expected = opened.slots.arithmetic.lift(wanted.numpy(), "f64")
        assert np.array_equal(opened.slots.get(found), expected)


def test_operations_inside_a_custom_op_are_followed():
    @torch.library.custom_op("norm_verifier_tests::tripled", mutates_args=(), device_types="cuda")
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x + x + x

    with machine.session(arithmetic="lifted") as opened:
        row = torch.ones(3)
        opened.slots.set(row, np.full(3, 1.25))
        assert (opened.slots.get(tripled(row.cuda())) == 3.75).all()
        assert not opened.slots.counters.uncovered

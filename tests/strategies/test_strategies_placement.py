"""Placing: the tensor shows the values bit for bit, and every stray write is found."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.formats import FLOAT_NAMES
from strategies.layouts import Layout, layouts
from strategies.placement import BITS, POISONS, poison_bits
from strategies.shapes import shapes
from strategies.values import Values

small_shapes = shapes(max_elements=60, max_rank=4, max_columns=12)


@given(small_shapes, st.sampled_from(FLOAT_NAMES), st.sampled_from((0, 1, 64)), st.data())
def test_a_placed_tensor_shows_the_values_in_its_strides(shape, dtype, guard, data):
    layout = data.draw(layouts(shape=shape, max_kinds=4))
    numbers = Values(hazard="nonfinite").fill(shape, dtype)
    placed = layout.place(numbers, guard_elements=guard, poison=data.draw(st.sampled_from(sorted(POISONS))))
    shown = placed.tensor.contiguous().view(BITS[dtype])
    assert torch.equal(shown, layout.project(numbers).contiguous().view(BITS[dtype]))
    assert placed.tensor.stride() == layout.strides(shape)
    assert placed.tensor.storage_offset() == layout.offset
    assert placed.damage() == placed.value_damage() == ()


def test_only_expansion_changes_what_is_shown():
    numbers = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(Layout(order="transposed", row_padding=2).project(numbers), numbers)
    assert Layout(expanded="rows").place(numbers).tensor.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert Layout(expanded="columns").place(numbers).tensor.tolist() == [[0, 0, 0], [3, 3, 3]]
    assert Layout(expanded="all").place(numbers).tensor.tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_a_tensor_begins_aligned_unless_it_is_misaligned(dtype):
    numbers = Values().fill((2, 3), dtype)
    assert Layout().place(numbers, guard_elements=1).tensor.data_ptr() % 64 == 0
    assert Layout(storage_offset=16).place(numbers).tensor.data_ptr() % 16 == 0
    assert Layout(misaligned=True).place(numbers).tensor.data_ptr() % 16 == numbers.element_size()


def test_the_values_given_are_not_the_memory_placed():
    numbers = torch.zeros(2, 3)
    Layout().place(numbers).tensor.fill_(7.0)
    assert numbers.tolist() == [[0] * 3] * 2


def test_the_red_zones_are_outside_of_the_tensor_that_torch_knows():
    placed = Layout(row_padding=3).place(torch.zeros(2, 3), guard_elements=64)
    assert placed.buffer.numel() == 64 + (6 + 3) + 64
    assert placed.tensor.untyped_storage().nbytes() == 4 * 9
    assert placed.tensor.untyped_storage().data_ptr() == placed.buffer.data_ptr() + 4 * 64


@pytest.mark.parametrize(
    "layout", [Layout(), Layout(row_padding=2), Layout(order="transposed", column_step=2)]
)
def test_a_stray_write_is_found_wherever_it_falls(layout):
    placed = layout.place(torch.ones(2, 3), guard_elements=1)
    start, end = placed.storage
    mine = {
        placed.first + int(i)
        for i in torch.as_strided(torch.arange(99), (2, 3), placed.tensor.stride()).flatten()
    }
    for index in range(placed.buffer.numel()):
        before = placed.buffer[index].clone()
        placed.buffer[index] = 0.5
        region = "before" if index < start else "after" if index >= end else "gap"
        found, expected = placed.damage(), [(region, 1, index - placed.first)]
        if index in mine:
            assert found == ()
            found, expected = placed.value_damage(), [("values", 1, index - placed.first)]
        assert [(one.region, one.count, one.offset) for one in found] == expected
        placed.buffer.view(torch.int32)[index] = before.view(torch.int32)
        assert placed.damage() == placed.value_damage() == ()


def test_every_damaged_region_is_reported_with_its_first_place_and_bits():
    placed = Layout(column_step=2, storage_offset=16).place(torch.ones(2, 2), guard_elements=64)
    placed.buffer[60:64] = 1.0
    placed.buffer[70] = 2.0
    placed.buffer[placed.first + 1] = 3.0
    placed.buffer[-3:] = 4.0
    before, gap, after = placed.damage()
    assert (before.region, before.count, before.offset) == ("before", 4, -20)
    assert (before.expected, before.actual) == (0x7FC0DEAD, 0x3F800000)
    assert (gap.region, gap.count, gap.offset) == ("gap", 2, -10)
    assert (after.region, after.count) == ("after", 3)
    assert "4 place(s) in the red zone before the tensor changed, first at offset -20" in str(before)


def test_a_change_of_bits_that_no_comparison_of_numbers_sees_is_found():
    placed = Layout(row_padding=1).place(torch.tensor([[0.0], [float("nan")]]))
    placed.tensor[0, 0] = -0.0
    assert placed.value_damage()[0].actual == 0x80000000
    other = Layout(row_padding=1).place(torch.zeros(2, 1))
    other.buffer[0] = float("nan")
    assert other.damage()[0].actual == 0x7FC00000


@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_poisons_are_what_they_are_called(dtype):
    patterns = {
        poison: Layout().place(Values().fill((1,), dtype), poison=poison).buffer[0] for poison in POISONS
    }
    assert patterns["nan"].isnan()
    assert patterns["finite"].item() == -12288
    assert patterns["positive"].item() == 12288
    default = torch.tensor(float("nan"), dtype=patterns["nan"].dtype)
    assert patterns["nan"].view(BITS[dtype]) != default.view(BITS[dtype])


def test_a_poison_may_be_any_pattern_of_the_dtype():
    placed = Layout().place(torch.ones(2), poison=0xFFFFFFFF)
    assert placed.buffer.view(torch.int32)[0] == -1
    assert poison_bits(0x1234, "float16") == 0x1234


def test_an_empty_tensor_has_red_zones_all_the_same():
    placed = Layout(order="transposed").place(torch.ones(0, 4), guard_elements=64)
    assert placed.tensor.shape == (0, 4)
    placed.buffer[64] = 1.0
    assert [one.region for one in placed.damage()] == ["gap"]


def test_a_gradient_may_be_asked_of_a_placed_tensor():
    tensor = Layout(row_padding=3).place(torch.ones(2, 2)).tensor.requires_grad_()
    tensor.sum().backward()
    assert tensor.grad.tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"guard_elements": -1}, "red zone is never negative"),
        ({"poison": "ones"}, "no poison 'ones'"),
        ({"poison": 2**32}, "does not fit the 32 bits"),
        ({"poison": -1}, "does not fit the 32 bits"),
    ],
)
def test_bad_arguments_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Layout().place(torch.ones(2), **arguments)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOAT_NAMES)
def test_placing_works_on_a_device_as_on_the_cpu(dtype):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    numbers = Values(hazard="nonfinite").fill((4, 6), dtype)
    for layout in (
        Layout(),
        Layout(row_padding=3, misaligned=True),
        Layout(order="transposed"),
        Layout(expanded="rows"),
    ):
        placed = layout.place(numbers.cuda())
        assert placed.tensor.device.type == "cuda"
        assert placed.tensor.storage_offset() == layout.offset
        assert placed.tensor.untyped_storage().data_ptr() % 64 == 0
        shown = placed.tensor.cpu().contiguous().view(BITS[dtype])
        assert torch.equal(shown, layout.project(numbers).contiguous().view(BITS[dtype]))
        assert placed.damage() == placed.value_damage() == ()
        placed.buffer[-1] = 1.0
        assert [one.region for one in placed.damage()] == ["after"]


def test_other_dtypes_are_refused():
    with pytest.raises(ValueError, match="not supported"):
        Layout().place(torch.ones(2, dtype=torch.int32))


def test_a_boolean_mask_lies_among_booleans():
    values = torch.tensor([[True, False, True], [False, False, True]])
    for poison, bit in (("nan", 1), ("finite", 0)):
        placed = Layout(column_step=2).place(values, guard_elements=64, poison=poison)
        assert placed.tensor.dtype == torch.bool
        assert torch.equal(placed.tensor, values)
        assert set(placed.original[~placed.reached].tolist()) == {bit}
        assert not placed.damage()
        placed.tensor[0, 1] = True
        assert [str(damage.region) for damage in placed.value_damage()] == ["values"]

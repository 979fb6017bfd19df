"""Does the search find the hard example, and does it shrink to the small one?"""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import find, settings
from hypothesis import strategies as st

from strategies.layouts import Layout, layouts
from strategies.reduce import reduce, reduce_layout
from strategies.shapes import row_column_shapes
from strategies.values import Values, values

# Derandomised, so that these tests say the same each time; 5000 draws of tiny tensors take seconds.
SEARCH = settings(max_examples=5000, database=None, derandomize=True)
INPUT_AXES = {"rows": [("input", 0)], "columns": [("input", 1)]}


def kappa_squared(row):
    """Squared ratio of mean and standard deviation, exact; infinite for a constant row."""
    exact = [Fraction(value) for value in row]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / len(exact)
    return math.inf if variance == 0 else mean**2 / variance


def is_ill_conditioned(matrix):
    """Whether a row has 10^4 < kappa < infinity."""
    return any(10**8 < kappa_squared(row) < math.inf for row in matrix.tolist())


def textbook_variance(matrix):
    """E[x^2] - E[x]^2 in the dtype of the matrix: the bug that every suite should find."""
    columns = matrix.shape[-1]
    return (matrix * matrix).sum(dim=-1) / columns - (matrix.sum(dim=-1) / columns) ** 2


def test_an_ill_conditioned_row_is_found_and_shrinks_to_two_columns():
    recipe, shape = find(
        st.tuples(values(), row_column_shapes(max_elements=256, min_rows=1, min_columns=1, max_columns=64)),
        lambda drawn: is_ill_conditioned(drawn[0].fill(drawn[1], "float32")),
        settings=SEARCH,
    )
    assert shape[0] == 1
    assert shape[1] <= 3
    assert recipe.hazard in ("cancellation", "near_constant_row")
    assert (recipe.scale, recipe.row_scale, recipe.odd_rows) == (0, 0, None)


def test_an_ill_conditioned_tensor_reduces_to_one_row_of_two_plain_numbers():
    start = {"input": Values(hazard="cancellation", strength=5, seed=7).fill((9, 300), "float32")}
    small = reduce(start, lambda t: is_ill_conditioned(t["input"]), axes=INPUT_AXES, budget=400)["input"]
    assert small.shape == (1, 2)
    # a and b have kappa = |a + b| / |a - b|: above 10^4 takes 13 bits, of which float32 has 24
    assert all(Fraction(value).numerator < 2**16 for value in small[0].tolist())


def test_a_negative_textbook_variance_is_found_and_shrinks():
    recipe, shape = find(
        st.tuples(values(), row_column_shapes(max_elements=256, min_rows=1, min_columns=1, max_columns=64)),
        lambda drawn: bool((textbook_variance(drawn[0].fill(drawn[1], "float32")) < 0).any()),
        settings=SEARCH,
    )
    assert shape[0] == 1
    assert shape[1] <= 7
    assert len(repr(recipe)) <= 80


@pytest.mark.parametrize("hazard", ["overflow_of_squares", "max_magnitude", "wide_exponents"])
def test_an_overflowing_variance_is_found_by_the_hazards_that_aim_at_it(hazard):
    found = find(
        values(hazards=("ordinary", hazard), mixed_rows=False),
        lambda recipe: not torch.isfinite(textbook_variance(recipe.fill((1, 4), "float32"))).all(),
        settings=SEARCH,
    )
    assert found.hazard == hazard
    assert found.scale == 0


def test_ordinary_values_never_make_it_overflow():
    for seed in range(200):
        assert torch.isfinite(textbook_variance(Values(seed=seed).fill((4, 16), "float32"))).all()


def test_nothing_to_find_shrinks_to_ordinary_values_of_two_numbers():
    assert find(values(), lambda _: True) == Values(distinct=2)


def kernel_that_takes_the_last_stride_for_1(layout):
    """Read a row as if it were contiguous, and say whether the sum of rows comes out wrong."""
    numbers = Values(hazard="small_integers", strength=9, seed=4).fill((4, 8), "float32")
    placed = layout.place(numbers)
    row_stride = placed.tensor.stride(0)
    start = placed.first
    misread = torch.stack([placed.buffer[start + i * row_stride :][:8] for i in range(4)]).sum(dim=1)
    return not torch.equal(misread, placed.tensor.sum(dim=1))


def kernel_that_takes_rows_for_adjacent(layout):
    """Take the number of columns for the stride of rows, and say whether the sum of rows comes out wrong."""
    numbers = Values(hazard="small_integers", strength=9, seed=4).fill((4, 8), "float32")
    placed = layout.place(numbers)
    misread = placed.buffer[placed.first :][: 4 * 8].reshape(4, 8).sum(dim=1)
    return not torch.equal(misread, placed.tensor.sum(dim=1))


def kernel_that_needs_alignment(layout):
    """Demand vectors of 16 bytes."""
    numbers = Values().fill((4, 8), "float32")
    return layout.place(numbers).tensor.data_ptr() % 16 != 0


def kernel_that_ignores_the_storage_offset(layout):
    """Begin where the storage begins."""
    tensor = layout.place(Values().fill((4, 8), "float32")).tensor
    return tensor.untyped_storage().data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    ("kernel", "allow", "simplest"),
    [
        (
            kernel_that_takes_the_last_stride_for_1,
            ("transposed", "sliced", "misaligned"),
            Layout(order="transposed"),
        ),
        (
            kernel_that_takes_the_last_stride_for_1,
            ("padded_rows", "sliced", "misaligned"),
            Layout(column_step=2),
        ),
        (kernel_that_takes_rows_for_adjacent, ("padded_rows", "sliced", "misaligned"), Layout(row_padding=1)),
        (kernel_that_takes_rows_for_adjacent, ("expanded", "misaligned"), Layout(expanded="rows")),
        (
            kernel_that_needs_alignment,
            ("transposed", "storage_offset", "misaligned"),
            Layout(misaligned=True),
        ),
        (kernel_that_ignores_the_storage_offset, ("transposed", "storage_offset"), Layout(storage_offset=16)),
    ],
)
def test_a_layout_bug_shrinks_to_the_simplest_layout_that_shows_it(kernel, allow, simplest):
    assert not kernel(Layout())
    assert find(layouts(allow=allow, shape=(4, 8), max_kinds=3), kernel, settings=SEARCH) == simplest


def test_a_layout_bug_found_by_hand_reduces_to_the_simplest_layout_that_shows_it():
    rich = Layout(row_padding=16, column_step=3, storage_offset=64)
    assert reduce_layout(rich, kernel_that_takes_the_last_stride_for_1) == Layout(column_step=2)


def test_a_dropped_tail_element_reduces_to_a_single_number_behind_one_block():
    def drops_the_tail(tensors):
        row = tensors["input"]
        blocks = row[:, : row.shape[1] // 32 * 32]
        return row.shape[1] > 32 and bool((blocks.double().sum(dim=1) != row.double().sum(dim=1)).any())

    start = {"input": Values(seed=9).fill((7, 769), "float32")}
    assert drops_the_tail(start)
    small = reduce(start, drops_the_tail, axes=INPUT_AXES)["input"]
    assert small.shape == (1, 33)
    assert small.tolist() == [[0.0] * 32 + [1.0]]


def test_a_bug_of_odd_rows_alone_is_found_with_mixed_rows():
    found = find(
        values(),
        lambda recipe: recipe.odd_rows is not None and recipe.odd_rows.hazard == "zeros",
        settings=SEARCH,
    )
    assert found == Values(distinct=2, odd_rows=Values(hazard="zeros"))

"""The reducer: fewer rows and columns, plainer numbers, the same failure, a bounded number of calls."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from strategies.layouts import Layout
from strategies.reduce import reduce, reduce_layout
from strategies.values import Values

LINKS = {
    "rows": [("input", 0), ("grad_output", 0)],
    "columns": [("input", 1), ("grad_output", 1), ("weight", 0)],
}


class Counting:
    """A predicate that counts and remembers what it was shown."""

    def __init__(self, predicate):
        self.predicate = predicate
        self.seen = []

    def __call__(self, tensors):
        self.seen.append({name: tensor.clone() for name, tensor in tensors.items()})
        return self.predicate(tensors)


def tensors(rows=6, columns=50, dtype="float32", hazard="ordinary"):
    return {
        "input": Values(hazard=hazard, seed=1).fill((rows, columns), dtype),
        "grad_output": Values(seed=2).fill((rows, columns), dtype),
        "weight": Values(seed=3).fill((columns,), dtype),
    }


def test_linked_axes_shrink_together_to_the_one_element_that_matters():
    start = tensors()
    start["input"][4, 33] = 100.0
    small = reduce(start, lambda t: bool((t["input"] > 50).any()), axes=LINKS)
    assert small["input"].tolist() == [[64.0]]
    assert small["grad_output"].tolist() == [[0.0]]
    assert small["weight"].tolist() == [0.0]


def test_two_columns_that_matter_together_both_stay():
    start = tensors()
    start["input"][2, 7], start["input"][2, 41] = 100.0, -100.0

    def fails(t):
        row = t["input"]
        return bool(((row > 99).any(dim=1) & (row < -99).any(dim=1)).any())

    assert reduce(start, fails, axes=LINKS)["input"].tolist() == [[128.0, -128.0]]


@pytest.mark.parametrize("threshold", [1, 2, 17, 33, 1000, 1025])
def test_a_threshold_on_the_extent_is_reached_exactly(threshold):
    start = tensors(rows=2, columns=3000)
    small = reduce(start, lambda t: t["input"].shape[1] >= threshold, axes=LINKS)
    assert small["input"].shape == (1, threshold)
    assert small["weight"].shape == (threshold,)
    assert not small["input"].any()


@pytest.mark.parametrize(
    ("first", "condition", "plainest"),
    [
        (37.33, lambda x: True, 0.0),
        (37.33, lambda x: x != 0, 1.0),
        (-37.33, lambda x: x < 0, -1.0),
        (-37.33, lambda x: abs(x) > 16, 32.0),
        (37.33, lambda x: x > 2, 4.0),
        (1e30, lambda x: x > 2, 4.0),
        (3.1416, lambda x: 2 < x < 4, 3.0),
        (1e-30, lambda x: 0 < x < 0.4, 0.25),
        (37.33, lambda x: x != int(x), 1.5),
        (37.33, lambda x: 37 < x < 38, 37.25),
        (3.4e38, lambda x: x > 3.3e38, 63 * 2.0**122),
    ],
)
def test_a_number_becomes_the_plainest_that_fails(first, condition, plainest):
    start = {"input": torch.tensor([first])}
    small = reduce(start, lambda t: bool(condition(t["input"].item())), axes={})
    assert small["input"].tolist() == [plainest]


def test_bits_are_dropped_down_to_those_that_matter():
    start = {"input": torch.tensor([1.2345678901234567], dtype=torch.float64)}
    small = reduce(start, lambda t: 1.2345 < t["input"].item() < 1.2346, axes={})
    numerator, denominator = small["input"].item().as_integer_ratio()
    assert 1.2345 < numerator / denominator < 1.2346
    assert numerator < 2**16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("hazard", ["wide_exponents", "max_magnitude", "subnormal", "nonfinite"])
def test_the_dtype_stays_and_no_candidate_is_stranger_than_the_start(dtype, hazard):
    start = tensors(rows=2, columns=6, dtype=dtype, hazard=hazard)
    finite = bool(torch.isfinite(start["input"]).all())
    fails = Counting(lambda t: t["input"].double().abs().nan_to_num(1e400).sum().item() > 0)
    small = reduce(start, fails, axes=LINKS, budget=300)
    assert small["input"].dtype == start["input"].dtype
    assert not finite or all(bool(torch.isfinite(shown["input"]).all()) for shown in fails.seen)
    assert small["input"].tolist() == [[1.0]]


def test_numbers_that_are_left_alone_keep_their_bits():
    payload = torch.tensor([0x7FC0BEEF, 0x3F99999A], dtype=torch.int32).view(torch.float32)
    small = reduce(
        {"input": payload},
        lambda t: t["input"].view(torch.int32)[0].item() == 0x7FC0BEEF,
        axes={"all": [("input", 0)]},
    )
    assert small["input"].view(torch.int32).tolist() == [0x7FC0BEEF]


def test_what_was_given_is_not_changed_and_predicates_may_write_to_what_they_get():
    start = tensors()
    before = {name: tensor.clone() for name, tensor in start.items()}

    def fails(t):
        large = bool((t["input"] > 1).any())
        t["input"].fill_(float("nan"))
        return large

    small = reduce(start, fails, axes=LINKS)
    assert all(torch.equal(start[name], before[name]) for name in start)
    assert small["input"].tolist() == [[2.0]]


@pytest.mark.parametrize("budget", [1, 2, 10, 100])
def test_the_budget_is_kept_and_what_comes_back_still_fails(budget):
    fails = Counting(lambda t: t["input"].abs().sum().item() > 30)
    small = reduce(tensors(), fails, axes=LINKS, budget=budget)
    assert len(fails.seen) <= budget
    assert fails.predicate(small)


def test_the_same_arguments_make_the_same_calls():
    first, second = (Counting(lambda t: t["input"].abs().sum().item() > 30) for _ in range(2))
    reduce(tensors(), first, axes=LINKS)
    reduce(tensors(), second, axes=LINKS)
    assert len(first.seen) == len(second.seen)
    for one, other in zip(first.seen, second.seen, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_search_ends_when_nothing_gets_plainer():
    fails = Counting(lambda t: t["input"].item() != int(t["input"].item()))
    reduce({"input": torch.tensor([37.33])}, fails, axes={})
    # two rounds of at most 10 + 2 * 8 simplifications, and a third that finds nothing
    assert len(fails.seen) < 80


def test_what_comes_back_is_contiguous_memory_of_its_own():
    start = {"input": torch.ones(3, 4).t()}
    small = reduce(start, lambda _: True, axes={}, budget=1)
    assert small["input"].is_contiguous()
    assert small["input"].data_ptr() != start["input"].data_ptr()


def test_one_axis_that_cannot_shrink_leaves_calls_for_the_rest():
    start = tensors(rows=5, columns=2000)
    small = reduce(start, lambda t: t["input"].shape[1] == 2000, axes=LINKS, budget=500)
    assert small["input"].shape == (1, 2000)
    assert not small["input"].any()
    assert not small["weight"].any()


@pytest.mark.parametrize(("rows", "most"), [(64, 45), (257, 60)])
def test_a_failure_that_needs_many_rows_takes_calls_by_the_logarithm_of_their_count(rows, most):
    start = {"input": torch.zeros(300, 1)}
    fails = Counting(lambda t: t["input"].shape[0] >= rows)
    assert len(reduce(start, fails, axes={"rows": [("input", 0)]})["input"]) == rows
    assert len(fails.seen) <= most


@pytest.mark.parametrize("needed", [{0, 299}, {10, 11, 200}, {3, 77, 130, 131, 290}])
def test_rows_far_apart_stay_alone_among_many(needed):
    start = {"input": torch.arange(300).reshape(300, 1)}
    fails = Counting(lambda t: needed <= set(t["input"].flatten().tolist()))
    small = reduce(start, fails, axes={"rows": [("input", 0)]}, budget=300)
    assert set(small["input"].flatten().tolist()) == needed


def test_integers_lose_rows_but_keep_their_values():
    start = {"input": torch.ones(8, 2), "rows": torch.arange(8)}
    links = {"rows": [("input", 0), ("rows", 0)]}
    assert reduce(start, lambda t: 5 in t["rows"].tolist(), axes=links)["rows"].tolist() == [5]


def test_the_least_extent_may_be_nothing():
    start = {"input": torch.ones(8, 2)}
    links = {"rows": [("input", 0)], "columns": [("input", -1)]}
    assert reduce(start, lambda _: True, axes=links)["input"].shape == (1, 1)
    assert reduce(start, lambda _: True, axes=links, min_extent=0)["input"].shape == (0, 0)


@given(st.integers(0, 2**16), st.integers(1, 5), st.integers(1, 9))
def test_the_result_always_fails(seed, rows, columns):
    start = {"input": Values(seed=seed).fill((rows, columns), "float32")}
    total = start["input"].double().sum().item()
    fails = Counting(lambda t: (t["input"].double().sum().item() > 0) == (total > 0))
    links = {"rows": [("input", 0)], "columns": [("input", 1)]}
    assert fails.predicate(reduce(start, fails, axes=links, budget=200))


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"rows": [("output", 0)]}, "names 'output', which is not among"),
        ({"rows": [("weight", 1)]}, "axis 1 of 'weight', which has no such axis"),
        ({"rows": [("input", 0), ("weight", 0)]}, "ties axes of different extents"),
    ],
)
def test_links_that_do_not_fit_are_refused(axes, sentence):
    with pytest.raises(ValueError, match=sentence):
        reduce(tensors(), lambda _: True, axes=axes)


def test_tensors_that_do_not_fail_are_refused():
    with pytest.raises(ValueError, match="do not fail to begin with"):
        reduce(tensors(), lambda _: False, axes=LINKS)
    with pytest.raises(ValueError, match="budget is 0"):
        reduce(tensors(), lambda _: True, axes=LINKS, budget=0)


def test_what_the_predicate_raises_is_passed_on():
    def breaks(_):
        raise OSError("the child died")

    with pytest.raises(OSError, match="the child died"):
        reduce(tensors(), breaks, axes=LINKS)


def test_a_layout_loses_all_that_does_not_matter():
    rich = Layout(order="transposed", column_step=3, row_padding=16, storage_offset=64, misaligned=True)
    assert reduce_layout(rich, lambda _: True) == Layout()
    assert reduce_layout(rich, lambda layout: layout.misaligned) == Layout(misaligned=True)
    assert reduce_layout(rich, lambda layout: layout.column_step > 1) == Layout(column_step=2)
    needs_two = reduce_layout(rich, lambda layout: layout.row_padding > 0 and layout.order == "transposed")
    assert needs_two == Layout(order="transposed", row_padding=1)
    with pytest.raises(ValueError, match="does not fail to begin with"):
        reduce_layout(rich, lambda layout: layout.expanded == "all")

"""Layouts: the strides that torch itself would make, and what each shrinks to."""

import json
import math

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from strategies.layouts import KINDS, Layout, layouts, simpler_layouts

SEARCH = settings(max_examples=5000, database=None, derandomize=True)
SHAPES = [(), (1,), (5,), (0,), (3, 4), (1, 4), (4, 1), (0, 4), (3, 0), (2, 3, 4), (2, 3, 4, 5), (2, 1, 3, 1)]


@pytest.mark.parametrize("shape", SHAPES)
def test_contiguous_strides_are_those_of_torch(shape):
    assert Layout().strides(shape) == torch.empty(shape).stride()


def test_each_layout_has_the_strides_of_the_torch_expression_that_it_names():
    assert Layout(order="transposed").strides((2, 3, 4)) == torch.empty(2, 4, 3).transpose(1, 2).stride()
    assert Layout(column_step=3).strides((2, 4)) == torch.empty(2, 12)[:, ::3].stride()
    assert Layout(row_step=2).strides((3, 4)) == torch.empty(6, 4)[::2].stride()
    assert Layout(row_padding=5).strides((2, 3, 4)) == torch.empty(2, 3, 9)[..., :4].stride()
    assert Layout(expanded="rows").strides((3, 4)) == torch.empty(4).expand(3, 4).stride()
    assert Layout(expanded="columns").strides((3, 4)) == torch.empty(3, 1).expand(3, 4).stride()
    assert Layout(expanded="all").strides((3, 4)) == torch.empty(()).expand(3, 4).stride()
    last = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert Layout(order="channels_last").strides((2, 3, 4, 5)) == last.stride()
    swapped = torch.empty(3, 2, 4).transpose(0, 1)
    assert Layout(order="leading_reversed").strides((2, 3, 4)) == swapped.stride()
    assert (
        Layout(order="leading_reversed").strides((2, 3, 4, 5))
        == torch.empty(4, 3, 2, 5).permute(2, 1, 0, 3).stride()
    )
    fortran = torch.empty(5, 4, 3, 2).permute(3, 2, 1, 0)
    assert Layout(order="reversed").strides((2, 3, 4, 5)) == fortran.stride()
    assert set(Layout(order="reversed").kinds) == {"transposed", "leading_reversed"}
    assert Layout(leading_step=2).strides((2, 3, 4)) == torch.empty(4, 3, 4)[::2].stride()
    assert Layout(leading_step=2).strides((2, 2, 3, 4)) == torch.empty(2, 4, 3, 4)[:, ::2].stride()
    both = torch.empty(2, 8, 3)[:, ::2].transpose(1, 2)
    assert Layout(order="transposed", column_step=2).strides((2, 3, 4)) == both.stride()


@given(layouts(allow=KINDS, shape=(2, 3, 4, 5), max_kinds=6))
def test_no_two_elements_share_an_address_unless_expanded(layout):
    strides = layout.strides((2, 3, 4, 5))
    places = [
        sum(i * stride for i, stride in zip(index, strides, strict=True))
        for index in torch.cartesian_prod(*(torch.arange(extent) for extent in (2, 3, 4, 5))).tolist()
    ]
    shown = math.prod(n for n, stride in zip((2, 3, 4, 5), strides, strict=True) if stride)
    assert len(set(places)) == shown


@given(layouts(max_kinds=6))
def test_a_layout_survives_json_and_prints_as_python(layout):
    assert Layout.from_json(json.loads(json.dumps(layout.to_json()))) == layout
    assert eval(repr(layout)) == layout


def test_kinds_name_what_a_layout_does():
    assert Layout().kinds == ("contiguous",)
    assert Layout(column_step=2, misaligned=True).kinds == ("sliced", "misaligned")
    assert Layout(storage_offset=3, misaligned=True).offset == 4


@given(st.sampled_from(SHAPES), st.data())
def test_layouts_for_a_shape_apply_to_it(shape, data):
    layout = data.draw(layouts(shape=shape, max_kinds=4))
    assert layout.applies_to(shape)
    assert layout == Layout() or layout.differs(shape) or layout.expanded != "none"


def test_layouts_that_a_shape_cannot_tell_from_contiguous_are_left_out():
    single_row = layouts(allow=("transposed", "padded_rows"), shape=(1, 8))
    assert find(single_row, lambda _: True) == Layout()
    with pytest.raises(NoSuchExample):
        find(single_row, lambda layout: layout != Layout(), settings=settings(SEARCH, max_examples=50))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "contiguous"])
def test_every_kind_is_found_and_shrinks_to_itself_alone(kind):
    found = find(layouts(shape=(2, 3, 4, 5)), lambda layout: kind in layout.kinds, settings=SEARCH)
    assert found.kinds == (kind,)


def test_only_allowed_kinds_are_drawn():
    strategy = layouts(allow=("sliced", "misaligned"))
    seen = set()
    find(strategy, lambda layout: bool(seen.update(layout.kinds)) or len(seen) == 3, settings=SEARCH)
    assert seen == {"contiguous", "sliced", "misaligned"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"order": "sideways"}, "there is no order 'sideways'"),
        ({"expanded": "everything"}, "nothing expands 'everything'"),
        ({"column_step": 0}, "at least 1: torch has no negative strides"),
        ({"row_step": -1}, "at least 1: torch has no negative strides"),
        ({"leading_step": 0}, "at least 1: torch has no negative strides"),
        ({"row_padding": -1}, "never negative"),
        ({"storage_offset": -1}, "never negative"),
    ],
)
def test_layouts_that_no_tensor_has_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        Layout(**arguments)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout(order="transposed"), (5,)),
        (Layout(row_step=2), (5,)),
        (Layout(row_padding=2), (5,)),
        (Layout(expanded="rows"), (5,)),
        (Layout(column_step=2), ()),
        (Layout(order="channels_last"), (2, 3, 4)),
        (Layout(order="leading_reversed"), (3, 4)),
        (Layout(order="reversed"), (3, 4)),
        (Layout(leading_step=2), (3, 4)),
    ],
)
def test_a_layout_of_axes_that_are_missing_is_refused(layout, shape):
    with pytest.raises(ValueError, match="does not apply"):
        layout.strides(shape)


def test_layouts_refuses_bad_arguments_before_it_draws():
    with pytest.raises(ValueError, match="no layout 'strided'"):
        layouts(allow=("strided",))
    with pytest.raises(ValueError, match="at least one kind"):
        layouts(max_kinds=0)
    with pytest.raises(TypeError, match="not one string"):
        layouts(allow="sliced")
    with pytest.raises(ValueError, match="no setting stride"):
        Layout.from_json({"stride": 2})


@given(layouts(max_kinds=6))
def test_simpler_layouts_are_simpler_and_apply_wherever_the_layout_does(layout):
    weight = sum(int(value) if not isinstance(value, str) else 1 for value in layout.to_json().values())
    for simpler in simpler_layouts(layout):
        less = sum(int(value) if not isinstance(value, str) else 1 for value in simpler.to_json().values())
        assert less < weight
        assert simpler.applies_to((2, 3))

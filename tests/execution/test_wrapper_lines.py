"""Lines of a wrapper are noted alike by a trace and by events of `sys.monitoring`."""

import contextlib
import sys
import threading

import pytest

from verifier.execution import wrapper_lines
from verifier.subjects.source_map import SourceMap

WAYS = [
    "_traced",
    pytest.param(
        "_monitored",
        marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12"),
    ),
]
SOURCE = """\
def scaled(values, factor):
    out = []
    for value in values:
        if value < 0:
            value = -value
        out.append(value * factor)
    return out

def summed(values):
    try:
        return helper(values)
    except KeyError:
        return sum(item for item in pairs(values))

def pairs(values):
    for value in values:
        yield value

def launching(kernel):
    kernel.launch(lambda: grid())
    return None

def grid():
    return 1
"""


class Kernel:
    """Launches by calling its grid, which is a line of the wrapper."""

    def launch(self, grid):
        return grid()


@pytest.fixture
def wrapper(monkeypatch):
    def helper(_):
        raise KeyError

    names = {"helper": helper}
    exec(compile(SOURCE, "wrapper.py", "exec"), names)
    monkeypatch.setattr(wrapper_lines, "_launches", lambda: [(Kernel, "launch")])
    return names


@pytest.fixture(params=WAYS)
def noted(request):
    def call(function, *arguments):
        ran = set()
        with getattr(wrapper_lines, request.param)(frozenset({"wrapper.py"}), ran):
            function(*arguments)
        assert {file for file, _ in ran} <= {"wrapper.py"}
        return sorted(line for _, line in ran)

    return call


def test_lines_that_ran_are_noted_and_no_others(wrapper, noted):
    assert noted(wrapper["scaled"], [1, 2], 3) == [2, 3, 4, 6, 7]
    assert noted(wrapper["scaled"], [1, -2], 3) == [2, 3, 4, 5, 6, 7]


def test_each_call_notes_all_of_its_lines(wrapper, noted):
    assert noted(wrapper["scaled"], [-1], 3) == noted(wrapper["scaled"], [-1], 3)


def test_generators_and_handlers_are_followed(wrapper, noted):
    assert noted(wrapper["summed"], [1, 2]) == [10, 11, 12, 13, 16, 17]


def test_what_a_launch_calls_is_not_noted(wrapper, noted):
    assert noted(wrapper["launching"], Kernel()) == [20, 21]


def test_other_threads_are_not_noted(wrapper, noted):
    def both():
        other = threading.Thread(target=wrapper["scaled"], args=([-1], 1))
        other.start()
        other.join()
        wrapper["scaled"]([1], 1)

    assert noted(both) == [2, 3, 4, 6, 7]


def test_after_an_error_nobody_listens_any_more(wrapper, noted):
    with contextlib.suppress(TypeError):
        noted(wrapper["scaled"], [None], 1)
    assert sys.gettrace() is None
    if sys.version_info >= (3, 12):
        assert {sys.monitoring.get_tool(number) for number in (3, 4)} == {None}
    assert noted(wrapper["grid"]) == [24]


def test_a_refusal_is_noted_in_calls_of_a_kind_that_is_followed_no_more(wrapper):
    lines = wrapper_lines.WrapperLines(SourceMap())
    lines._files = frozenset({"wrapper.py"})
    lines._quiet["kind"] = wrapper_lines.QUIET
    with pytest.raises(TypeError), lines.followed("kind"):
        wrapper["scaled"]([None], 1)
    assert lines._ran == {("wrapper.py", 4)}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is of Python 3.12")
def test_from_python_3_12_on_nothing_is_traced(wrapper):
    ran = set()
    with wrapper_lines.follow(frozenset({"wrapper.py"}), ran):
        assert sys.gettrace() is None
        wrapper["scaled"]([1], 1)
    assert len(ran) == 5

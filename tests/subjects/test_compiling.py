"""While a kernel is compiled, others see it."""

import os
import sys
import types
from pathlib import Path

import pytest

from verifier.machine.culprit import is_own
from verifier.subjects import compiling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lists processes so")


def seen():
    return compiling.any_compiles([os.getpid()])


def test_a_process_is_marked_while_it_compiles_and_has_its_name_back_whatever_happens():
    name = Path("/proc/self/comm").read_text()
    assert not seen()
    with compiling.marked():
        assert seen()
    with pytest.raises(KeyError), compiling.marked():
        raise KeyError
    assert not seen()
    assert Path("/proc/self/comm").read_text() == name


def test_triton_marks_once_and_only_where_it_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "triton.compiler", raising=False)
    compiling.mark_triton()
    module = types.ModuleType("triton.compiler")
    module.compile = lambda source: (source, seen())
    monkeypatch.setitem(sys.modules, "triton.compiler", module)
    compiling.mark_triton()
    marking = module.compile
    compiling.mark_triton()
    assert module.compile is marking
    assert marking("source") == ("source", True)
    assert not seen()


def test_a_process_that_is_gone_compiles_nothing():
    assert not compiling.any_compiles([2**22 + 1])


def test_what_a_compiler_refuses_is_the_kernels_doing_and_not_ours():
    def refusing(_source):
        raise ValueError(_source)

    with pytest.raises(ValueError, match="kernel") as caught:
        compiling.marking(refusing)("kernel")
    # The innermost frame is this test's here, Triton's otherwise: it must not matter.
    below = caught.value.with_traceback(without_last(caught.value.__traceback__))
    assert not is_own(below)


def without_last(traceback):
    """Return a traceback without its innermost frame."""
    rest = None if traceback.tb_next is None else without_last(traceback.tb_next)
    if traceback.tb_next is None:
        return None
    return types.TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)

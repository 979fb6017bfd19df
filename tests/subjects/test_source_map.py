"""What stands in the sources of a subject is found by reading them, whatever leads to it."""

import ast
import os
import sys

import pytest

from verifier.audit.rules import reach_suffices
from verifier.records.reach import Reach
from verifier.subjects.cuda_outline import included, outline_of
from verifier.subjects.function_nodes import node_of
from verifier.subjects.load_file import load_subjects
from verifier.subjects.source_map import source_map

DECLARED = 'op="softmax", language="{}", variance="softmax", dtypes=("float32",)'

TRITON = """
import functools
import contextlib
import torch, triton
import triton.language as tl
from verifier import subject

@triton.autotune(configs=[triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def in_a_table(x, n, BLOCK: tl.constexpr):
    while n > 0:
        n -= called(n)

@triton.jit
def called(n):
    for i in tl.static_range(2):
        n += i
    return n

@triton.jit
def in_an_object(x):
    pass

@triton.jit
def in_a_default(x):
    pass

@triton.jit
def in_a_partial(x):
    pass

@triton.jit
def of_another_subject(x):
    pass

class Holder:
    def __init__(self):
        self.kernel = in_an_object

    def launch(self, x):
        self.kernel[(1,)](x)

TABLE = {"in_a_table": [in_a_table]}
HOLDER = Holder()
PARTIAL = functools.partial(in_a_partial, 1)

class Function(torch.autograd.Function):
    size = 3

    @staticmethod
    def forward(ctx, x, kernel=in_a_default):
        '''A docstring is no statement.'''
        if x is None:
            text = "refused"
            raise ValueError(
                text
            )
        elif x.dim() > 4:
            return None
        with contextlib.suppress(ValueError):
            TABLE["in_a_table"][0][(1,)](
                x,
                3,
            )
        def inner(y):
            return y
        return HOLDER.launch(x), PARTIAL

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return grad

@subject(DECLARED)
def first(input, dim=-1):
    return Function.apply(input)

@subject(DECLARED)
def second(input, dim=-1):
    of_another_subject[(1,)](input)
    return input
"""


@pytest.fixture
def subjects(tmp_path):
    pytest.importorskip("triton")
    path = tmp_path / "kernels.py"
    path.write_text(TRITON.replace("DECLARED", DECLARED.format("triton")))
    return load_subjects(path)


def names(places):
    return {one.place.function for one in places}


def test_kernels_are_found_through_tables_objects_defaults_and_partials(subjects):
    first, second = map(source_map, subjects)
    held = {"in_a_table", "called", "in_an_object", "in_a_default", "in_a_partial"}
    assert names(first.functions) == held
    assert {f.place.function for f in first.functions if not f.entry} == {"called"}
    assert names(second.functions) == {"of_another_subject"}
    assert {(one.place.function, one.unrolled) for one in first.loops} == {
        ("in_a_table", False),
        ("called", True),
    }


def test_statements_are_those_of_functions_that_are_used_each_once(subjects):
    lines = TRITON.splitlines()
    found = source_map(subjects[0]).statements
    assert names(found) >= {"Function.forward", "Function.backward", "Holder.launch", "first"}
    assert "Holder" not in names(found)
    forward = {lines[s.place.line - 1].strip(): s for s in found if s.place.function == "Function.forward"}
    assert list(forward) == [
        "if x is None:",
        'text = "refused"',
        "raise ValueError(",
        "elif x.dim() > 4:",
        "return None",
        "with contextlib.suppress(ValueError):",
        'TABLE["in_a_table"][0][(1,)](',
        "def inner(y):",
        "return HOLDER.launch(x), PARTIAL",
    ]
    assert [text for text, s in forward.items() if s.refuses] == ['text = "refused"', "raise ValueError("]
    assert len(forward["raise ValueError("].lines) == 3


def test_objects_that_cannot_be_looked_at_leave_the_sources_unread(tmp_path):
    path = tmp_path / "strange.py"
    path.write_text(
        "from verifier import subject\n"
        "class Strange:\n"
        "    def __getattr__(self, name):\n"
        "        raise RuntimeError('leave me alone')\n"
        "STRANGE = Strange()\n"
        f"@subject({DECLARED.format('torch')})\n"
        "def kernel(input, dim=-1):\n"
        "    return STRANGE\n"
    )
    (found,) = load_subjects(path)
    sources = source_map(found)
    assert "leave me alone" in sources.unread
    assert sources.functions == ()


INSIDE = """
import triton
@triton.jit
def forward(x):
    pass
@triton.jit
def backward(x):
    pass
@triton.jit
def unused(x):
    pass
"""

IMPORTER = """
from verifier import subject

class Holder:
    __slots__ = ("impl",)

    def __init__(self):
        from package_of_kernels import inside
        self.impl = inside.forward[(1,)]

@subject(DECLARED)
def kernel(input, dim=-1):
    BODY
"""
FOLLOWED = {
    "from package_of_kernels.inside import forward; forward[(1,)](input)": {"forward"},
    "import package_of_kernels.inside; package_of_kernels.inside.backward[(1,)](input)": {"backward"},
    "from package_of_kernels import entry; entry.launch(input)": {"backward"},
    "return Holder().impl(input)": {"forward"},
}
ASKS_FOR_A_DEVICE = """
import torch
if torch.cuda.get_device_properties(torch.cuda.current_device()).warp_size != 32:
    raise ImportError("no other warps")
from .inside import forward
"""
OF_TORCH_LIBRARY = """
import torch
from .inside import backward
@torch.library.custom_op("package_of_kernels::norm", mutates_args=())
def norm(x: torch.Tensor) -> torch.Tensor:
    return backward[(1,)](x)
"""
VERSION = "import importlib; p = importlib.import_module(input.name); v = p.__version__"
FOLLOWED |= {
    "from package_of_kernels.asks import forward; forward[(1,)](input)": {"forward"},
    "from package_of_kernels.of_library import norm; norm(input)": {"backward"},
    f"{VERSION}, getattr(p, '__file__', None); return Holder().impl(input)": {"forward"},
}
UNKNOWN = {
    "from package_of_kernels import entry; entry.by_name('forward')(input)": "getattr(inside, name)",
    "import importlib; importlib.import_module(input.name).forward(input)": "import_module(input.name)",
    f"{VERSION}, getattr(p, 'forward'); Holder()": "import_module(input.name)",
    f"{VERSION}, getattr(p, '__dict__'); Holder()": "import_module(input.name)",
    "globals()[input.name](input); Holder()": "globals()[input.name]",
    "import torch; torch.ops.own.norm(input); Holder()": "torch.ops.own",
    "from package_of_kernels.fails import forward; forward[(1,)](input)": "fails, which raises ValueError",
}


def importer(folder, body):
    pytest.importorskip("triton")
    package = folder / "package_of_kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inside.py").write_text(INSIDE)
    (package / "asks.py").write_text(ASKS_FOR_A_DEVICE)
    (package / "of_library.py").write_text(OF_TORCH_LIBRARY)
    (package / "fails.py").write_text("raise ValueError('with or without a device')\n")
    (package / "entry.py").write_text(
        "from . import inside\n"
        "def launch(x):\n    from .inside import backward as chosen\n    return chosen[(1,)](x)\n"
        "def by_name(name):\n    return launch or getattr(inside, name)\n"
    )
    path = folder / "importer.py"
    path.write_text(IMPORTER.replace("DECLARED", DECLARED.format("triton")).replace("BODY", body))
    (found,) = load_subjects(path)
    return source_map(found)


@pytest.fixture
def folder_of_packages(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("package_of_kernels")]:
        del sys.modules[name]


@pytest.mark.parametrize("body", FOLLOWED)
def test_what_a_function_imports_inside_is_followed(folder_of_packages, body):
    sources = importer(folder_of_packages, body)
    assert sources.unread == ""
    assert names(sources.functions) == FOLLOWED[body]


@pytest.mark.parametrize("body", UNKNOWN)
def test_a_computed_name_leaves_it_unknown_what_else_there_is(folder_of_packages, body):
    sources = importer(folder_of_packages, body)
    assert UNKNOWN[body] in sources.unread
    assert not reach_suffices(sources, Reach(recorded=frozenset({"code", "lines"})), 0.0)


def test_a_kernel_that_nothing_names_leaves_the_sources_unread(tmp_path):
    path = tmp_path / "hidden.py"
    path.write_text(
        "from verifier import subject\n"
        f"@subject({DECLARED.format('triton')})\n"
        "def kernel(input, dim=-1):\n"
        "    from elsewhere import launch\n"
        "    return launch(input)\n"
    )
    (found,) = load_subjects(path)
    sources = source_map(found)
    assert "they name no kernel" in sources.unread
    assert not reach_suffices(sources, Reach(recorded=frozenset({"code", "lines"})), 0.0)


CUDA = r"""
#include "beside.cuh"
#define LOOP for (int i = 0; i < 3; ++i) { \
    more(); }
// for (;;) {}
/* __global__ void in_a_comment() { while (1) {} } */
__device__ int declared(int);
__device__ float variable = 3.0f;
const char* text = "__global__ void in_a_string() {";

struct Sum {
  __device__ float operator()(float a) const { return a; }
};

template <typename T, int N = 1'000>
__global__ void __launch_bounds__(128) kernel(T* x, int n) {
  for (int i = 0; i < n;
       ++i) {
    for (int k = 0; k < N; ++k) x[k] += T(1);
  }
  do {
    n -= 1;
  } while (n > 0);
  while (n < 4)
    ++n;
}
"""


def test_a_cuda_source_is_read_with_what_it_includes(tmp_path):
    (tmp_path / "kernel.cu").write_text(CUDA)
    (tmp_path / "beside.cuh").write_text("#pragma once\n__device__ int helper() {\n  return 1;\n}\n")
    source, beside = included([str(tmp_path / "kernel.cu")])
    outline = outline_of(source)
    lines = CUDA.splitlines()
    assert [(f.name, f.entry) for f in outline.functions] == [("operator()", False), ("kernel", True)]
    assert [f.name for f in outline_of(beside).functions] == ["helper"]
    assert [(lines[one.line - 1].strip(), len(one.head), len(one.body)) for one in outline.loops] == [
        ("for (int i = 0; i < n;", 2, 3),
        ("for (int k = 0; k < N; ++k) x[k] += T(1);", 1, 1),
        ("do {", 1, 3),
        ("while (n < 4)", 1, 1),
    ]
    assert {one.function for one in outline.loops} == {"kernel"}
    assert outline.functions[1].lines[-1] == len(lines)


def test_a_function_is_one_object_while_its_file_is_the_same_and_another_as_soon_as_it_is_written(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("def one():\n    def two():\n        return 2\n")
    os.utime(file, (1e9, 1e9))  # long ago
    before = node_of(str(file), 1)
    assert before is node_of(str(file), 1) is not None
    assert [node_of(str(file), line) is None for line in (1, 2, 3)] == [False, False, True]
    file.write_text("def one():\n    return 1\n")
    assert ast.unparse(node_of(str(file), 1)) == "def one():\n    return 1"
    file.write_text("def one():\n    return 2\n")  # as long, and written at once
    assert ast.unparse(node_of(str(file), 1)) == "def one():\n    return 2"
    file.unlink()
    assert node_of(str(file), 1) is None

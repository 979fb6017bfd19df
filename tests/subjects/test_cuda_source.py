"""The CUDA C++ loader: names, signatures, arguments, compilation and its cache."""

import contextlib
import ctypes
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from verifier import machine, source
from verifier.subjects import cuda_source, nvrtc
from verifier.subjects.nvrtc import CompilationError, MissingCompilerError, Parameter

SCALE = """
#include "scale.cuh"
template <typename T>
__global__ void scale(const T* input, T* output, float factor, double shift, int count,
                      long long step, bool go) {
  if (!go || threadIdx.x >= count) return;
  output[threadIdx.x] = T(scaled(float(input[threadIdx.x * step]), factor) + shift);
}
"""
HEADER = "__device__ inline float scaled(float x, float factor) { return x * factor; }\n"


@pytest.fixture
def module(tmp_path):
    (tmp_path / "scale.cuh").write_text(HEADER)
    (tmp_path / "scale.cu").write_text(SCALE)
    return source(tmp_path / "scale.py")


@pytest.fixture
def launched(monkeypatch):
    """Record launches that would reach the PTX machine."""
    calls = []
    monkeypatch.setattr(
        machine, "launch_ptx", lambda *call, names: calls.append((*call, names)), raising=False
    )
    return calls


# Names


def test_template_arguments_are_spelled_as_cpp(module):
    spelled = module.kernel("f", torch.float16, torch.bfloat16, torch.float64, 4, True, "Welford").expression
    assert spelled == "f<__half, __nv_bfloat16, double, 4, true, Welford>"
    assert module.kernel("f<float, 4>").expression == "f<float, 4>"


def test_a_template_argument_without_spelling_is_refused(module):
    with pytest.raises(TypeError, match="int8"):
        module.kernel("f", torch.int8)


# Launch shapes


@pytest.mark.parametrize(
    ("shape", "grid", "block", "shared"),
    [
        ((3, 128), (3, 1, 1), (128, 1, 1), 0),
        (((2, 3), (32, 4), 64), (2, 3, 1), (32, 4, 1), 64),
        ((np.int64(5), (1, 2, 3), 0), (5, 1, 1), (1, 2, 3), 0),
    ],
)
def test_grid_and_block_are_filled_up_to_three(module, shape, grid, block, shared):
    launch = module.kernel("scale<float>")[shape]
    assert (launch.grid, launch.block, launch.shared_bytes) == (grid, block, shared)


@pytest.mark.parametrize("shape", [(0, 32), (1, (32, 0)), (1, (1, 1, 1, 1))])
def test_an_empty_or_overlong_extent_is_refused(module, shape):
    with pytest.raises(ValueError, match="one to three positive extents"):
        module.kernel("scale<float>")[shape]


def test_a_launch_needs_grid_and_block(module):
    with pytest.raises(TypeError, match=r"kernel\[grid, block\]"):
        module.kernel("scale<float>")[3]


# Compilation


@pytest.mark.usefixtures("compiler", "cache_folder")
class TestCompiled:
    def test_ptx_cubin_and_entry_belong_together(self, module):
        compiled = module.kernel("scale", torch.float32).compile(80)
        assert f".entry {compiled.entry}(" in compiled.ptx
        assert ".target sm_80" in compiled.ptx
        assert compiled.cubin.startswith(b"\x7fELF")

    def test_without_machine_code_the_ptx_is_the_same(self, module):
        kernel = module.kernel("scale", torch.float32)
        unassembled = kernel.compile(80, assembled=False)
        assert unassembled.cubin == b""
        assert unassembled == replace(kernel.compile(80), cubin=b"")

    @pytest.mark.parametrize(
        ("before", "statement", "said"),
        [
            ("", 'asm("mov.b31 %0, 0;" : "=r"(x[0]));', r"\.b31"),
            ("__device__ int absent(int);", "x[0] = absent(x[1]);", "Unresolved"),
            ("", "__shared__ volatile int held[12289]; held[x[0]] = 1; x[1] = held[x[2]];", "shared data"),
            ("__constant__ int held[16385];", "x[0] = held[x[1]];", "constant data"),
        ],
    )
    def test_what_only_the_assembler_refuses_is_refused_for_the_machine_too(
        self, tmp_path, before, statement, said
    ):
        (tmp_path / "bad.cu").write_text(f"{before}\n__global__ void k(int* x) {{ {statement} }}\n")
        with machine.session(), pytest.raises(CompilationError, match=said):
            source(tmp_path / "bad.py").kernel("k")[1, 1](torch.zeros(3, dtype=torch.int32))

    def test_lines_of_the_source_are_in_the_ptx(self, module):
        compiled = module.kernel("scale", torch.float32).compile()
        assert str(module.path) in compiled.ptx
        assert ".loc" in compiled.ptx

    def test_the_signature_is_read_off(self, module):
        kinds = [(p.kind, p.bits) for p in module.kernel("scale", torch.float32).compile().parameters]
        assert kinds == [("u", 64), ("u", 64), ("f", 32), ("f", 64), ("u", 32), ("u", 64), ("u", 8)]

    def test_a_structure_by_value_is_refused(self, tmp_path):
        (tmp_path / "pair.cu").write_text(
            "struct P { int a[3]; }; __global__ void k(P p, int* o) { *o = p.a[1]; }"
        )
        with pytest.raises(TypeError, match="structure by value"):
            source(tmp_path / "pair.py").kernel("k").compile()

    def test_a_broken_source_is_reported_with_name_and_line(self, tmp_path):
        (tmp_path / "broken.cu").write_text("__global__ void k(float* x) {\n  *x = missing;\n}\n")
        """The first line names the first error: a refusal, for one, shows no more of a message."""
        with pytest.raises(
            CompilationError, match=r"^broken\.cu: k does not compile: .*\(2\): error.*missing"
        ):
            source(tmp_path / "broken.py").kernel("k").compile()

    def test_a_broken_source_is_compiled_once(self, tmp_path, monkeypatch):
        (tmp_path / "broken.cu").write_text("__global__ void k(float* x) {\n  *x = missing;\n}\n")
        broken, compiled = source(tmp_path / "broken.py").kernel("k"), []
        real = cuda_source.compile_cached
        monkeypatch.setattr(
            cuda_source, "compile_cached", lambda *a, **k: compiled.append(a) or real(*a, **k)
        )
        for _ in range(2):
            with pytest.raises(CompilationError, match="missing"):
                broken.compile()
        assert len(compiled) == 1

    def test_an_unknown_kernel_is_reported(self, module):
        with pytest.raises(CompilationError, match="nowhere"):
            module.kernel("nowhere<float>").compile()

    def test_a_missing_cuda_header_names_the_packages(self, tmp_path, monkeypatch):
        nvrtc._nvrtc()  # found before the headers are hidden
        monkeypatch.setattr(nvrtc, "_header_folders", list)
        (tmp_path / "half.cu").write_text("#include <cuda_fp16.h>\n__global__ void k(__half* x) { }")
        with pytest.raises(CompilationError, match="nvidia-cuda-runtime"):
            source(tmp_path / "half.py").kernel("k").compile()

    def test_a_missing_file_is_reported(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="absent"):
            source(tmp_path / "absent.py").kernel("k").compile()


def test_a_missing_compiler_says_what_to_install(module, monkeypatch):
    nvrtc._nvrtc.cache_clear()
    monkeypatch.setattr(nvrtc, "_roots", tuple)
    try:
        with pytest.raises(MissingCompilerError, match=r"norm-verifier\[cuda\](.|\n)*nvidia-cuda-nvrtc"):
            module.kernel("scale<float>").compile()
    finally:
        nvrtc._nvrtc.cache_clear()


# The cache


@pytest.mark.usefixtures("compiler")
class TestCache:
    def compile_again(self, module):
        """Compile through a new Source, which remembers nothing."""
        return source(module.path).kernel("scale", torch.float32).compile()

    def test_the_second_compilation_is_read_from_disk(self, module, cache_folder, monkeypatch):
        first = self.compile_again(module)
        monkeypatch.setattr(nvrtc, "_compile", None)
        assert self.compile_again(module) == first
        assert len(list(cache_folder.iterdir())) == 1

    @pytest.mark.parametrize(
        ("name", "old", "new"), [("scale.cu", "+ shift", "- shift"), ("scale.cuh", "*", "+")]
    )
    def test_an_edited_source_or_header_is_compiled_again(self, module, cache_folder, name, old, new):
        first = self.compile_again(module)
        file = module.path.with_name(name)
        file.write_text(file.read_text().replace(old, new))
        assert self.compile_again(module).ptx != first.ptx

    def test_another_architecture_is_another_entry(self, module, cache_folder):
        module.kernel("scale", torch.float32).compile(80)
        module.kernel("scale", torch.float32).compile(90)
        assert len(list(cache_folder.iterdir())) == 2

    def test_a_damaged_entry_is_compiled_again(self, module, cache_folder):
        first = self.compile_again(module)
        (entry,) = cache_folder.iterdir()
        entry.write_text(entry.read_text()[:100])
        assert self.compile_again(module) == first

    def test_a_folder_that_cannot_be_written_is_no_error(self, module, tmp_path, monkeypatch):
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert self.compile_again(module).entry


# Arguments

U32, U64, F32, F64 = (
    Parameter(kind=k, bits=b, pointer=False) for k, b in (("u", 32), ("u", 64), ("f", 32), ("f", 64))
)


def convert(parameter, argument):
    return cuda_source._convert("k", (parameter,), (argument,))[0]


@pytest.mark.parametrize(
    ("parameter", "argument", "expected"),
    [
        (U32, 7, np.uint32(7)),
        (U32, -1, np.uint32(2**32 - 1)),
        (U64, -4, np.uint64(2**64 - 4)),
        (U64, 2**40, np.uint64(2**40)),
        (F32, 1e-5, np.float32(1e-5)),
        (F32, 3, np.float32(3)),
        (F64, 1e-5, np.float64(1e-5)),
        (U32, np.int32(-2), np.uint32(2**32 - 2)),
        (U64, ctypes.c_int64(9), np.uint64(9)),
        (F32, ctypes.c_float(0.5), np.float32(0.5)),
        (U64, None, np.uint64(0)),
    ],
)
def test_a_number_takes_the_type_of_its_parameter(parameter, argument, expected):
    converted = convert(parameter, argument)
    assert converted == expected
    assert converted.dtype == expected.dtype


@pytest.mark.parametrize(
    ("parameter", "argument", "message"),
    [
        (U32, 1.5, "integer of 32 bits, not float"),
        (U32, np.int64(1), "32 bits; the scalar given has 64"),
        (F64, np.float32(1), "64 bits; the scalar given has 32"),
        (U32, torch.zeros(1), "not a pointer"),
        (F64, None, "not a pointer"),
        (Parameter(kind="u", bits=64, pointer=True), 5, "is a pointer"),
    ],
)
def test_an_argument_of_another_type_is_refused(parameter, argument, message):
    with pytest.raises(TypeError, match=message):
        convert(parameter, argument)


@pytest.mark.parametrize(("parameter", "argument"), [(U32, 2**32), (U32, -(2**31) - 1), (U64, 2**64)])
def test_an_integer_that_does_not_fit_is_refused(parameter, argument):
    with pytest.raises(OverflowError, match="does not fit"):
        convert(parameter, argument)


def test_the_number_of_arguments_is_checked():
    with pytest.raises(TypeError, match="k takes 1 arguments, not 2"):
        cuda_source._convert("k", (U32,), (1, 2))


def test_parameter_names_are_read_through_a_macro(tmp_path):
    (tmp_path / "k.cuh").write_text("#define PARAMETERS(T) \\\n  const T *input, \\\n  int rows\n")
    (tmp_path / "k.cu").write_text(
        '#include "k.cuh"\ntemplate <typename T>\n__global__ void __launch_bounds__(128)\n'
        "    k(PARAMETERS(T)) {\n}\n"
    )
    kernel = source(tmp_path / "k.py").kernel("k<float>")
    assert kernel.parameter_names([0, 0]) == ["input", "rows"]
    assert kernel.parameter_names([0]) is None


# Launches


@pytest.mark.usefixtures("compiler", "cache_folder")
def test_cpu_tensors_go_to_the_machine_with_typed_arguments(module, launched):
    before = cuda_source.launches()
    x = torch.zeros(4)
    module.kernel("scale", torch.float32)[2, (4, 1), 16](x, x, 0.5, 0.25, 4, -1, True)
    ((ptx, entry, grid, block, shared, arguments, names),) = launched
    assert f".entry {entry}(" in ptx
    assert (grid, block, shared) == ((2, 1, 1), (4, 1, 1), 16)
    assert arguments[0] is x
    assert [a.dtype.name for a in arguments[2:]] == ["float32", "float64", "uint32", "uint64", "uint8"]
    assert names == ["input", "output", "factor", "shift", "count", "step", "go"]
    assert cuda_source.launches() == before + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 2), "no tensor"),
        ((torch.zeros(1), torch.zeros(1, device="meta")), "cpu, meta"),
        ((torch.zeros(1, device="meta"),), "not on meta"),
    ],
)
def test_tensors_must_lie_on_one_cpu_or_cuda_device(module, arguments, message):
    with pytest.raises(TypeError, match=message):
        module.kernel("scale", torch.float32)[1, 1](*arguments)


class FakeDriver:
    """Stands for cuda.bindings.driver and reads the arguments where the driver would."""

    class CUfunction_attribute:
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1

    class Status(int):
        name = "CUDA_ERROR_INVALID_VALUE"

    def __init__(self, status=0, declared=0):
        self.status, self.calls, self.current = self.Status(status), [], None
        self.declared = declared

    def cuInit(self, flags):
        return (self.Status(0),)

    def cuDeviceGet(self, ordinal):
        return self.Status(0), ordinal

    def cuDevicePrimaryCtxRetain(self, device):
        return self.Status(0), ("context", device)

    def cuCtxSetCurrent(self, context):
        assert context == ("context", 0)
        self.current = context
        return (self.Status(0),)

    def cuModuleLoadData(self, image):
        assert self.current, "the driver refuses to load code without a context"
        return self.Status(0), ("module", image)

    def cuModuleGetFunction(self, module, name):
        return self.Status(0), (module[1], name)

    def cuFuncGetAttribute(self, attribute, function):
        assert attribute == self.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        return self.Status(0), self.declared

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append((attribute, value))
        return (self.Status(0),)

    def cuLaunchKernel(self, function, *call):
        *shape, stream, parameters, extra = call
        kinds = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_float, ctypes.c_double)
        kinds += (ctypes.c_int32, ctypes.c_int64, ctypes.c_bool)
        where = (ctypes.c_uint64 * len(kinds)).from_address(parameters)
        values = [kind.from_address(at).value for kind, at in zip(kinds, where, strict=True)]
        self.calls.append((function, shape, stream, values, extra))
        return (self.status,)


@pytest.mark.usefixtures("compiler", "cache_folder")
class TestDevice:
    @pytest.fixture
    def launch(self, module, monkeypatch):
        cuda_source._function.cache_clear()
        cuda_source._primary_context.cache_clear()
        monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0x77))
        kernel = module.kernel("scale", torch.float32)
        compiled = kernel.compile()

        def run(driver, shared, *arguments):
            monkeypatch.setattr(cuda_source, "_driver", lambda: driver)
            values = cuda_source._convert("scale", compiled.parameters, arguments)
            cuda_source._launch_on_device(
                compiled, kernel[(2, 3), (32, 4), shared], values, torch.device("cuda")
            )
            return compiled

        yield run
        cuda_source._function.cache_clear()
        cuda_source._primary_context.cache_clear()

    def test_arguments_and_stream_reach_the_driver(self, launch):
        driver, x, y = FakeDriver(), torch.zeros(4), torch.zeros(4)
        compiled = launch(driver, 64, x, y, 0.5, 0.25, -7, -9, True)
        ((function, shape, stream, values, extra),) = driver.calls
        assert function == (compiled.cubin, compiled.entry.encode())
        assert shape == [2, 3, 1, 32, 4, 1, 64]
        assert (stream, extra) == (0x77, 0)
        assert values == [x.data_ptr(), y.data_ptr(), 0.5, 0.25, -7, -9, True]

    def test_much_shared_memory_is_asked_for_first(self, launch):
        driver, x = FakeDriver(), torch.zeros(4)
        launch(driver, 100_000, x, x, 0.5, 0.25, 4, 1, True)
        assert driver.calls[0] == (8, 100_000)
        assert len(driver.calls) == 2

    @pytest.mark.parametrize(("declared", "asked"), [(0, False), (16, True)])
    def test_what_the_kernel_declares_itself_counts(self, launch, declared, asked):
        driver, x = FakeDriver(declared=declared), torch.zeros(4)
        launch(driver, 48 * 1024, x, x, 0.5, 0.25, 4, 1, True)
        assert (driver.calls[0] == (8, 48 * 1024)) is asked

    def test_an_error_of_the_driver_is_raised(self, launch):
        x = torch.zeros(4)
        with pytest.raises(RuntimeError, match="CUDA_ERROR_INVALID_VALUE"):
            launch(FakeDriver(status=1), 0, x, x, 0.5, 0.25, 4, 1, True)

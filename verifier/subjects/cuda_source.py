"""CUDA C++ kernels as Python objects: compiled by NVRTC, launched on a device or in the PTX machine.

    module = source(__file__)                                   # my_kernel.py finds my_kernel.cu
    kernel = module.kernel("row_sum", torch.float16, 4)         # row_sum<__half, 4>
    kernel[rows, 128, shared_bytes](output, input, input.stride(0), columns)

NVRTC needs neither a GPU nor a driver. Tensors in memory of the CPU go to the PTX machine, and so do those
that say "cuda" in a session of it; CUDA tensors go to their device on torch's current stream. Both run the
code of one compilation, which is kept in the user's cache folder: as PTX for the machine, assembled for a
device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from verifier.machine.culprit import passed_on
from verifier.subjects.nvrtc import (
    INSTALL,
    CompilationError,
    CompiledKernel,
    MissingCompilerError,
    Parameter,
    compile_cached,
    parameter_names,
)

if TYPE_CHECKING:
    import torch

Dim3 = tuple[int, int, int]

DEFAULT_ARCHITECTURE: Final = 90
"""Compute capability (times ten) compiled for when neither a device nor a machine session names one."""
STATIC_SHARED_LIMIT: Final = 48 * 1024
"""Bytes of shared memory that a kernel may use without opting in (CUDA C++ Programming Guide)."""
_COUNTER = {"launches": 0}
_CODES: set[tuple[str, str]] = set()


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with its grid, block and dynamic shared memory (bytes): call it with the arguments."""

    kernel: Kernel
    grid: Dim3
    block: Dim3
    shared_bytes: int

    def __call__(self, *arguments: object) -> None:
        """Launch on the device of the tensor arguments, or in the PTX machine if they are on the CPU.

        A tensor or None (a null pointer) stands for a pointer. A Python number takes the type that the
        lowered signature gives its parameter; a numpy or ctypes scalar must have that width.

        Raises:
            TypeError: an argument does not fit its parameter, or the tensors are on several devices.
            OverflowError: an integer does not fit its parameter.
            CompilationError, MissingCompilerError: the kernel could not be compiled.

        """
        device = _device_of(arguments)
        compiled = self.kernel.compile(_architecture(device), assembled=device.type != "cpu")
        values = _convert(self.kernel.expression, compiled.parameters, arguments)
        _COUNTER["launches"] += 1
        _CODES.add((compiled.ptx, compiled.entry))
        if device.type == "cpu":
            from verifier.machine import launch_ptx
            from verifier.machine.in_force import note_launch

            note_launch(compiled.entry, self.grid)
            shape = (self.grid, self.block, self.shared_bytes)
            launch_ptx(
                compiled.ptx, compiled.entry, *shape, values, names=self.kernel.parameter_names(values)
            )
        else:
            _launch_on_device(compiled, self, values, device)


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One specialisation of a `__global__` function, named as C++ names it."""

    source: CudaSource
    expression: str

    def __getitem__(self, shape: tuple[Any, ...]) -> Launch:
        """Choose grid, block and, if any, dynamic shared memory (bytes); extents are 1 to 3 ints."""
        if not isinstance(shape, tuple) or len(shape) not in {2, 3}:
            raise TypeError(f"{self.expression}: launch as kernel[grid, block] or kernel[grid, block, bytes]")
        grid, block = _dim3("grid", shape[0]), _dim3("block", shape[1])
        return Launch(
            kernel=self, grid=grid, block=block, shared_bytes=int(shape[2]) if len(shape) > 2 else 0
        )

    def compile(self, architecture: int = DEFAULT_ARCHITECTURE, *, assembled: bool = True) -> CompiledKernel:
        """Return PTX and cubin for `architecture` (compute capability times ten), from the cache if there.

        assembled: see `compile_cached`.
        """
        return self.source.compiled(self.expression, architecture, assembled=assembled)

    def parameter_names(self, arguments: Sequence[object]) -> list[str] | None:
        """Return the names that the source gives its parameters, for reports; None if they cannot be read."""
        names = parameter_names(self.source.path, self.expression.partition("<")[0])
        return names if len(names) == len(arguments) else None


@dataclass(frozen=True, kw_only=True)
class CudaSource:
    """A `.cu` file; its kernels are compiled on first use, once for each architecture."""

    path: Path
    _memory: dict[tuple[str, int, bool], CompiledKernel | CompilationError] = field(
        default_factory=dict, repr=False, compare=False
    )

    def kernel(self, name: str, *template_arguments: object) -> Kernel:
        """Name a kernel: `kernel("f<float, 4>")` and `kernel("f", torch.float32, 4)` are the same.

        torch dtypes become C++ types, booleans and integers literals; strings are taken as they are.
        """
        if template_arguments:
            name = f"{name}<{', '.join(map(_spell, template_arguments))}>"
        return Kernel(source=self, expression=name)

    def architecture(self, tensor: torch.Tensor) -> int:
        """Return the compute capability, times ten, of what a launch on this tensor would run on."""
        return _architecture(_memory_of(tensor))

    def compiled(self, expression: str, architecture: int, *, assembled: bool = True) -> CompiledKernel:
        """Compile one specialisation, or take it from memory or from the cache folder.

        assembled: see `compile_cached`.

        Raises:
            FileNotFoundError: there is no such `.cu` file.
            CompilationError: NVRTC refused the source.
            MissingCompilerError: NVRTC is not installed.

        """
        key = (expression, architecture, assembled)
        known = self._memory.get(key)
        if known is None:
            try:
                known = compile_cached(self.path, expression, architecture, assembled=assembled)
            except CompilationError as error:
                known = error  # it will not compile next time either
            self._memory[key] = known
        if isinstance(known, CompilationError):
            raise CompilationError(str(known))
        return known


def source(file: str | Path) -> CudaSource:
    """Return the CUDA source beside a Python file: `source(__file__)` finds the `.cu` of the same stem."""
    return CudaSource(path=Path(file).resolve().with_suffix(".cu"))


def launches() -> int:
    """Return how many kernels this process has launched: a refusal comes before the first."""
    return _COUNTER["launches"]


def codes() -> set[tuple[str, str]]:
    """Return PTX and entry of what was launched since the set, which is the caller's to empty, was empty."""
    return _CODES


# Names and arguments


def _spell(argument: object) -> str:
    if isinstance(argument, bool):
        return "true" if argument else "false"
    if isinstance(argument, int):
        return str(argument)
    if isinstance(argument, str):
        return argument
    import torch

    names = {
        torch.float16: "__half",
        torch.bfloat16: "__nv_bfloat16",
        torch.float32: "float",
        torch.float64: "double",
        torch.int32: "int",
        torch.int64: "long long",
    }
    if argument in names:
        return names[argument]
    raise TypeError(f"no C++ spelling is known for the template argument {argument!r}")


def _dim3(what: str, extent: object) -> Dim3:
    extents = (extent,) if isinstance(extent, int | np.integer) else passed_on(tuple, extent)
    whole = [passed_on(int, e) for e in extents]
    if not 1 <= len(whole) <= 3 or any(e < 1 for e in whole):
        raise ValueError(f"{what} must have one to three positive extents, not {extent}")
    x, y, z = (*whole, 1, 1)[:3]
    return x, y, z


def _device_of(arguments: tuple[object, ...]) -> torch.device:
    import torch

    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    devices = {a.device for a in tensors}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "no tensor"
        raise TypeError(f"a launch takes its tensors from one device; it was given {found}")
    device = _memory_of(tensors[0])
    if device.type not in {"cpu", "cuda"}:
        raise TypeError(
            f"CUDA C++ runs on cuda tensors, or on cpu tensors in the PTX machine, not on {device}"
        )
    return device


def _memory_of(tensor: torch.Tensor) -> torch.device:
    """Return where the bytes of a tensor lie: those of the machine's device lie in memory of the CPU."""
    from verifier.machine.device.tensor_places import memory_of

    return memory_of(tensor)


def _architecture(device: torch.device) -> int:
    import torch

    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return major * 10 + minor
    from verifier.machine import current

    session = current()
    return session.machine.architecture if session is not None else DEFAULT_ARCHITECTURE


def _convert(name: str, parameters: tuple[Parameter, ...], arguments: tuple[object, ...]) -> list[object]:
    if len(parameters) != len(arguments):
        raise TypeError(f"{name} takes {len(parameters)} arguments, not {len(arguments)}")
    return [
        _argument(f"argument {i} of {name}", parameter, argument)
        for i, (parameter, argument) in enumerate(zip(parameters, arguments, strict=True))
    ]


def _argument(what: str, parameter: Parameter, argument: object) -> object:
    """Return a tensor as it is and everything else as the numpy scalar of the parameter's width."""
    import torch

    if isinstance(argument, torch.Tensor) or argument is None:
        if parameter.bits != 64 or parameter.kind == "f":
            raise TypeError(f"{what} is a {parameter.kind}{parameter.bits}, not a pointer")
        return np.uint64(0) if argument is None else argument
    if parameter.pointer:
        raise TypeError(f"{what} is a pointer: pass a tensor or None, not {type(argument).__name__}")
    if isinstance(argument, ctypes._SimpleCData):
        _same_width(what, parameter, ctypes.sizeof(argument))
        argument = argument.value
    elif isinstance(argument, np.generic):
        _same_width(what, parameter, argument.itemsize)
        argument = argument.item()
    if parameter.kind == "f":
        return passed_on(np.float32 if parameter.bits == 32 else np.float64, argument)
    if not isinstance(argument, int):
        raise TypeError(f"{what} is an integer of {parameter.bits} bits, not {type(argument).__name__}")
    if not -(1 << (parameter.bits - 1)) <= argument < 1 << parameter.bits:
        raise OverflowError(f"{what}: {argument} does not fit {parameter.bits} bits")
    return np.dtype(f"u{parameter.bits // 8}").type(argument & ((1 << parameter.bits) - 1))


def _same_width(what: str, parameter: Parameter, size: int) -> None:
    if size * 8 != parameter.bits:
        raise TypeError(f"{what} has {parameter.bits} bits; the scalar given has {size * 8}")


# A real device


def _launch_on_device(
    compiled: CompiledKernel, launch: Launch, values: list[object], device: torch.device
) -> None:
    import torch

    driver = _driver()
    scalars = [
        np.array([v.data_ptr()], dtype=np.uint64) if isinstance(v, torch.Tensor) else np.array([v])
        for v in values
    ]
    pointers = np.array([s.ctypes.data for s in scalars], dtype=np.uint64)
    with torch.cuda.device(device):
        _make_current(driver, torch.cuda.current_device())
        function = _function(compiled.entry, compiled.cubin, torch.cuda.current_device())
        size = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        declared = _succeed(driver.cuFuncGetAttribute(size, function))  # by the kernel's own variables
        if declared + launch.shared_bytes > STATIC_SHARED_LIMIT:
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _succeed(driver.cuFuncSetAttribute(function, limit, launch.shared_bytes))
        stream = torch.cuda.current_stream().cuda_stream
        shape = (*launch.grid, *launch.block, launch.shared_bytes)
        _succeed(driver.cuLaunchKernel(function, *shape, stream, pointers.ctypes.data, 0))


def _make_current(driver: Any, device_index: int) -> None:
    """Make torch's context current in this thread: the driver API asks for it, and torch may not have yet."""
    _succeed(driver.cuCtxSetCurrent(_primary_context(device_index)))


@cache
def _primary_context(device_index: int) -> object:
    driver = _driver()
    _succeed(driver.cuInit(0))
    return _succeed(driver.cuDevicePrimaryCtxRetain(_succeed(driver.cuDeviceGet(device_index))))


@cache
def _function(entry: str, cubin: bytes, device_index: int) -> object:  # noqa: ARG001 (a module belongs to a device)
    driver = _driver()
    module = _succeed(driver.cuModuleLoadData(cubin))
    return _succeed(driver.cuModuleGetFunction(module, entry.encode()))


def _driver() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as missing:
        raise MissingCompilerError(
            f"launching CUDA C++ needs the package cuda-bindings: {INSTALL}"
        ) from missing
    return driver


def _succeed(answer: tuple[Any, ...]) -> Any:
    status, *results = answer
    if int(status):
        raise RuntimeError(f"the CUDA driver answers {status.name}")
    return results[0] if results else None


__all__ = ["CudaSource", "Kernel", "Launch", "codes", "launches", "source"]

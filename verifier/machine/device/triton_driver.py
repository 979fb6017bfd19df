"""A Triton driver whose device is the machine: unmodified kernels launched on CPU tensors run in it."""

# ruff: noqa: PLR0917 - Triton calls its launcher by position

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from math import prod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, Self

from verifier.machine.culprit import passed_on
from verifier.machine.device.launch import launch_ptx
from verifier.machine.device.masked_loads import filled, unfilled_loads
from verifier.machine.device.streams import current_stream
from verifier.machine.device.torch_cuda import exchange_device
from verifier.machine.execute.clusters import MAX_CLUSTER
from verifier.machine.execute.findings import LaunchError, UnsupportedFeature
from verifier.machine.in_force import MachineSession, current
from verifier.machine.model import MAX_THREADS
from verifier.machine.ptx.parser import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from verifier.machine.model import Machine, MaskedFill

_MAX_REGISTERS = 65536


class _Properties(dict[str, int]):
    """Properties that count in the session how often the number of multiprocessors is read."""

    def __getitem__(self, name: str) -> int:
        """Return a property."""
        if name == "multiprocessor_count":
            _session().asked_processors += 1
        return super().__getitem__(name)


class Utilities:
    """What Triton asks of a CUDA driver about binaries and devices."""

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[object, ...]:
        """Give (module, function, registers, spills, largest block); nothing has to be loaded."""
        return SimpleNamespace(name=name), name, 32, 0, MAX_THREADS

    def unload_module(self, module: object) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Answer with the properties of the session's machine."""
        machine = _session().machine
        return _Properties(
            {
                "max_shared_mem": machine.max_shared(),
                "max_num_regs": _MAX_REGISTERS,
                "multiprocessor_count": machine.multiprocessors,
                "warpSize": 32,
                "sm_clock_rate": 1_755_000,
                "mem_clock_rate": 2_619_000,
                "mem_bus_width": 5120,
            }
        )

    def set_printf_fifo_size(self, size: int) -> None:
        """Nothing is printed."""


class DeviceNumber(int):
    """The number of a device, with what code is compiled for: architecture and fill of masked loads."""

    compiled_for: tuple[int, MaskedFill | None]

    def __new__(cls, number: int, machine: Machine) -> Self:
        """Keep with the number what the machine's code is compiled for."""
        made = super().__new__(cls, number)
        made.compiled_for = machine.architecture, machine.masked_fill
        return made

    def __eq__(self, other: object) -> bool:
        """Compare with numbers as a number, with its like by what is compiled for, too."""
        same = getattr(other, "compiled_for", self.compiled_for) == self.compiled_for
        return same and int.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        """Differ where not equal."""
        return not self == other

    def __hash__(self) -> int:
        """Hash by both, as its likes compare."""
        return hash((int(self), self.compiled_for))


class MachineDriver:
    """Stands where Triton's CUDA driver stands."""

    def __init__(self) -> None:
        """Offer what `triton.runtime.driver.active` is asked for."""
        self.utils = Utilities()
        self.launcher_cls = Launcher
        self.get_current_stream: Callable[[int], int] = lambda device: current_stream(device).cuda_stream
        self.set_current_device: Callable[[int], object] = exchange_device

    @classmethod
    def is_active(cls) -> bool:
        """Never chosen unasked."""
        return False

    def get_current_device(self) -> int:
        """Device number, which as a key tells compiled code apart: Triton keeps one target for a device."""
        opened = _session()
        return DeviceNumber(opened.current_device, opened.machine)

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        """Compute capability as (major, minor)."""
        return divmod(_session().machine.architecture, 10)

    def get_current_target(self) -> object:
        """Give the target that kernels are compiled for."""
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", _session().machine.architecture, 32)

    def get_active_torch_device(self) -> object:
        """Give the current device."""
        import torch

        return torch.device("cuda", _session().current_device)

    def get_device_interface(self) -> object:
        """`torch.cuda`, as the session redirects it."""
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable[..., object]:
        """Refuse to measure: times on the machine mean nothing."""
        return lambda kernel_call, *, quantiles, **kwargs: [1.0] * len(quantiles)

    def map_python_to_cpp_type(self, ty: str) -> str:
        """Type names of Triton, used by code that prints signatures."""
        return ty

    def assemble_tensormap_to_arg(self, tensormaps_info: object, args: object) -> object:
        """Leave arguments as they are."""
        return args

    def allocate_default_profile_scratch(self, size: int, alignment: int, stream: object) -> object:
        """Zeroed scratch memory."""
        import torch

        del alignment, stream  # Triton's driver calls by position; NumPy memory needs neither
        return torch.zeros(size, dtype=torch.int8)


class KernelSource(Protocol):
    """What Triton knows of a kernel before it is compiled: its name and the types of its arguments."""

    name: str
    signature: Mapping[str, object]


class KernelMetadata(Protocol):
    """What Triton's compiler says of a kernel, as far as every version does."""

    name: str
    hash: str
    num_warps: int
    shared: int


class Launcher:
    """Launches one compiled kernel with bound arguments."""

    def __init__(self, src: KernelSource, metadata: KernelMetadata) -> None:
        """Keep the signature; the code is read when first needed."""
        self.src, self.metadata = src, metadata
        self.types = list(src.signature.values())
        self.argument_names = list(src.signature)

    @cached_property
    def ptx(self) -> str:
        """Give the compiled kernel's PTX, from Triton's own cache."""
        return self._kept(".ptx", "the PTX")

    @cached_property
    def unfilled(self) -> tuple[str, ...]:
        """Say where the kernel loads what is undefined in some lanes."""
        return unfilled_loads(self._kept(".ttir", "its first form of the kernel"))

    def _kept(self, ending: str, what: str) -> str:
        from pathlib import Path

        from triton.runtime.cache import get_cache_manager

        group = get_cache_manager(self.metadata.hash).get_group(f"{self.src.name[:150]}.json") or {}
        found = [path for name, path in group.items() if name.endswith(ending)]
        if not found:
            lost = f"{what}, which Triton did not keep (TRITON_STORE_BINARY_ONLY?)"
            raise UnsupportedFeature(lost, self.metadata.name)
        return Path(found[0]).read_text(encoding="utf-8")

    def __call__(
        self, gridX: int, gridY: int, gridZ: int, stream: object, function: Any, kernel_metadata: Any,
        launch_metadata: Any, launch_enter_hook: Any, launch_exit_hook: Any, *args: Any,
    ) -> None:  # fmt: skip
        """Execute the kernel; called by Triton in place of its C launcher."""
        opened, kernel = _session(), self.metadata.name
        grid = (gridX * getattr(self.metadata, "num_ctas", 1), gridY, gridZ)
        _refuse_host(opened, self.argument_names, args)
        opened.launches.append((kernel, grid))
        if launch_enter_hook is not None:
            launch_enter_hook(launch_metadata)
        with opened.remembering():
            names, values = self.arguments(kernel, grid, args)
            self.execute(kernel, grid, values, names, opened)
        if launch_exit_hook is not None:
            launch_exit_hook(launch_metadata)

    def arguments(
        self, kernel: str, grid: tuple[int, int, int], args: Sequence[object]
    ) -> tuple[list[str], list[object]]:
        """Give names and values of the PTX parameters.

        Raises UnsupportedFeature for a launch of large clusters, or with tensor descriptors.
        """
        blocks = getattr(self.metadata, "num_ctas", 1)
        if blocks > MAX_CLUSTER:  # Triton asks some devices for more
            raise UnsupportedFeature(f"thread-block clusters of {blocks} blocks", kernel)
        names, values = flatten(self.argument_names, self.types, args)
        parameters = parsed(self.ptx).functions[kernel].parameters
        missing = len(parameters) - len(values)
        scratch = self.scratch(passed_on(prod, grid))
        values += scratch[:missing] + [None] * (missing - 2)
        names += ["global scratch", "profile scratch"][:missing]
        return names, values

    def execute(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        values: list[object],
        names: list[str],
        opened: MachineSession,
    ) -> None:
        """Hand over to the machine."""
        opened.unfilled.update(dict.fromkeys(self.unfilled))
        if getattr(self.metadata, "launch_pdl", False):
            opened.early.add((self.ptx, kernel))
        launch_ptx(
            self.ptx,
            kernel,
            grid,
            (32 * self.metadata.num_warps, 1, 1),
            self.metadata.shared,
            values,
            names=names,
            replicated=True,
            session=opened,
        )

    def scratch(self, blocks: int) -> list[object]:
        """Scratch memory that the kernel asked for, global and for profiling."""
        import torch

        sizes = (
            getattr(self.metadata, "global_scratch_size", 0),
            getattr(self.metadata, "profile_scratch_size", 0),
        )
        return [torch.zeros(blocks * size, dtype=torch.int8) if size else None for size in sizes]


def flatten(
    names: Sequence[str], types: Sequence[object], values: Sequence[Any]
) -> tuple[list[str], list[object]]:
    """Drop constants and unpack tuples, as the order of PTX parameters requires."""
    flat_names: list[str] = []
    flat_values: list[object] = []
    for name, kind, value in zip(names, types, values, strict=True):
        if isinstance(kind, tuple):
            inner = flatten([f"{name}[{n}]" for n in range(len(kind))], kind, value)
            flat_names += inner[0]
            flat_values += inner[1]
        elif kind != "constexpr":
            if isinstance(kind, str) and kind.startswith("tensordesc"):
                raise UnsupportedFeature(f"tensor descriptors (TMA), as argument {name}")
            flat_names.append(name)
            flat_values.append(_plain(value))
    return flat_names, flat_values


def _refuse_host(opened: MachineSession, names: Sequence[str], values: Sequence[object]) -> None:
    """Raise what Triton's launcher raises for memory that a device does not reach."""
    if not opened.strict:
        return
    import torch

    for number, (name, value) in enumerate(zip(names, map(_plain, values), strict=True)):
        if isinstance(value, tuple):
            _refuse_host(opened, [f"{name}[{n}]" for n in range(len(value))], value)
        elif isinstance(value, torch.Tensor) and not (value.is_cuda or value.is_pinned()):
            raise ValueError(
                f"Pointer argument (at {number}) cannot be accessed from Triton (cpu tensor?): {name}"
            )


def _plain(value: object) -> object:
    """Give the tensor inside Triton's wrappers."""
    inner = getattr(value, "base", None)
    if hasattr(value, "data_ptr") and not hasattr(value, "untyped_storage") and inner is not None:
        return inner
    return value


def _session() -> MachineSession:
    opened = current()
    if opened is None:
        raise LaunchError("a Triton kernel was launched on the machine outside `machine.session(...)`")
    return opened


@contextmanager
def installed() -> Iterator[None]:
    """Make the machine Triton's active driver, and autotuners choose without measuring."""
    from triton.runtime.driver import driver

    from verifier.machine.device.autotuners import choosing
    from verifier.machine.device.triton_cache import keyed_by_file, written_without_waiting
    from verifier.machine.device.without_assembly import left_out

    before = driver._active
    driver.set_active(MachineDriver())
    try:
        with choosing(), left_out(), keyed_by_file(), written_without_waiting(), filled():
            yield
    finally:
        driver._active = before

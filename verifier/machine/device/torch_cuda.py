"""What `torch.cuda` and `torch.accelerator` answer while a machine is in force."""

# ruff: noqa: PLW0108 - answers take the arguments of torch's functions, and each has one of its own

from __future__ import annotations

import inspect
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from verifier.machine.device import streams
from verifier.machine.device.refused_devices import closed, lacking, unplayed
from verifier.machine.in_force import MachineSession, current
from verifier.machine.model import MAX_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = 80 * 1024**3  # bytes, as an H100 has
_CUDA_VERSION = "12.8"
# fmt: off
_UNPLAYED = (
    "CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "MemPool", "use_mem_pool",
    "caching_allocator_alloc", "caching_allocator_delete", "cudart",
)
_UNTOLD = (
    "uuid", "clock_rate", "memory_clock_rate", "memory_bus_width", "pci_bus_id", "pci_device_id",
    "pci_domain_id",
)
_OF_MEMORY = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved",
)
_SILENT = (
    "init", "_lazy_init", "empty_cache", "ipc_collect", "reset_peak_memory_stats",
    "reset_max_memory_allocated", "reset_accumulated_memory_stats", "_sleep", "set_sync_debug_mode",
    "set_per_process_memory_fraction",
)
# fmt: on


def _session() -> MachineSession:
    opened = current()
    if opened is None:
        raise RuntimeError("torch.cuda of the machine was asked outside of its session")
    return opened


class Properties(SimpleNamespace):
    """What `torch.cuda.get_device_properties` gives; a refusal for what the machine does not have."""

    def __getattribute__(self, name: str) -> object:
        """Count in the session how often the number of multiprocessors is read."""
        if name == "multi_processor_count":
            _session().asked_processors += 1
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        """Raise UnsupportedFeature for what a device would tell, else AttributeError."""
        if name in _UNTOLD:
            raise lacking(f"torch.cuda.get_device_properties(...).{name}")
        raise AttributeError(f"'_CudaDeviceProperties' object has no attribute {name!r}")


def properties(device: object = None) -> Properties:
    """Give the properties of the machine that is in force now."""
    machine = _session().machine
    major, minor = divmod(machine.architecture, 10)
    name = f"machine sm_{machine.architecture}"
    return Properties(
        name=name,
        gcnArchName=name,
        major=major,
        minor=minor,
        multi_processor_count=machine.multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=MAX_THREADS,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=machine.max_shared(),
        shared_memory_per_multiprocessor=machine.max_shared() + 1024,
        total_memory=_MEMORY,
        L2_cache_size=50 * 1024**2,
        is_integrated=False,
        is_multi_gpu_board=False,
    )


def exchange_device(index: int) -> int:
    """Make a device current and give the one that was; a negative number changes nothing."""
    opened = _session()
    before = opened.current_device
    if index >= opened.devices:
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index})")
    if index >= 0:
        opened.current_device = index
    return before


def _set_device(device: object) -> None:
    exchange_device(streams.index_of(device))


class _DeviceIndex:
    """`torch.accelerator.device_index(...)`."""

    def __init__(self, device: int | None) -> None:
        self.index, self.before = -1 if device is None else device, -1

    def __enter__(self) -> None:
        self.before = exchange_device(self.index)

    def __exit__(self, *error: object) -> None:
        exchange_device(self.before)


def _answers() -> dict[str, object]:
    """Answers of `torch.cuda`."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: _session().devices,
        "current_device": lambda: _session().current_device,
        "set_device": _set_device,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "get_device_properties": properties,
        "get_device_capability": lambda device=None: divmod(_session().machine.architecture, 10),
        "get_device_name": lambda device=None: properties().name,
        "get_arch_list": lambda: [f"sm_{_session().machine.architecture}"],
        "can_device_access_peer": lambda device, peer_device: True,
        "synchronize": lambda device=None: None,
        "mem_get_info": lambda device=None: (_MEMORY, _MEMORY),
        "memory_stats": lambda device=None: {},
        "is_bf16_supported": lambda *args, **kwargs: _session().machine.architecture >= 80,
        "is_tf32_supported": lambda: _session().machine.architecture >= 80,
        "is_current_stream_capturing": lambda: False,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda new_state, device=None: torch.set_rng_state(new_state),
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
        "stream": streams.StreamContext,
        "StreamContext": streams.StreamContext,
        "Stream": streams.Stream,
        "ExternalStream": streams.ExternalStream,
        "Event": streams.Event,
        **dict.fromkeys(_SILENT, lambda *args, **kwargs: None),
        **dict.fromkeys(_OF_MEMORY, lambda device=None: 0),
    }


def _accelerators() -> dict[str, object]:
    """Answers of `torch.accelerator`."""
    return {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: _session().devices,
        "current_device_index": lambda: _session().current_device,
        "current_device_idx": lambda: _session().current_device,
        "set_device_index": _set_device,
        "set_device_idx": _set_device,
        "device_index": _DeviceIndex,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": lambda device=None: None,
        "get_device_capability": lambda device=None: {},
    }


def _in_c() -> dict[str, object]:
    """Answers of torch's own functions in C++, which torch's Python calls past its own names.

    A function each: torch's compiler keeps one rule for a function, however many names it has.
    """
    nothing: tuple[str, ...] = ("_cuda_init", "_cuda_synchronize", "_cuda_emptyCache")
    nothing += ("_accelerator_synchronizeDevice", "_accelerator_emptyCache")
    return {
        "_cuda_getDeviceCount": lambda: _session().devices,
        "_cuda_getDevice": lambda: _session().current_device,
        "_cuda_setDevice": lambda device: _set_device(device),
        "_cuda_exchangeDevice": lambda index: exchange_device(index),
        "_cuda_maybeExchangeDevice": lambda index: exchange_device(index),
        "_cuda_hasPrimaryContext": lambda index: True,
        "_cuda_getCurrentRawStream": lambda index: streams.current_stream(index).cuda_stream,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: _session().current_device,
        "_accelerator_setDeviceIndex": lambda device: _set_device(device),
        "_accelerator_exchangeDevice": lambda index: exchange_device(index),
        "_accelerator_maybeExchangeDevice": lambda index: exchange_device(index),
        **{name: lambda *args: None for name in nothing},
    }


def _places(name: str, value: object) -> Iterator[tuple[object, str, object]]:
    """List where a name of `torch.cuda` stands: there, and in the module that defines it."""
    original = vars(torch.cuda).get(name)
    home = sys.modules.get(getattr(original, "__module__", None) or "")
    yield torch.cuda, name, value
    if home is not None and home is not torch.cuda and vars(home).get(name) is original:
        yield home, name, value


def queries() -> Iterator[tuple[object, str, object]]:
    """List what is put in the place of torch's own: where, by which name, what."""
    cuda = torch.cuda
    answers = _answers()
    yield from (place for name, value in answers.items() for place in _places(name, value))
    yield from ((torch, name, answers[name]) for name in ("Stream", "Event"))
    yield from closed(_in_c())
    if torch.version.cuda is None:
        yield torch.version, "cuda", _CUDA_VERSION
    yield torch.backends.cuda, "is_built", lambda: True
    for name in ("range_push", "range_pop", "mark"):
        yield cuda.nvtx, name, lambda *args, **kwargs: 0
    for name in _UNPLAYED:
        if hasattr(cuda, name):
            yield from _places(name, unplayed(f"torch.cuda.{name}", getattr(cuda, name)))
    yield from (
        place
        for name, value in vars(cuda).copy().items()
        if (
            inspect.isfunction(value)
            and not name.startswith("_")
            and name not in {*answers, *_UNPLAYED}
            and value.__module__.startswith("torch.cuda")
        )
        for place in _places(name, unplayed(f"torch.cuda.{name}", value))
    )
    if hasattr(torch, "accelerator"):
        accelerator = torch.accelerator
        yield from ((accelerator, n, v) for n, v in _accelerators().items() if hasattr(accelerator, n))

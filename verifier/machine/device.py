"""A CUDA device that is the CPU: factory calls are redirected, queries answered by the machine."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from verifier.culprit import passed_on
from verifier.machine.sanitizers.uninitialised import poison_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from verifier.machine.sessions import Session

# fmt: off
_FACTORIES = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "tensor", "as_tensor", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "randint_like", "empty_strided", "scalar_tensor", "normal",
    "asarray", "tril_indices", "triu_indices",
)
# fmt: on
_METHODS = (
    "to",
    "new_empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_tensor",
    "new_empty_strided",
    "pin_memory",
)


def names_cuda(value: Any) -> bool:
    """Whether an argument names a CUDA device."""
    import torch

    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.split(":")[0] == "cuda"


@contextmanager
def redirected(session: Session) -> Iterator[None]:
    """Patch torch so that `device="cuda"`, `.cuda()` and `torch.cuda` speak of the machine.

    Factories are patched by name, not by a torch function mode, which autograd switches off in backward.
    """
    import torch

    undo: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, owner.__dict__.get(name, undo)))
        setattr(owner, name, value)

    for name in _FACTORIES:
        if hasattr(torch, name):
            patch(torch, name, _on_cpu(session, name, getattr(torch, name)))
    for name in _METHODS:
        patch(torch.Tensor, name, _on_cpu(session, f"Tensor.{name}", getattr(torch.Tensor, name)))
    patch(torch.nn.Module, "to", _on_cpu(session, "Module.to", torch.nn.Module.to))
    patch(torch.Tensor, "cuda", _stay)
    patch(torch.nn.Module, "cuda", _stay)
    patch(torch.Tensor, "is_cuda", property(lambda tensor: True))  # noqa: ARG005
    for name, value in _queries(session).items():
        patch(torch.cuda, name, value)
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            if value is undo:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _on_cpu(session: Session, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a CUDA device among the arguments by the CPU, and remember that it was named."""
    fresh = "empty" in name and "uninitialised" in session.machine.sanitize
    poison = 0xA5 if session.machine.poison is None else session.machine.poison

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        place = kwargs.get("device")
        if place is not None and (names_cuda(place) or type(place) is int):
            session.redirected.append((name, str(place)))
            kwargs["device"] = "cpu"
        if any(names_cuda(value) for value in args):
            session.redirected.append((name, "cuda"))
            args = tuple("cpu" if names_cuda(value) else value for value in args)
        result = passed_on(function, *args, **kwargs)
        if fresh:
            poison_storage(result, poison)
        return result

    wrapper.__wrapped__ = function  # type: ignore[attr-defined]
    return wrapper


def _stay(value: Any, *args: Any, **kwargs: Any) -> Any:
    """`.cuda()`: the value is where it should be."""
    del args, kwargs
    return value


class _Event:
    """A CUDA event that has always happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def record(self, *args: Any) -> None:
        """Nothing to record."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds; the machine has no clock."""
        del other
        return 1.0


class _Device(nullcontext[None]):
    """`torch.cuda.device(...)` and `torch.cuda.stream(...)`: contexts without effect."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        super().__init__()


def _queries(session: Session) -> dict[str, Any]:
    """Answers of `torch.cuda`."""
    machine = session.machine
    capability = divmod(machine.architecture, 10)
    properties = SimpleNamespace(
        name=f"machine sm_{machine.architecture}",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=machine.multiprocessors,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=machine.max_shared(),
        shared_memory_per_multiprocessor=machine.max_shared() + 1024,
        total_memory=80 * 1024**3,
        L2_cache_size=50 * 1024**2,
    )
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None)  # noqa: ARG005
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,  # noqa: ARG005
        "get_device_properties": lambda device=None: properties,  # noqa: ARG005
        "get_device_capability": lambda device=None: capability,  # noqa: ARG005
        "get_device_name": lambda device=None: properties.name,  # noqa: ARG005
        "synchronize": lambda device=None: None,  # noqa: ARG005
        "empty_cache": lambda: None,
        "current_stream": lambda device=None: stream,  # noqa: ARG005
        "default_stream": lambda device=None: stream,  # noqa: ARG005
        "is_bf16_supported": lambda *args, **kwargs: True,  # noqa: ARG005
        "is_current_stream_capturing": lambda: False,
        "device": _Device,
        "device_of": _Device,
        "stream": _Device,
        "Event": _Event,
    }

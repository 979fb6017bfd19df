"""The ways of torch to a real device, closed while a machine is in force: what asks for one is undecided."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from verifier.machine.culprit import passed_on
from verifier.machine.device.tensor_places import named
from verifier.machine.execute.findings import UnsupportedFeature
from verifier.machine.in_force import current

if TYPE_CHECKING:
    from collections.abc import Iterator

_REACHING = ("_cuda_", "_accelerator_")
"""How torch's own functions in C++ begin that Python's names for the device call."""
_PLAIN = frozenset({
    "_cuda_isInBadFork", "_cuda_getCompiledVersion", "_cuda_getArchFlags", "_cuda_getHipblasltVersion",
    "_cuda_isHistoryEnabled", "_cuda_get_conv_benchmark_empty_cache", "_cuda_get_cudnn_benchmark_limit",
    "_cuda_set_cudnn_benchmark_limit", "_accelerator_isAllocatorInitialized",
    "_accelerator_getAllocatorSettings", "_accelerator_setAllocatorSettings",
})  # fmt: skip
"""Those that answer without a device."""
_OF_EVERY_DEVICE = ("_cuda_getCurrentRawStream",)
"""Those that wrappers call themselves: they are there whatever torch is built for."""


def lacking(name: str) -> UnsupportedFeature:
    """Say what is not played, and keep it: a wrapper that goes another way then shows nothing of a GPU."""
    error = UnsupportedFeature(name)
    if (opened := current()) is not None:
        opened.failed.append(error)
    return error


def unplayed(name: str, original: object) -> object:
    """Return what refuses to be called; a class stays one, which annotations and isinstance may name."""

    def refuse(*args: object, **kwargs: object) -> object:
        raise lacking(name)

    word = name.rpartition(".")[2]
    return type(word, (), {"__new__": refuse}) if inspect.isclass(original) else refuse


def closed(answers: dict[str, object]) -> Iterator[tuple[object, str, object]]:
    """List what is put in the place of torch's own: where, by which name, what.

    answers: of functions in C++ that are played, by their names.
    """
    yield torch, "Generator", _generator(torch.Generator)
    yield torch.cuda, "default_generators", _Generators()
    for name in {**dict.fromkeys(dir(torch._C)), **dict.fromkeys(_OF_EVERY_DEVICE)}:
        if name in answers:
            yield torch._C, name, answers[name]
        elif name.startswith(_REACHING) and name not in _PLAIN:
            yield torch._C, name, unplayed(f"torch._C.{name}", getattr(torch._C, name))


def _generator(real: Any) -> Any:
    """Return a class that makes torch's own generators; those of the device say so, and draw on the host."""

    class OfTheDevice(real):  # type: ignore[misc]
        place: torch.device
        device = property(lambda self: self.place)

    class OfReal(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

    class Generator(metaclass=OfReal):
        def __new__(cls, device: Any = "cpu") -> Any:
            opened = current()
            place = device if opened is None else named(opened, device)
            if opened is None or place is None or place.type != "cuda":
                return passed_on(real, "cpu" if place is None else place)
            made = passed_on(OfTheDevice, "cpu")
            made.place = place
            return made

    return Generator


class _Generators(Sequence[object]):
    """`torch.cuda.default_generators`: there are as many as devices, and none is played."""

    def __len__(self) -> int:
        return torch.cuda.device_count()

    def __getitem__(self, index: object) -> NoReturn:
        raise lacking("torch.cuda.default_generators")

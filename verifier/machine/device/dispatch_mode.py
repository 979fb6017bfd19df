"""What happens to the machine's tensors below Python's names: in C++, by `torch.ops`, in custom ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.device.tensor_places import (
    is_pinned,
    memory_of,
    must_be_waited_for,
    named,
    pin_memory,
    pinned,
    place_of,
    put,
)
from verifier.machine.in_force import MachineSession, current

_OWN = frozenset({"aten", "prim", "prims", "profiler"})
_CUDA, _CPU = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in ("CUDA", "CPU"))
_HOST = torch.device("cpu")
_OF_PINNED = {"_pin_memory": pin_memory, "is_pinned": is_pinned}
"""Operations that ask a driver for memory, or whose memory it is."""
# Operations that take tensors of several devices.
# fmt: off
_MIXED = frozenset((
    "copy_", "_to_copy", "_copy_from", "index", "_unsafe_index", "index_put", "index_put_",
    "_index_put_impl_", "_unsafe_index_put", "set_", "is_same_size", "lift_fresh", "record_stream",
))
# fmt: on


_COPIES = frozenset({"copy_", "_copy_from", "_to_copy"})
"""Operations that may copy between host and device, and may not wait until that has happened."""


class DeviceMode(Dispatching):  # type: ignore[no-untyped-call]
    """Answers factories for CUDA on the CPU, and hands on where the operands lie."""

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run the operation on the CPU."""
        opened = current()
        if opened is None:
            return passed_on(func, *args, **kwargs)
        if is_custom(func):
            return run_custom(self, func, args, kwargs)
        place, asked = None, kwargs.get("device")
        if isinstance(asked, torch.device) and asked.type == "cuda":
            place = named(opened, asked)
            kwargs = {**kwargs, "device": torch.device("cpu")}
        name = func.overloadpacket.__name__
        if name in _COPIES:
            _note_copy(opened, name, args, kwargs, place)
        if name in _OF_PINNED:
            pinnable = args[0]
            assert isinstance(pinnable, torch.Tensor)
            return _OF_PINNED[name](pinnable)
        pins = bool(kwargs.get("pin_memory"))
        if pins:
            place, kwargs = place or _HOST, {**kwargs, "pin_memory": False}
        tensors = list(_tensors((*args, *kwargs.values())))
        places = {place_of(t) for t in tensors if memory_of(t).type == "cpu"}
        if opened.strict and len(places) > 1 and name not in _MIXED:
            _refuse_mixture(tensors)
        if place is None and len(places) == 1:
            (place,) = places
        result = passed_on(func, *args, **kwargs)
        if place is not None and place != opened.home:
            known = {t.untyped_storage()._cdata for t in tensors}
            for made in _tensors((result,)):
                if made.layout == torch.strided and made.untyped_storage()._cdata not in known:
                    put(made, place)
        return pinned(result) if pins and place == _HOST else result


def _note_copy(
    opened: MachineSession,
    name: str,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    place: torch.device | None,
) -> None:
    """Note a copy that torch does not wait for."""
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    if not (kwargs.get("non_blocking") or (name != "_to_copy" and args[2:3] == (True,))):
        return
    if name == "_to_copy":
        asked = place or (_HOST if kwargs.get("device") is not None else place_of(tensors[0]))
        must_be_waited_for(opened, tensors[0], asked, made=True)
    elif len(tensors) > 1:
        source, target = tensors[:2] if name == "_copy_from" else tensors[1::-1]
        must_be_waited_for(opened, source, place_of(target), made=is_pinned(target))


def is_custom(func: object) -> bool:
    """Whether an operator was registered by somebody else than torch."""
    return isinstance(func, torch._ops.OpOverload) and func.namespace not in _OWN


def run_custom(
    mode: TorchDispatchMode, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Run the implementation that a custom operator has where its operands lie, under the mode again.

    Tensors without memory stand for those of a device: what an operator registers for them launches nothing.
    """
    places = {place_of(t).type for t in _tensors((*args, *kwargs.values()))}
    if not places & {"cpu", "cuda", "meta"}:
        return passed_on(func, *args, **kwargs)
    with mode:
        return passed_on(func.redispatch, _CUDA if places & {"cuda", "meta"} else _CPU, *args, **kwargs)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _refuse_mixture(tensors: list[torch.Tensor]) -> None:
    """Raise what torch raises; a number in a tensor of the CPU goes with every device."""
    places = dict.fromkeys(str(place_of(t)) for t in tensors if t.dim() or place_of(t).type != "cpu")
    if len(places) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(list(places)[:2])}!"
        )

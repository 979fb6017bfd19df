"""Tensors of many gigabytes of which only pages exist that somebody touched: made, and kept from torch."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._ops import OpOverload

from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.device.refused_devices import lacking

HUGE: int = 1 << 28
"""Bytes from which memory is left to the system, which gives zeros: malloc recycles 32 MiB at most."""
_UNINITIALISED = frozenset((
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
))  # fmt: skip
_ZEROS = {"zeros": "empty", "zeros_like": "empty_like", "new_zeros": "new_empty"}
_UNTOUCHED = frozenset(("lift_fresh", "_unsafe_view", "is_same_size", "detach", "alias"))


class LazyTensors(Dispatching):  # type: ignore[no-untyped-call]
    """Makes every fresh tensor of zeros, huge ones untouched, and refuses operations that would touch those.

    A wrapper that converts or copies a huge tensor by torch is undecided: no machine has room for it.
    """

    def dispatched(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Run one operation."""
        name = func.overloadpacket.__name__
        if name in _ZEROS:
            func, name = _empty(func), _ZEROS[name]
        if name in _UNINITIALISED:
            made = passed_on(func, *args, **kwargs)
            return made if _octets(made) >= HUGE else made.zero_()
        result_is_view = func.is_view or name in _UNTOUCHED
        if not result_is_view and (_any_huge((*args, *kwargs.values())) or _asks_for_huge(args)):
            raise lacking(f"memory for torch's {func.overloadpacket} on a tensor of gigabytes")
        return passed_on(func, *args, **kwargs)


def _empty(func: OpOverload) -> OpOverload:
    """Return the overload that makes the same without a value."""
    packet = getattr(torch.ops.aten, _ZEROS[func.overloadpacket.__name__])
    made: OpOverload = packet.memory_format if func.overloadpacket.__name__ == "zeros" else packet.default
    return made


def _octets(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _any_huge(values: Iterable[object]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor) and _octets(value) >= HUGE:
            return True
        if isinstance(value, tuple | list) and _any_huge(value):
            return True
    return False


def _asks_for_huge(args: tuple[object, ...]) -> bool:
    """Whether a factory that writes (full, ones) asks for a huge tensor."""
    shape = next((a for a in args if isinstance(a, tuple | list)), ())
    extents = [n for n in shape if isinstance(n, int)]
    factory = not any(isinstance(a, torch.Tensor) for a in args)
    return factory and len(extents) == len(shape) and torch.Size(extents).numel() >= HUGE

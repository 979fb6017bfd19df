"""Where tensors say that they lie while a machine is in force.

Every byte lies in memory of the CPU. Where a tensor was made or moved elsewhere by name stands on its
storage, so that views and autograd's copies of the handle agree.
"""

from __future__ import annotations

from typing import Any

import torch

from verifier.machine.culprit import passed_on
from verifier.machine.in_force import MachineSession, current

_PLACE, _PINNED = "_place_in_session", "_pinned_in_session"
HOST = torch.device("cpu")
"""Where memory of the host lies."""
REAL = torch._C.TensorBase
_REAL_STORAGE: Any = torch._C.StorageBase
"""What torch's own C++ answers, whatever has been put in its place."""


def memory_of(tensor: object) -> torch.device:
    """Return where the bytes of a tensor really lie, whatever it says of itself."""
    found: torch.device = REAL.device.__get__(tensor)
    return found


def place_of(tensor: torch.Tensor) -> torch.device:
    """Return where a tensor lies as far as the session in force is concerned."""
    real = memory_of(tensor)
    opened = current()
    if opened is None or real.type != "cpu":
        return real
    home: torch.device = opened.home
    try:
        return _marked(tensor.untyped_storage()) or home
    except RuntimeError:  # sparse, or inside a transform: it has no storage of its own
        return home


def _marked(storage: object) -> torch.device | None:
    found: torch.device | None = getattr(storage, _PLACE, None)
    return found


def put(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Say where the storage of a new tensor lies."""
    opened = current()
    if opened is not None and memory_of(tensor).type == "cpu" and tensor.layout == torch.strided:
        setattr(tensor.untyped_storage(), _PLACE, None if place == opened.home else place)
    return tensor


def named(opened: MachineSession, value: object) -> torch.device | None:
    """Return the device that an argument names, with its number; None if it names none.

    Raises RuntimeError for a number that the session's machine does not have, as CUDA does.
    """
    if value is None:
        return None
    place = passed_on(torch.device, *(("cuda", value) if type(value) is int else (value,)))
    if place.type == "cpu":
        return HOST
    if place.type != "cuda":
        return place
    index = opened.current_device if place.index is None else place.index
    if index >= opened.devices:
        raise RuntimeError(f"CUDA error: invalid device ordinal (cuda:{index})")
    return torch.device("cuda", index)


def storage_place(self: object) -> torch.device:
    """Return where a storage lies as far as the session in force is concerned."""
    real: torch.device = _REAL_STORAGE.device.__get__(self)
    opened = current()
    return real if opened is None or real.type != "cpu" else _marked(self) or opened.home


def storage_clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
    """Copy a storage; the copy lies where it lies."""
    copy = type(self)(self.nbytes()).copy_(self)
    setattr(copy, _PLACE, _marked(self))
    return copy


def pin_memory(self: torch.Tensor, device: object = None) -> torch.Tensor:
    """Copy memory of the host to where a device could read it."""
    if self.is_cuda:
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    return pinned(put(self.clone(), HOST))


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Say that a tensor of the host is pinned."""
    setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def must_be_waited_for(
    opened: MachineSession, source: torch.Tensor, target: torch.device, *, made: bool
) -> None:
    """Note a copy between host and device for which torch does not wait: here it has happened already.

    The host may read its memory before the copy has come, or overwrite what is still to be copied. Memory
    that is not pinned is copied before torch returns. made: whether memory of the host is pinned, or made so.
    """
    place = place_of(source)
    if place.type == "cuda" and target.type == "cpu" and made:
        opened.unwaited.add("copy to the host that is not waited for")
    if place.type == "cpu" and target.type == "cuda" and is_pinned(source):
        opened.unwaited.add("copy from pinned memory of the host that is not waited for")


def is_pinned(self: torch.Tensor, device: object = None) -> bool:
    """Return whether `pinned` was said of its memory."""
    return bool(getattr(self.untyped_storage(), _PINNED, False))

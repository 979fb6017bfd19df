"""Operations of torch by which elements meet in memory: a device runs them in no order, the host in one.

torch says that what comes of such a call is undefined, and refuses it where both tensors are dense alone:
between two columns of one tensor it copies in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array


def meets_itself(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> str:
    """Say how an element is written that another one reads, or writes, in the same call; nothing else."""
    if any(map(_written_twice, written)):
        return "into one place twice"
    if any(_crosses(target, other) for target in written for other in read if other is not target):
        return "into memory that it reads"
    return ""


def _written_twice(tensor: torch.Tensor) -> bool:
    if not _lies_in_memory(tensor):
        return False
    reach = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1 and stride < reach:
            return len(np.unique(_places(tensor))) < tensor.numel()
        reach += (extent - 1) * stride
    return False


def _crosses(target: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether elements of one tensor lie in another, but for each in the place of the same one."""
    if not (_lies_in_memory(target) and _lies_in_memory(other)):
        return False
    if target.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        return False
    given = (target.storage_offset(), target.stride(), target.shape, target.dtype)
    if given == (other.storage_offset(), other.stride(), other.shape, other.dtype):
        return False
    first, second = _places(target), _places(other)
    width, narrow = target.element_size(), other.element_size()
    if width == narrow and np.array_equal(first, second):
        return False
    here, there = (
        (places.reshape(-1, 1) * size + np.arange(size)).ravel()
        for places, size in ((first, width), (second, narrow))
    )
    return bool(np.isin(here, there).any())


def _places(tensor: torch.Tensor) -> Array:
    """Where in its storage each element lies, counted in elements."""
    index: Array = np.full(tuple(tensor.shape), tensor.storage_offset(), dtype=np.int64)
    for axis, (extent, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        index += (np.arange(extent) * stride).reshape((-1,) + (1,) * (tensor.dim() - 1 - axis))
    return index


def _lies_in_memory(tensor: torch.Tensor) -> bool:
    import torch

    strided: bool = tensor.layout == torch.strided and torch._C._has_storage(tensor)
    return strided and tensor.numel() > 0 and tensor.untyped_storage().size() > 0

"""Memory that a subject allocates for itself: poisoned where it is uninitialised, between red zones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

from verifier.culprit import passed_on

GUARD_BYTES = 512
GUARD_PATTERN = 0xA5
POISONS = {"nan": float("nan"), "finite": -12288.0, "positive": 12288.0}
"""The numbers of `strategies.placement.POISONS`: what swallows one of them shows another."""

_UNINITIALISED = (
    (torch, "empty"),
    (torch, "empty_like"),
    (torch, "empty_strided"),
    (torch, "empty_permuted"),
    (torch.Tensor, "new_empty"),
    (torch.Tensor, "new_empty_strided"),
)
_INITIALISED = (
    (torch, "zeros"),
    (torch, "zeros_like"),
    (torch, "full"),
    (torch, "full_like"),
    (torch, "ones"),
    (torch.Tensor, "new_zeros"),
)


@dataclass(kw_only=True)
class FreshMemory:
    """What was allocated while the poison was in force."""

    guarded: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)

    def damage(self) -> Iterator[str]:
        """Say for each allocation whose red zones were written."""
        for label, buffer, size in self.guarded:
            zones = (("before", buffer[:GUARD_BYTES]), ("behind", buffer[GUARD_BYTES + size :]))
            for where, zone in zones:
                changed = (zone != GUARD_PATTERN).nonzero()
                if changed.numel():
                    byte = int(changed[-1 if where == "before" else 0])
                    distance = GUARD_BYTES - byte if where == "before" else byte
                    yield (
                        f"{label}: {changed.numel()} byte(s) in the red zone {where} this allocation of the "
                        f"subject were written, the nearest {distance} byte(s) {where} it"
                    )


@contextmanager
def fresh_memory(poison: str | None) -> Iterator[FreshMemory]:
    """Poison and guard what torch's factories return to the subject; nothing happens for None.

    Memory that torch's own operators allocate inside is not touched.
    """
    memory = FreshMemory()
    if poison is None:
        yield memory
        return
    originals = [(owner, name, getattr(owner, name)) for owner, name in (*_UNINITIALISED, *_INITIALISED)]
    uninitialised = {name for _, name in _UNINITIALISED}
    for owner, name, original in originals:
        fill = POISONS[poison] if name in uninitialised else None
        setattr(owner, name, _guarding(original, name, fill, memory))
    try:
        yield memory
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _guarding(
    factory: Callable[..., torch.Tensor], name: str, fill: float | None, memory: FreshMemory
) -> Callable[..., torch.Tensor]:
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        made = passed_on(factory, *args, **kwargs)
        if made.device.type == "meta" or made.layout != torch.strided or "out" in kwargs:
            return made
        if fill is not None and made.dtype.is_floating_point:
            made.detach().fill_(fill)
        return _between_red_zones(made, name, memory)

    return make


def _between_red_zones(made: torch.Tensor, name: str, memory: FreshMemory) -> torch.Tensor:
    """Return a copy of the tensor, strides and all, in memory with red zones."""
    if made.numel() == 0 or made.dtype == torch.bool or made.is_pinned() or made.dtype.is_complex:
        return made
    reach = sum((extent - 1) * stride for extent, stride in zip(made.shape, made.stride(), strict=True))
    size = (reach + 1) * made.element_size()
    # uint8 has no factory hook of ours in the way: torch.tensor and expand are not patched.
    buffer = torch.tensor(GUARD_PATTERN, dtype=torch.uint8, device=made.device).repeat(size + 2 * GUARD_BYTES)
    storage = from_dlpack(buffer[GUARD_BYTES : GUARD_BYTES + size].view(made.dtype))
    guarded: torch.Tensor = storage.as_strided(made.shape, made.stride())
    with torch.no_grad():
        guarded.copy_(made)
    label = f"{name}{tuple(made.shape)}"
    memory.guarded.append((label, buffer, size))
    return guarded.requires_grad_(made.requires_grad)

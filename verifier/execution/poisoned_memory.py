"""Memory that a subject allocates for itself: poisoned where it is uninitialised, between red zones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from torch.utils._python_dispatch import _disable_current_modes

from verifier.machine.culprit import passed_on
from verifier.records.observation import Deviation

GUARD_BYTES = 512
GUARD_PATTERN = 0xA5
POISONS = {"nan": float("nan"), "finite": -12288.0, "positive": 12288.0, "zero": 0.0}
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

    poison: str = "nan"
    guarded: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)

    def damage(self) -> Iterator[Deviation]:
        """Say for each allocation whose red zones were written."""
        for label, buffer, size in self.guarded:
            zones = (("before", buffer[:GUARD_BYTES]), ("behind", buffer[GUARD_BYTES + size :]))
            for where, zone in zones:
                changed = (zone != GUARD_PATTERN).nonzero()
                if changed.numel():
                    byte = int(changed[-1 if where == "before" else 0])
                    distance = GUARD_BYTES - byte if where == "before" else byte
                    text = (
                        f"{label}: {changed.numel()} byte(s) in the red zone {where} this allocation of the "
                        f"subject were written, the nearest {distance} byte(s) {where} it"
                    )
                    yield Deviation(label, text)


_in_force: list[FreshMemory] = []


@contextmanager
def fresh_memory(poison: str | None) -> Iterator[FreshMemory]:
    """Poison and guard what torch's factories return to the subject; nothing happens for None.

    Memory that torch's own operators allocate inside is not touched, nor what compilers trace.
    """
    memory = FreshMemory(poison=poison or "nan")
    if poison is None:
        yield memory
        return
    _let_compilers_know()
    originals = [(owner, name, getattr(owner, name)) for owner, name in (*_UNINITIALISED, *_INITIALISED)]
    for owner, name, original in originals:
        setattr(owner, name, _guarding(original, name))
    _in_force.append(memory)
    try:
        yield memory
    finally:
        _in_force.remove(memory)
        for owner, name, original in originals:
            setattr(owner, name, original)


def _let_compilers_know() -> None:
    """Let torch.compile, where a subject uses it, list torch's own functions before others stand for them."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None:
        rules.get_torch_obj_rule_map()


@cache
def _guarding(factory: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    """Return one function for each factory: what torch.compile traced through it stays valid."""
    uninitialised = name in {known for _, known in _UNINITIALISED}

    def make(*args: object, **kwargs: object) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return factory(*args, **kwargs)
        made = passed_on(factory, *args, **kwargs)
        if not _in_force or not _is_memory(made) or "out" in kwargs:
            return made
        # What the verifier does here is no arithmetic of the subject's host.
        with _disable_current_modes():
            if uninitialised and made.dtype.is_floating_point:
                made.detach().fill_(POISONS[_in_force[-1].poison])
            return _between_red_zones(made, name, _in_force[-1])

    make.factory = factory  # type: ignore[attr-defined]
    return make


def _is_memory(made: torch.Tensor) -> bool:
    """Whether a tensor is plain memory; what a compiler traces (FakeTensor, ...) is of a class of its own."""
    plain = type(made) is torch.Tensor and made.device.type != "meta" and made.layout == torch.strided
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(made)


def _between_red_zones(made: torch.Tensor, name: str, memory: FreshMemory) -> torch.Tensor:
    """Return a copy of the tensor, strides and all, in memory with red zones."""
    if made.numel() == 0 or made.dtype == torch.bool or made.is_pinned() or made.dtype.is_complex:
        return made
    reach = sum((extent - 1) * stride for extent, stride in zip(made.shape, made.stride(), strict=True))
    size = (reach + 1) * made.element_size()
    full = getattr(torch.full, "factory", torch.full)  # without the hook of this file
    buffer = full((size + 2 * GUARD_BYTES,), GUARD_PATTERN, dtype=torch.uint8, device=made.device)
    storage = torch.utils.dlpack.from_dlpack(buffer[GUARD_BYTES : GUARD_BYTES + size].view(made.dtype))
    guarded: torch.Tensor = storage.as_strided(made.shape, made.stride())
    with torch.no_grad():
        guarded.copy_(made)
    label = f"{name}{tuple(made.shape)}"
    memory.guarded.append((label, buffer, size))
    return guarded.requires_grad_(made.requires_grad)

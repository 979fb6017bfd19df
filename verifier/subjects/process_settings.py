"""What a process has set for all that runs in it: read before a call, compared and set back after it."""

from __future__ import annotations

import ctypes
import itertools
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import overrides
from torch.utils import _python_dispatch

from verifier.subjects.bare_packages import VARIABLES

_SEEDS = itertools.count(0x6E6F726D00000000)
"""Seeds that no kernel sets: drawing numbers leaves them as they are, seeding does not, and both are told."""
_LIBRARIES_SET = ("TORCH", "_TORCH", "TRITON_", "KINETO_", "CUDA_MODULE_LOADING", "PYTORCH_")
"""How the names begin that torch, inductor and Triton set in the environment when they first compile."""
_ONE, _SUBNORMAL = 1.0, 5e-324
_STATE_OF_MT19937 = 4 * (624 + 1)
"""Bytes of its numbers and its place among them, as `numpy/random/src/mt19937/mt19937.h` has them."""


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """One global setting: its name in a sentence, how to read it, to set it and to compare it."""

    name: str
    read: Callable[[], object]
    write: Callable[[Any], object]
    same: Callable[[Any, Any], bool] = operator.eq


def _attribute(owner: object, attribute: str, name: str) -> _Setting:
    return _Setting(
        name=name,
        read=lambda: getattr(owner, attribute),
        write=lambda value: setattr(owner, attribute, value),
    )


@dataclass(kw_only=True)
class _LastRead:
    """What was read last, which is the answer as long as the memory that it follows from is as it was."""

    memory: object = None
    answer: object = None


_ENVIRONMENT, _NUMPY = _LastRead(), _LastRead()


def _environment() -> dict[str, str]:
    """Return the environment; it is decoded again where it has changed alone."""
    memory = getattr(os.environ, "_data", None)  # of another class, if somebody replaced it
    if memory is None or memory != _ENVIRONMENT.memory:
        _ENVIRONMENT.memory, _ENVIRONMENT.answer = None if memory is None else dict(memory), dict(os.environ)
    return cast("dict[str, str]", _ENVIRONMENT.answer)


def _set_by_a_library(name: str, before: dict[str, str]) -> bool:
    return name not in before and (name.startswith(_LIBRARIES_SET) or name in VARIABLES)


def _same_environment(before: dict[str, str], now: dict[str, str]) -> bool:
    return before is now or before == {name: now[name] for name in now if not _set_by_a_library(name, before)}


def _set_environment(wanted: dict[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        if not _set_by_a_library(name, wanted):
            del os.environ[name]
    os.environ.update(wanted)


_guards: list[AbstractContextManager[object]] = []


def _set_inference_mode(wanted: bool) -> None:
    # There is no setter; a guard stays in force as long as it lives.
    guard: AbstractContextManager[object] = torch._C._InferenceMode(wanted)
    _guards.append(guard)
    guard.__enter__()


def _set_deterministic(wanted: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(wanted[0], warn_only=wanted[1])


def _function_modes() -> list[object]:
    return list(overrides._get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def _modes() -> tuple[list[object], list[object]]:
    return (
        _function_modes(),
        list(_python_dispatch._get_current_dispatch_mode_stack()),
    )


def _set_modes(wanted: tuple[list[object], list[object]]) -> None:
    functions, dispatching = wanted
    while len(_function_modes()) > len(functions):
        torch._C._pop_torch_function_stack()
    while len(_python_dispatch._get_current_dispatch_mode_stack()) > len(dispatching):
        _python_dispatch._pop_mode()


def _autocast(device: str) -> tuple[_Setting, ...]:
    return (
        _Setting(
            name=f"autocast of {device}",
            read=lambda: torch.is_autocast_enabled(device),
            write=lambda value: torch.set_autocast_enabled(device, value),
        ),
        _Setting(
            name=f"autocast dtype of {device}",
            read=lambda: torch.get_autocast_dtype(device),
            write=lambda value: torch.set_autocast_dtype(device, value),
        ),
    )


_SETTINGS: tuple[_Setting, ...] = (
    _Setting(name="default dtype", read=torch.get_default_dtype, write=torch.set_default_dtype),
    _Setting(
        name="inference mode",
        read=torch.is_inference_mode_enabled,
        write=_set_inference_mode,
    ),
    _Setting(name="grad mode", read=torch.is_grad_enabled, write=torch._C._set_grad_enabled),
    _Setting(
        name="deterministic mode",
        read=lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        write=_set_deterministic,
    ),
    _attribute(torch.utils.deterministic, "fill_uninitialized_memory", "filling of uninitialised memory"),
    _Setting(
        name="anomaly mode",
        read=torch.is_anomaly_enabled,
        write=torch.autograd.set_detect_anomaly,
    ),
    *_autocast("cpu"),
    *_autocast("cuda"),
    _Setting(name="number of threads", read=torch.get_num_threads, write=torch.set_num_threads),
    _Setting(
        name="default device",
        read=lambda: getattr(getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), "device", None),
        write=torch.set_default_device,
    ),
    _Setting(name="modes in force", read=_modes, write=_set_modes),
    _Setting(
        name="precision of float32 products",
        read=torch.get_float32_matmul_precision,
        write=torch.set_float32_matmul_precision,
    ),
    _attribute(torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", "reduced float16 sums"),
    _attribute(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", "reduced bfloat16 sums"),
    _attribute(torch.backends.cudnn, "enabled", "use of cuDNN"),
    _attribute(torch.backends.cudnn, "benchmark", "cuDNN's benchmark"),
    _attribute(torch.backends.cudnn, "deterministic", "cuDNN's deterministic mode"),
    _attribute(torch.backends.cudnn, "allow_tf32", "cuDNN's TF32"),
    _Setting(
        name="flushing of subnormal numbers",
        read=lambda: _ONE * _SUBNORMAL == 0.0,
        write=torch.set_flush_denormal,
    ),
    _Setting(
        name="NumPy's treatment of floating-point errors", read=np.geterr, write=lambda v: np.seterr(**v)
    ),
    _Setting(
        name="environment",
        read=_environment,
        write=_set_environment,
        same=_same_environment,
    ),
    _Setting(name="working directory", read=os.getcwd, write=os.chdir),
)


def _numpy_state() -> tuple[object, object]:
    """Return the source of NumPy's global numbers, which may be of any kind, and its state."""
    source = np.random.mtrand.get_bit_generator()
    memory = (source, _numpy_memory(source)) if type(source) is np.random.MT19937 else None
    if memory is None or memory != _NUMPY.memory:
        state = np.random.get_state(legacy=False)  # noqa: NPY002 (the process's own, to be watched)
        _NUMPY.memory, _NUMPY.answer = memory, (source, state)
    return cast("tuple[object, object]", _NUMPY.answer)


def _numpy_memory(source: np.random.MT19937) -> tuple[bytes, bytes]:
    """Return the bytes of the generator, among them a normal number that waits, and those of its source.

    To give the state by name takes NumPy a fifth of a millisecond, for a loop over 624 numbers.
    """
    owner = np.random.mtrand._rand
    head, whole = object.__basicsize__, type(owner).__basicsize__
    own = ctypes.string_at(id(owner) + head, whole - head)
    return own, ctypes.string_at(source.ctypes.state_address, _STATE_OF_MT19937)


def _set_numpy_state(wanted: tuple[np.random.BitGenerator, dict[str, object]]) -> None:
    source, state = wanted
    np.random.mtrand.set_bit_generator(source)
    np.random.set_state(state)  # noqa: NPY002 (from `_numpy_state`)


def _same_numpy_state(before: tuple[object, object], now: tuple[object, object]) -> bool:
    return before is now or (before[0] is now[0] and _same_parts(before[1], now[1]))


def _same_parts(before: object, now: object) -> bool:
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_same_parts(before[name], now[name]) for name in before)
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        return before.tobytes() == now.tobytes()
    return bool(before == now)


_GENERATORS: tuple[_Setting, ...] = (
    _Setting(name="Python's random numbers", read=random.getstate, write=random.setstate),
    _Setting(
        name="NumPy's random numbers", read=_numpy_state, write=_set_numpy_state, same=_same_numpy_state
    ),
)


@dataclass(kw_only=True)
class Settings:
    """What a call left changed: a sentence by the name of the setting."""

    changed: dict[str, str] = field(default_factory=dict)


@contextmanager
def settings_kept() -> Iterator[Settings]:
    """Set back afterwards, whatever happens, what is set for the whole process; say what had to be.

    Inside, torch's random numbers are others each time; outside, they go on where they were. Libraries name
    variables of the environment when they are first imported: a call that imports any is not blamed for
    variables that are new, and the next call is.
    """
    seen = Settings()
    modules = sys.modules.copy()  # twice as fast as a set of them
    before = [_read(setting) for setting in _SETTINGS]
    generator = torch.default_generator
    state = generator.get_state()
    seed = next(_SEEDS)
    generator.manual_seed(seed)
    undrawn = generator.get_state()
    others = [_read(other) for other in _GENERATORS]
    try:
        yield seen
    finally:
        if generator.initial_seed() != seed:
            seen.changed["seed"] = f"torch's random numbers seeded with {generator.initial_seed()}"
        elif generator.get_state().numpy().tobytes() != undrawn.numpy().tobytes():  # no question to torch
            seen.changed["torch's random numbers"] = "torch's random numbers: some were drawn"
        generator.set_state(state)
        for other, value in zip(_GENERATORS, others, strict=True):
            if not other.same(value, _read(other)):
                seen.changed[other.name] = f"{other.name}: some were drawn, or they were seeded"
                other.write(value)
        for setting, value in zip(_SETTINGS, before, strict=True):
            now = _read(setting)
            if not setting.same(value, now):
                if not (_only_more(value, now) and sys.modules.keys() - modules.keys()):
                    seen.changed[setting.name] = _said(setting.name, value, now)
                with suppress(Exception):
                    setting.write(value)


def _only_more(before: object, now: object) -> bool:
    """Return whether this is an environment that has the variables that it had, as they were."""
    return isinstance(before, dict) and isinstance(now, dict) and before.items() <= now.items()


def _read(setting: _Setting) -> object:
    try:
        return setting.read()
    except RuntimeError:  # torch cannot say it where its old and its new names for TF32 were both used
        return None


def _said(name: str, before: object, now: object) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({n for n in {*before, *now} if before.get(n) != now.get(n)})
        return f"{name}: " + ", ".join(f"{n} is {now.get(n)!r} and was {before.get(n)!r}" for n in names)
    return f"{name}: it is {_word(now)} and was {_word(before)}"


def _word(value: object) -> str:
    if isinstance(value, tuple | list):  # modes are known by their classes
        return "(" + ", ".join(map(_word, value)) + ")"
    return (
        str(value)
        if isinstance(value, str | int | torch.dtype | torch.device | None)
        else type(value).__name__
    )

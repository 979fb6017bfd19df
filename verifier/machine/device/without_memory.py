"""Tensors of the machine's device that have no memory: wrappers run on them as fast as Python does."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from verifier.machine.culprit import passed_on
from verifier.machine.device.tensor_places import memory_of
from verifier.machine.device.torch_redirect import factories
from verifier.machine.in_force import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOWHERE = torch.device("meta")
"""Where torch puts tensors that have a shape and no memory."""
_SHOWN_TO_NOBODY = "__dynamo_disable"
"""Where torch keeps what it calls instead of a function that its compiler is not to see."""


@contextmanager
def without_memory() -> Iterator[None]:
    """Let tensors without memory say that they lie on the machine's device, and factories make them there.

    Needs a session of the machine in force, whose patches of torch these go on top of.
    """
    opened = current()
    assert opened is not None
    tensor = torch.Tensor
    kept = {name: vars(tensor)[name] for name in ("device", "is_cuda", "is_cpu", "get_device")}

    def place(one: object) -> torch.device:
        found: torch.device = opened.home if _is_nowhere(one) else kept["device"].__get__(one)
        return found

    answers: dict[str, object] = {
        "device": property(place),
        "is_cuda": property(lambda one: place(one).type == "cuda"),
        "is_cpu": property(lambda one: place(one).type == "cpu"),
        "get_device": lambda one: -1 if place(one).index is None else place(one).index,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            _put(stack, tensor, name, answer)
        for owner, name in (*factories(), (tensor, "to")):
            _put(stack, owner, name, _making_nowhere(getattr(owner, name)))
        _put(stack, tensor, "cuda", _stays(tensor.cuda))
        stack.enter_context(_compiler_left_alone())
        yield


@contextmanager
def _compiler_left_alone() -> Iterator[None]:
    """Let torch compute forms of results in Python without loading its compiler, to hide that from it.

    Loading takes a process more than a second, and each later operation longer. Where the compiler is loaded
    already everything stays as it is.
    """
    hidden = (
        [] if "torch._dynamo" in sys.modules else [f for f in _hidden() if not hasattr(f, _SHOWN_TO_NOBODY)]
    )
    for function in hidden:
        setattr(function, _SHOWN_TO_NOBODY, function)
    try:
        yield
    finally:
        for function in hidden:
            with suppress(AttributeError):
                delattr(function, _SHOWN_TO_NOBODY)


@cache
def _hidden() -> tuple[Callable[..., object], ...]:
    """Return the functions that compute such forms and that torch hides, by version."""
    try:
        from torch._compile import _disable_dynamo
        from torch._decomp import global_decomposition_table
    except ImportError:
        return ()
    hiding = _disable_dynamo(_hidden).__code__
    found: dict[int, Callable[..., object]] = {}
    for table in global_decomposition_table.values():
        for known in table.values():
            one: Callable[..., object] | None = known
            while one is not None:
                inside = _inside(one)
                if inside is not None and getattr(one, "__code__", None) is hiding:
                    found[id(inside)] = inside
                one = inside
    return tuple(found.values())


def _inside(function: Callable[..., object]) -> Callable[..., object] | None:
    """Return the function that a decorator of torch's was given, None if there is none."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    given = dict(zip(names, cells, strict=False)).get("fn")
    inside = None if given is None else given.cell_contents
    return inside if callable(inside) else None


def _put(stack: ExitStack, owner: object, name: str, value: object) -> None:
    stack.callback(setattr, owner, name, vars(owner)[name])
    setattr(owner, name, value)


def _is_nowhere(value: object) -> bool:
    return memory_of(value).type == NOWHERE.type


def _making_nowhere(function: Callable[..., object]) -> Callable[..., object]:
    """Return the function with the machine's device as an argument replaced by no memory."""

    def make(*args: object, **kwargs: object) -> object:
        args = tuple(NOWHERE if _names_device(value) else value for value in args)
        if _names_device(kwargs.get("device")) or type(kwargs.get("device")) is int:
            kwargs["device"] = NOWHERE
        return passed_on(function, *args, **kwargs)

    return make


def _names_device(value: object) -> bool:
    named = isinstance(value, torch.device) and value.type == "cuda"
    return named or (isinstance(value, str) and value.partition(":")[0] == "cuda")


def _stays(original: Callable[..., Any]) -> Callable[..., Any]:
    def cuda(self: object, *args: object, **kwargs: object) -> Any:
        return self if _is_nowhere(self) else passed_on(original, self, *args, **kwargs).to(NOWHERE)

    return cuda

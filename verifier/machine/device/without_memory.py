"""Tensors of the machine's device that have no memory: wrappers run on them as fast as Python does."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
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
        yield


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

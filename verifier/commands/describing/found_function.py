"""Which function of a file is described: a plain one, or the `apply` of an autograd function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

import torch

from verifier.audit.request import SelectionError
from verifier.commands.describing.calling import takes_an_input
from verifier.execution.trial_import import try_out
from verifier.records.subject import Subject
from verifier.subjects.load_file import load

APPLY = ".apply"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A function of a file. name: of what the file defines. called: the text by which it is called."""

    name: str
    called: str
    function: Callable[..., object]

    @property
    def signature(self) -> str:
        """The text by which it is called, with its arguments."""
        return f"{self.called}{inspect.signature(self.function)}"


def found_function(path: Path, name: str | None) -> Found:
    """Return the function of a file that has this name, or the one that takes an input.

    Raises:
        LoadError: the file does not load.
        SelectionError: it has no such function, or several and none is named.

    """
    try_out(path)
    every = {found.name: found for found in _functions(load(path).module)}
    if name is not None:
        wanted = name.removesuffix(APPLY)
        if wanted not in every:
            raise SelectionError(f"{path} has no function {name!r}; it has {', '.join(every) or 'none'}")
        return every[wanted]
    public = [f for n, f in every.items() if not n.startswith("_") and takes_an_input(f.function)]
    plain = [f for f in public if f.called == f.name]
    likely = plain or public
    if len(likely) != 1:
        names = ", ".join(found.name for found in likely) or "none"
        raise SelectionError(f"{path}: name the function with --function; those that take an input: {names}")
    return likely[0]


def origin(path: Path, function: Callable[..., object]) -> Iterator[str]:
    """Yield what the file says of the document that the function is taken from, if it declares it."""
    for declared in load(path).subjects:
        if declared.function is function and (source := declared.source) is not None:
            told = f"author or site: {source.author}{f', {source.url}' if source.url else ''}"
            yield f"source: {source.summary} ({told}; licence: {source.licence})"


def _functions(module: ModuleType) -> Iterator[Found]:
    for name, value in vars(module).items():
        if isinstance(value, Subject):
            yield Found(name=name, called=name, function=value.function)
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            yield Found(name=name, called=name, function=value)
        elif _is_autograd(value) and value.__module__ == module.__name__:
            yield Found(name=name, called=name + APPLY, function=_applied(value))
        elif inspect.ismethod(value) and _is_autograd(value.__self__) and value.__name__ == "apply":
            yield Found(name=name, called=name, function=_applied(value.__self__))


def _is_autograd(value: object) -> TypeGuard[type[torch.autograd.Function]]:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _applied(made: type[torch.autograd.Function]) -> Callable[..., object]:
    """Return the `apply` of an autograd function with the signature of its `forward`, all by place."""
    forward = inspect.signature(made.forward)
    parameters = [
        p.replace(kind=p.POSITIONAL_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
        for p in forward.parameters.values()
    ]
    if made.setup_context is torch.autograd.Function.setup_context:
        parameters = parameters[1:]  # ctx

    def apply(*given: object) -> object:
        return made.apply(*given)  # type: ignore[no-untyped-call]

    functools.update_wrapper(apply, made)
    apply.__signature__ = forward.replace(parameters=parameters)  # type: ignore[attr-defined]
    return apply

"""A CUDA device whose memory is the CPU's: where tensors say that they lie, and how they get elsewhere.

Every byte lies in memory of the CPU, and torch's C++ knows no better. What Python asks a tensor is answered
by the session in force: a tensor lies on its device unless it was made or moved elsewhere by name.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatch_mode import DeviceMode
from verifier.machine.device.tensor_places import (
    HOST,
    REAL,
    is_pinned,
    memory_of,
    must_be_waited_for,
    named,
    pin_memory,
    pinned,
    place_of,
    put,
    storage_clone,
    storage_place,
)
from verifier.machine.device.torch_cuda import queries
from verifier.machine.in_force import current
from verifier.machine.sanitizers.uninitialised import poison_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# fmt: off
_FACTORIES = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "tensor", "as_tensor", "empty_like", "zeros_like", "ones_like", "full_like",
    "rand_like", "randn_like", "randint_like", "empty_strided", "empty_permuted", "scalar_tensor", "normal",
    "asarray", "tril_indices", "triu_indices", "from_numpy", "frombuffer",
)
# fmt: on
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")
_ALIASING = frozenset({"as_tensor", "asarray"})
_patched: list[ExitStack] = []


@contextmanager
def redirected() -> Iterator[None]:
    """Patch torch so that tensors, factories and `torch.cuda` speak of the machine that is in force.

    Patched by name, since a torch function mode is switched off by autograd in backward; a dispatch mode sees
    what goes round the names. Sessions inside sessions share the patches: each call asks who is in force.
    """
    if _patched:
        yield
        return
    with ExitStack() as stack:
        _patched.append(stack)
        stack.callback(_patched.clear)
        for owner, name, value in (*_of_tensors(), *_of_factories(), *queries()):
            _patch(stack, owner, name, value)
        stack.enter_context(DeviceMode())  # type: ignore[no-untyped-call]
        yield


def _patch(stack: ExitStack, owner: object, name: str, value: object) -> None:
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)


def _of_tensors() -> Iterator[tuple[object, str, object]]:
    """List what tensors, storages and modules answer."""
    tensor, storage = torch.Tensor, torch.UntypedStorage
    yield tensor, "device", property(place_of)
    yield tensor, "is_cuda", property(lambda self: place_of(self).type == "cuda")
    yield tensor, "is_cpu", property(lambda self: place_of(self).type == "cpu")
    yield tensor, "get_device", _get_device
    yield torch, "get_device", _get_device
    yield tensor, "type", _type
    yield tensor, "type_as", _to
    yield tensor, "to", _to
    yield tensor, "cuda", _cuda
    yield tensor, "cpu", _cpu
    yield tensor, "pin_memory", pin_memory
    yield tensor, "is_pinned", is_pinned
    yield tensor, "record_stream", lambda self, stream: None
    for owner in (torch, torch.utils.dlpack):
        yield owner, "from_dlpack", _from_dlpack(torch.utils.dlpack.from_dlpack)
    yield torch.nn.Module, "to", _module_to(torch.nn.Module.to)
    yield storage, "device", property(storage_place)
    yield storage, "is_cuda", property(lambda self: storage_place(self).type == "cuda")
    yield storage, "get_device", _get_device
    yield storage, "clone", storage_clone


def factories() -> Iterator[tuple[object, str]]:
    """List what makes tensors: where it stands, by which name."""
    yield from ((torch, name) for name in _FACTORIES if hasattr(torch, name))
    yield from ((torch.Tensor, name) for name in _NEW)


def _of_factories() -> Iterator[tuple[object, str, object]]:
    for owner, name in factories():
        word = name if owner is torch else f"Tensor.{name}"
        yield owner, name, _placing(word, getattr(owner, name))


# What tensors are asked


def _get_device(self: Any) -> int:
    place = self.device
    return -1 if place.index is None else place.index


def _type(self: Any, dtype: object = None, non_blocking: bool = False, **kwargs: object) -> Any:
    if dtype is None:
        word = passed_on(REAL.type, self).rpartition(".")[2]
        return f"torch.cuda.{word}" if self.is_cuda else f"torch.{word}"
    word = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", "")
    if not word.endswith("Tensor"):
        return passed_on(REAL.type, self, dtype, **kwargs)
    place = "cuda" if ".cuda." in f".{dtype if isinstance(dtype, str) else dtype.__module__}." else "cpu"
    plain = passed_on(REAL.type, self, f"torch.{word.rsplit('.', 1)[-1]}", **kwargs)
    return _to(plain, self.device if place == self.device.type else place)


# How tensors get elsewhere


class _Moved(torch.autograd.Function):
    """A copy that lies elsewhere; its gradient comes back to where the tensor lay."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
        """Copy."""
        ctx.source = place_of(tensor)
        return put(tensor.clone(), place)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Copy back."""
        return _moved(grads[0], ctx.source), None


def _moved(tensor: torch.Tensor, place: torch.device) -> torch.Tensor:
    if not tensor.requires_grad:  # no gradient comes back, and autograd takes as long as the copy
        return put(tensor.clone(), place)
    copy: torch.Tensor = _Moved.apply(tensor, place)  # type: ignore[no-untyped-call]
    return copy


def _to(self: Any, *args: object, **kwargs: Any) -> Any:
    opened = current()
    given, options = list(args), dict(kwargs)
    order: tuple[str, ...]
    other = options.pop("other", None)
    if given and isinstance(given[0], torch.Tensor):
        other, order = given.pop(0), ("non_blocking", "copy")
    elif given and isinstance(given[0], torch.dtype):
        order = ("dtype", "non_blocking", "copy")
    else:
        order = ("device", "dtype", "non_blocking", "copy")
    if opened is None or memory_of(self).type != "cpu" or len(given) > len(order):
        return passed_on(REAL.to, self, *args, **kwargs)
    options.update(zip(order, given, strict=False))
    target = named(opened, options.pop("device", None)) if other is None else other.device
    if other is not None:
        options["dtype"] = other.dtype
    unwaited = bool(options.pop("non_blocking", None))
    if target is not None and target.type not in {"cpu", "cuda"}:
        return passed_on(REAL.to, self, target, **options)
    if target is None or target == self.device:
        return passed_on(REAL.to, self, None, **options)
    opened.redirected.append(("Tensor.to", str(target)))
    if unwaited:
        must_be_waited_for(opened, self, target, made=True)
    options.pop("copy", None)
    return passed_on(REAL.to, _moved(self, target), None, **options)


def _cuda(
    self: object, device: object = None, non_blocking: bool = False, memory_format: object = None
) -> Any:
    options = {} if memory_format is None else {"memory_format": memory_format}
    return _to(self, "cuda" if device is None else device, non_blocking=non_blocking, **options)


def _cpu(self: object, memory_format: object = None) -> object:
    return _to(self, HOST, **({} if memory_format is None else {"memory_format": memory_format}))


def _module_to(original: Any) -> Any:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Torch reads a bare number as a device of the accelerator that it sees, and it sees none."""
        first = [torch.device("cuda", args[0])] if args and type(args[0]) is int else list(args[:1])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return passed_on(original, self, *first, *args[1:], **kwargs)

    return to


def _from_dlpack(original: Any) -> Any:
    def from_dlpack(ext_tensor: Any, **kwargs: object) -> Any:
        """Share memory; what is shared lies where it lay."""
        if not isinstance(ext_tensor, torch.Tensor) or kwargs:
            return passed_on(original, ext_tensor, **kwargs)
        made = passed_on(torch._C._from_dlpack, passed_on(torch._C._to_dlpack, ext_tensor))
        return put(made, place_of(ext_tensor))

    return from_dlpack


# How tensors come to be


def _placing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a factory make its tensor on the CPU, and say on which device it lies."""
    word = name.rpartition(".")[2]

    def make(*args: Any, **kwargs: object) -> Any:
        opened = current()
        if opened is None:
            return passed_on(function, *args, **kwargs)
        if "device" not in kwargs:  # torch.as_tensor takes it by its place, too
            named_by_place = [a for a in args if isinstance(a, torch.device) or _names_cuda(a)]
            args = tuple(a for a in args if not any(a is n for n in named_by_place))
            kwargs |= {"device": named_by_place[0]} if named_by_place else {}
        place = named(opened, kwargs.get("device"))
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if word in _ALIASING and source is not None:
            return _aliasing(source, place, *args[1:], **kwargs)
        generator = kwargs.get("generator")
        if opened.strict and generator is not None:
            _refuse_another(generator, place or (_default_place() if source is None else place_of(source)))
        if place is not None and place.type == "cuda":
            opened.redirected.append((name, str(place)))
            kwargs["device"] = HOST
        pins = kwargs.pop("pin_memory", False)
        made = passed_on(function, *args, **kwargs)
        if kwargs.get("out") is None:
            if place is None and source is None:
                place = HOST if word in {"from_numpy", "frombuffer"} else _default_place()
            if place is not None and place.type in {"cpu", "cuda"}:
                put(made, named(opened, place) or place)
        if "empty" in word and "uninitialised" in opened.machine.sanitize:
            poison_storage(made, 0xA5 if opened.machine.poison is None else opened.machine.poison)
        return pinned(made) if pins else made

    make.__wrapped__ = function  # type: ignore[attr-defined]
    return make


def _refuse_another(generator: object, place: torch.device) -> None:
    """Raise what torch raises where numbers for one device are to be drawn by a generator of another."""
    assert isinstance(generator, torch.Generator)
    if generator.device.type != place.type:
        raise RuntimeError(
            f"Expected a '{place.type}' device type for generator but found '{generator.device.type}'"
        )


def _default_place() -> torch.device:
    """Return what `torch.set_default_device` or `with torch.device(...)` chose."""
    for mode in reversed(_get_current_function_mode_stack()):  # type: ignore[no-untyped-call]
        if isinstance(mode, DeviceContext):
            return mode.device
    return HOST


def _names_cuda(value: object) -> bool:
    return isinstance(value, str) and value.split(":")[0] == "cuda"


def _aliasing(source: torch.Tensor, place: torch.device | None, *args: object, **kwargs: object) -> Any:
    """Do what `torch.as_tensor` and `torch.asarray` do with a tensor."""
    dtype = args[0] if args else kwargs.get("dtype")
    made = _to(source, place, dtype, copy=bool(kwargs.get("copy", False)))
    return made.requires_grad_() if kwargs.get("requires_grad") else made

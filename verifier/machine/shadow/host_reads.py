"""What a subject's Python reads of tensors past torch's operations, where no dispatch mode sees it."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, cast

import numpy as np

from verifier.machine.culprit import is_library, is_of_subjects, modules_of_subjects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

_SHARING = ("numpy", "__dlpack__")
"""Methods of tensors that hand out their memory: `np.asarray` calls the first."""
_TELLING = ("tolist", "__repr__", "__reduce_ex__")
"""Methods that tell what a tensor holds; copies are pickled, and `torch.save` pickles."""
_OF_STORAGES = (
    *("__reduce__", "__reduce_ex__", "_write_file", "_share_fd_cpu_", "_share_filename_cpu_", "_share_cuda_"),
    *("__setitem__", "fill_", "copy_", "resize_", "_byteswap", "_swap_data_ptr_", "_set_from_file"),
)
"""Methods of the storage below a tensor that hand out its bytes, or write them."""
_CALLING_BACK = ("apply_", "map_", "map2_")
"""Methods that hand each number to a function of Python, and write what that returns."""
_READING_PARTS = frozenset({"tensor_split", "fbgemm_linear_quantize_weight", "ctc_loss"})
"""Operations that torch makes of others, and that look at what their operands hold meanwhile."""
_OF_MEMORY = ("from_numpy", "frombuffer", "from_dlpack", "from_file")
"""Functions of torch that make a tensor of memory that Python goes on to hold, and reads when it likes."""
_PERHAPS_OF_MEMORY = ("as_tensor", "asarray")
"""Those that do where they are not given a tensor, numbers, or sequences, of which they make a copy."""
_FOLLOWING_CODE = ("setprofile", "settrace")
"""Functions by which code of a subject runs inside of other code, the recorder's too."""
_WITHOUT_MODES = (
    *("_DisableTorchDispatch", "_ForceDispatchKeyGuard", "_RestorePythonTLSSnapshot"),
    *("_pop_torch_dispatch_stack", "_set_dispatch_mode", "_unset_dispatch_mode"),
)
"""Functions and guards of torch's C++ by which its dispatch modes are gone."""
_BY_KEY = (
    *("_dispatch_tls_set_dispatch_key_excluded", "_dispatch_tls_set_dispatch_key_included"),
    "_SetExcludeDispatchKeyGuard",
)
"""Those by which they are, where they are given the key of modes."""
_UNSEEN = "operations of torch where no recorder sees them"


@contextmanager
def reads_noted(asked: set[str], fixed: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Add to `asked` how a subject comes by what tensors hold, without an operation of torch.

    fixed: whether all of a tensor is the same for all inputs. Memory that is shared may be read, or written
    behind the recorder's back, at any later time: sharing it is noted whatever it holds by now.
    """
    import torch
    from torch.utils import _python_dispatch

    def always(*_args: object, **_kwargs: object) -> bool:
        return True

    def tells(tensor: object, *_args: object, **_kwargs: object) -> bool:
        return not fixed(cast("torch.Tensor", tensor))

    def looks(*args: object, **kwargs: object) -> bool:
        return any(map(tells, _tensors((*args, *kwargs.values()))))

    def looks_by_name(called: object, *args: object, **kwargs: object) -> bool:
        return _reads_parts(called) and looks(*args, **kwargs)

    replaced: dict[int, tuple[object, object]] = {}

    def noting(
        what: str, original: Callable[..., object], when: Callable[..., bool]
    ) -> Callable[..., object]:
        @wraps(original)
        def called(*args: object, **kwargs: object) -> object:
            if when(*args, **kwargs) and _asked_by_subject():
                asked.add(what)
            return original(*args, **kwargs)

        return called

    with ExitStack() as stack:

        def patch(owner: object, name: str, *, when: Callable[..., bool] = always, what: str = "") -> None:
            original = getattr(owner, name, None)
            if original is None:
                return  # this version of torch has no such method: nobody can call it
            if name in vars(owner):
                stack.callback(setattr, owner, name, original)
            else:
                stack.callback(delattr, owner, name)
            made = noting(what or name, original, when)
            setattr(owner, name, made)
            replaced[id(original)] = original, made

        for name in _SHARING:
            patch(torch.Tensor, name)
        for name in _TELLING:
            patch(torch.Tensor, name, when=tells)
        for name in _OF_MEMORY:
            patch(torch, name)
        for name in _PERHAPS_OF_MEMORY:
            patch(torch, name, when=lambda *a, **k: _given_memory(*a, **k) or _asks_objects(*a, **k))
        for name in _CALLING_BACK:
            patch(torch.Tensor, name)
        for name in sorted(_READING_PARTS):
            patch(torch, name, when=looks)
            patch(torch.Tensor, name, when=looks)
        for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
            patch(kind, "__call__", when=looks_by_name, what="a part of a tensor")
        for name in _OF_STORAGES:
            patch(torch.UntypedStorage, name, what=f"{name} of a storage")
        patch(torch._C.PyTorchFileWriter, "write_record", what="a file of a tensor")
        patch(torch.utils.dlpack, "to_dlpack")
        patch(torch.utils.dlpack, "from_dlpack")
        patch(torch, "to_dlpack")
        for name in ("_to_dlpack", "_to_dlpack_versioned"):
            patch(torch._C, name)
        # A dispatch mode is one thread's: what another does to tensors is neither seen nor ordered.
        patch(threading.Thread, "start", what="a thread of its own")
        for name in ("start_new_thread", "start_joinable_thread"):
            patch(_thread, name, what="a thread of its own")
            patch(threading, f"_{name}", what="a thread of its own")
        patch(os, "fork", what="a process of its own")
        patch(_python_dispatch, "_pop_mode", what=_UNSEEN)
        for name in _WITHOUT_MODES:
            patch(torch._C, name, what=_UNSEEN)
        for name in ("_ExcludeDispatchKeyGuard", "ExcludeDispatchKeyGuard"):
            patch(torch._C, name, when=_of_modes, what=_UNSEEN)
        for name in _BY_KEY:
            patch(torch._C, name, when=_key_of_modes, what=_UNSEEN)
        patch(torch._ops.OpOverload, "redispatch", when=_past_modes, what=_UNSEEN)
        for owner, name in ((torch, "tensor"), (torch.Tensor, "new_tensor")):
            patch(owner, name, when=_asks_objects, what=f"{name} of objects that are no numbers")
        for name in _FOLLOWING_CODE:
            patch(sys, name)
        _in_modules_of_subjects(stack, replaced)
        yield


@lru_cache(maxsize=1 << 12)
def _reads_parts(called: object) -> bool:
    """Whether an operation, or one of its overloads, is one of `_READING_PARTS`."""
    packet = getattr(called, "overloadpacket", called)
    return getattr(packet, "__name__", "") in _READING_PARTS


def _in_modules_of_subjects(stack: ExitStack, replaced: Mapping[int, tuple[object, object]]) -> None:
    """Replace functions where modules of subjects have imported them by name; replaced: by id, by which."""
    for module in modules_of_subjects():
        if replaced.keys().isdisjoint(map(id, list(vars(module).values()))):
            continue
        for name, value in list(vars(module).items()):
            original, made = replaced.get(id(value), (None, None))
            if original is not None and value is original:
                stack.callback(setattr, module, name, value)
                setattr(module, name, made)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, and in sequences of them."""
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _given_memory(*args: object, **kwargs: object) -> bool:
    """Whether a function is given an object whose memory a tensor of it shares."""
    import torch

    given = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    return not isinstance(given, torch.Tensor | list | tuple | int | float | complex)


def _of_modes(keys: torch._C.DispatchKeySet, *_: object) -> bool:
    """Whether a set of keys of dispatch has that of the modes."""
    import torch

    return keys.has(torch._C.DispatchKey.Python)


def _key_of_modes(key: torch._C.DispatchKey, *_: object) -> bool:
    import torch

    return key in {torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot}


def _past_modes(_: object, keys: torch._C.DispatchKeySet, *_args: object, **_kwargs: object) -> bool:
    return not _of_modes(keys)


def _asks_objects(*args: object, **kwargs: object) -> bool:
    """Whether a function that makes a tensor is given anything else than numbers, and sequences of them.

    It asks what it is given for numbers, and torch's dispatch modes are switched off meanwhile.
    """
    import torch

    given: list[object] = [one for one in args if not isinstance(one, torch.Tensor)] + list(kwargs.values())
    plain = (torch.Tensor, torch.dtype, torch.device, np.ndarray, np.generic, str, type(None))
    while given:
        one = given.pop()
        if isinstance(one, list | tuple) and type(one) in {list, tuple, torch.Size}:
            given += one
        elif type(one) not in {bool, int, float, complex} and not isinstance(one, plain):
            return True
    return False


def _asked_by_subject() -> bool:
    """Whether the innermost frame that is no library's is the subject's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return is_of_subjects(frame.f_code.co_filename)

"""Which functions a function may call: its own, those of modules it uses, and kernels that it may launch.

Names are followed without a call: globals, imports inside a function, attributes of modules, cells, defaults,
and what containers and objects of the subject's own classes hold. Where names are computed it is said so.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Protocol, TypeGuard

from torch._library.custom_ops import CustomOpDef

from verifier.machine.culprit import is_of_subjects
from verifier.subjects.cuda_source import CudaSource, Kernel, Launch
from verifier.subjects.inner_imports import computed_inside, imported_inside

_MOST = 20_000
"""Objects looked at, at most: a subject may hold any data."""
_ITEMS = 1_000


class TunedWays(Protocol):
    """What of a configuration of an autotuner is read: the constants that it gives the kernel."""

    kwargs: Mapping[str, object]


class ChoosingTuner(Protocol):
    """What of an autotuner of Triton's is read."""

    fn: object
    configs: Sequence[TunedWays]


@dataclass(frozen=True, kw_only=True)
class PythonFunction:
    """A function by its file and first line; kernel: Triton compiles it; launched: the host may do so."""

    path: str
    name: str
    line: int
    code: CodeType
    kernel: bool
    launched: bool = False


@dataclass(kw_only=True)
class Used:
    """What a function uses; unfollowed: where it may come to more, in words.

    tuners: Triton's autotuners with a choice. names: all names in the code of its functions.
    """

    functions: list[PythonFunction] = field(default_factory=list)
    cuda_sources: list[str] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)
    tuners: list[ChoosingTuner] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


def used_by(function: Callable[..., object]) -> Used:
    """Return the functions of subjects' own files that a function may come to, itself included."""
    used = Used()
    own_file = getattr(getattr(function, "__code__", None), "co_filename", "")
    seen: set[int] = set()
    met: dict[tuple[str, int], PythonFunction] = {}
    waiting: list[tuple[object, frozenset[str], bool]] = [(function, frozenset(), False)]
    kept: list[object] = []  # so that no two objects have one id
    while waiting and len(kept) < _MOST:
        value, names, in_kernel = waiting.pop()
        key = id(value) if not isinstance(value, ModuleType) else hash((id(value), names))
        if key in seen:
            continue
        seen.add(key)
        kept.append(value)
        inner = _compiled_by_triton(value)
        if inner is not None:
            used.tuners += _tuners(value)
            _add(met, inner, kernel=True, launched=not in_kernel)
            waiting += [(v, n, True) for v, n in _of_function(inner)]
        elif isinstance(value, CudaSource | Kernel | Launch):
            used.cuda_sources.append(str(_source(value).path))
        elif isinstance(value, FunctionType):
            if is_of_subjects(value.__code__.co_filename):
                _add(met, value, kernel=False)
                used.names.update(_names(value.__code__))
                waiting += [(v, n, in_kernel) for v, n in _of_function(value)]
                waiting += [(m, n, in_kernel) for m, n in _imported(value, used, own_file)]
            elif hasattr(value, "__wrapped__"):  # a library's decorator
                waiting.append((value.__wrapped__, frozenset(), in_kernel))
        else:
            waiting += [(v, names, in_kernel) for v in _held(value, names)]
    used.functions = sorted(met.values(), key=lambda f: (f.path, f.line))
    used.cuda_sources = sorted(set(used.cuda_sources))
    return used


def _imported(
    function: FunctionType, used: Used, own_file: str
) -> Iterator[tuple[ModuleType, frozenset[str]]]:
    """Yield the modules that a function imports, with all names of its code; note what is not followed."""
    used.unfollowed += computed_inside(function)
    names = frozenset(_names(function.__code__))
    for found in imported_inside(function, own_file):
        if isinstance(found, str):
            used.unfollowed.append(found)
        else:
            yield found, names


def _source(value: CudaSource | Kernel | Launch) -> CudaSource:
    value = value.kernel if isinstance(value, Launch) else value
    return value.source if isinstance(value, Kernel) else value


def _add(met: dict[tuple[str, int], PythonFunction], function: FunctionType, **known: bool) -> None:
    code = function.__code__
    if code.co_name == "<lambda>" or not is_of_subjects(code.co_filename):
        return
    name = function.__qualname__.replace("<locals>.", "")
    made = PythonFunction(
        path=code.co_filename,
        name=name,
        line=code.co_firstlineno,
        code=code,
        **known,
    )
    before = met.get((made.path, made.line))
    if before is None or (made.launched and not before.launched):
        met[made.path, made.line] = made


def _compiled_by_triton(value: object) -> FunctionType | None:
    """Return the function in an object of `triton.jit`, `autotune` or `heuristics`, or None."""
    depth = 0
    while type(value).__module__.split(".")[0] == "triton" and hasattr(value, "fn") and depth < 10:
        value, depth = value.fn, depth + 1
    return value if depth and isinstance(value, FunctionType) else None


def _tuners(value: object) -> Iterator[ChoosingTuner]:
    """Yield the autotuners with a choice about a function that Triton compiles."""
    while hasattr(value, "fn"):
        if _is_tuner(value) and len(value.configs) > 1:
            yield value
        value = value.fn


def _is_tuner(value: object) -> TypeGuard[ChoosingTuner]:
    return type(value).__name__ == "Autotuner"


def _of_function(function: FunctionType) -> Iterator[tuple[object, frozenset[str]]]:
    """Yield what a function's code may name, each with all names of the code.

    Of a module of which the code only asks for attributes, these are yielded in its place.
    """
    names, attributes = frozenset(_names(function.__code__)), dict[str, set[str] | None]()
    _note_attributes(function.__code__, attributes)
    for name in names:
        if name in function.__globals__:
            value, asked = function.__globals__[name], attributes.get(name)
            if isinstance(value, ModuleType) and asked is not None:
                yield from ((one, names) for one in _held(value, frozenset(asked)))
            else:
                yield value, names
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents, names
        except ValueError:  # not bound yet
            continue
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield value, names
    if hasattr(function, "__wrapped__"):
        yield function.__wrapped__, names


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _note_attributes(code: CodeType, found: dict[str, set[str] | None]) -> None:
    """Note of each global the attributes that are asked of it, None where it is used in another way, too."""
    for step, after in pairwise(dis.get_instructions(code)):
        if step.opname in _GLOBALS:
            before = found.setdefault(str(step.argval), set())
            asks = after.opname in _ATTRIBUTES and before is not None
            found[str(step.argval)] = {*(before or ()), str(after.argval)} if asks else None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _note_attributes(constant, found)


_GLOBALS, _ATTRIBUTES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"}), frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def _held(value: object, names: frozenset[str]) -> Iterator[object]:
    """Yield what a value holds that code with these names may come to."""
    if isinstance(value, ModuleType):
        if _own_module(value):
            yield from (vars(value)[name] for name in names if name in vars(value))
    elif isinstance(value, dict):
        yield from list(value.values())[:_ITEMS]
    elif isinstance(value, list | tuple | set | frozenset):
        yield from list(value)[:_ITEMS]
    elif isinstance(value, functools.partial | functools.partialmethod):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, staticmethod | classmethod):
        yield value.__func__
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, type):
        if _own_class(value):
            yield from list(vars(value).values())
            yield from value.__bases__
    elif isinstance(value, CustomOpDef):  # of torch.library: it holds what was registered
        yield from vars(value).values()
    elif hasattr(value, "__wrapped__"):
        yield value.__wrapped__
    elif _own_class(type(value)):
        yield type(value)
        yield from getattr(value, "__dict__", {}).values()
        slots = (member for one in type(value).__mro__ for member in vars(one).values())
        for slot in (member for member in slots if isinstance(member, MemberDescriptorType)):
            with contextlib.suppress(AttributeError):  # empty
                yield slot.__get__(value)


def _own_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is None or is_of_subjects(file)


def _own_class(made: type) -> bool:
    module = sys.modules.get(made.__module__)
    return module is not None and getattr(module, "__file__", None) is not None and _own_module(module)

"""Whose an exception is: raised by what a subject does, or by the verifier itself."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from operator import is_
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import TypeVar

from strategies.registry import extension_roots

_HERE = Path(__file__).resolve().parents[1]
_OURS = (str(_HERE), str(_HERE.parent / "strategies"))
_KERNELS = str(_HERE / "kernels")
"""Where the built-in subjects lie in an installed package: they are subjects like any other."""
_MACHINE = str(_HERE / "machine")
"""What stands in for a device, and for functions of torch's, whoever calls them."""
_LIBRARIES = ("torch", "triton", "numpy", "cuda", "sympy")
"""Packages that compute for whoever calls them."""
_DOORS = frozenset(
    str(_HERE / f"{name}.py")
    for name in (
        "machine/device/dispatch_mode",
        "machine/device/streams",
        "machine/device/torch_cuda",
        "machine/device/torch_redirect",
        "machine/device/triton_driver",
        "machine/execute/arguments",
        "subjects/cuda_source",
        "subjects/nvrtc",
    )
)
"""Files whose own functions a subject calls: what they `raise` says that it called them wrongly."""
_AUTOGRAD = ("torch.autograd", "torch.autograd.graph")
"""Modules that hand a backward pass to torch's engine, in older and in newer versions."""

Result = TypeVar("Result")


def passed_on(function: Callable[..., Result], /, *args: object, **kwargs: object) -> Result:
    """Call a function for the subject, with its own arguments: what it raises is the subject's doing."""
    return function(*args, **kwargs)


def is_own(error: BaseException) -> bool:
    """Return whether the verifier failed, not the subject.

    It is decided by the innermost frame that belongs to either: libraries work for whoever called them. A
    frame of ours is the subject's doing if it passes a call on, or raises on purpose where a subject calls.
    """
    from verifier.machine.execute.findings import LaunchError, MachineFinding

    if isinstance(error, LaunchError | MachineFinding):  # said on purpose, of the subject
        return False
    if isinstance(error, RecursionError) and _subject_recurs(error):  # it may end in any function
        return False
    for deepest, (code, last) in enumerate(reversed(list(_frames(error.__traceback__)))):
        file = code.co_filename
        if code is passed_on.__code__:
            return False
        if _of_ours(file, extension_roots()):
            return not (deepest == 0 and file in _DOORS and _raises(code, last))
        if not is_library(file):
            return False
    return False


def _subject_recurs(error: RecursionError) -> bool:
    """Return whether a function of the subject's is called again and again, about as often as any."""
    calls = Counter(code for code, _ in _frames(error.__traceback__))
    most = max(calls.values(), default=0)
    often = (code for code, times in calls.items() if times > 1 and times * 4 >= most)
    return any(is_of_subjects(code.co_filename) for code in often)


def said_by_subject(error: BaseException) -> bool:
    """Return whether a `raise` in code of the subject's own made the exception, whatever its text says."""
    innermost = _frames(error.__traceback__)[-1:]
    return any(is_of_subjects(code.co_filename) and _raises(code, last) for code, last in innermost)


def place(error: BaseException) -> str:
    """Return the innermost place of ours in the traceback: function, file and line."""
    ours = [
        (traceback.tb_frame.f_code, traceback.tb_lineno)
        for traceback in _links(error.__traceback__)
        if _under(traceback.tb_frame.f_code.co_filename, (*_OURS, *extension_roots()))
    ]
    if not ours:
        return ""
    code, line = ours[-1]
    return f"{code.co_qualname}, {code.co_filename}:{line}"


def in_backward(error: BaseException) -> bool:
    """Return whether torch's backward pass failed by itself, not a function of Python that it called."""
    innermost = _links(error.__traceback__)[-1:]
    return any(link.tb_frame.f_globals.get("__name__") in _AUTOGRAD for link in innermost)


def _links(traceback: TracebackType | None) -> list[TracebackType]:
    links = []
    while traceback is not None:
        links.append(traceback)
        traceback = traceback.tb_next
    return links


def _frames(traceback: TracebackType | None) -> list[tuple[CodeType, int]]:
    """Return code and last instruction of each frame, outermost first."""
    return [(link.tb_frame.f_code, link.tb_lasti) for link in _links(traceback)]


def _raises(code: CodeType, last: int) -> bool:
    """Return whether the instruction at that offset is a `raise`."""
    instructions = code.co_code  # none of what Cython made
    return last < len(instructions) and dis.opname[instructions[last]] == "RAISE_VARARGS"


def is_of_subjects(file: str) -> bool:
    """Return whether a file is neither ours nor a library's: what it holds is a subject's doing."""
    return _is_of_subjects(file, extension_roots())


def modules_of_subjects() -> tuple[ModuleType, ...]:
    """Return the loaded modules whose files are a subject's, as `is_of_subjects` says it."""
    loaded, roots = list(sys.modules.values()), extension_roots()
    same = len(loaded) == len(_seen.loaded) and all(map(is_, loaded, _seen.loaded))
    if not same or _seen.roots != roots:
        found = (m for m in loaded if _is_of_subjects(getattr(m, "__file__", None) or "<", roots))
        _seen.loaded, _seen.roots, _seen.found = loaded, roots, tuple(found)
    return _seen.found


@dataclass(kw_only=True)
class _Seen:
    """All modules that were loaded when those of subjects were last looked for, and these."""

    loaded: list[ModuleType]
    roots: tuple[str, ...]
    found: tuple[ModuleType, ...]


_seen = _Seen(loaded=[], roots=(), found=())


@lru_cache(maxsize=1 << 14)
def _is_of_subjects(file: str, roots: tuple[str, ...]) -> bool:
    return not (_of_ours(file, roots) or is_library(file))


def run_for_subject() -> bool:
    """Whether what runs now is the subject's doing, by the innermost frame that tells: not the machine's."""
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_code is not passed_on.__code__
        and (_under(frame.f_code.co_filename, (_MACHINE,)) or is_library(frame.f_code.co_filename))
    ):
        frame = frame.f_back
    return frame.f_code is passed_on.__code__ or is_of_subjects(frame.f_code.co_filename)


def _of_ours(file: str, roots: tuple[str, ...]) -> bool:
    ours = _under(file, _OURS) or _under(file, roots)
    return file.startswith("<machine:") or (ours and not _under(file, (_KERNELS,)))


def _under(file: str, folders: tuple[str, ...]) -> bool:
    return any(file.startswith(f"{folder}/") for folder in folders)


@lru_cache(maxsize=1 << 14)
def is_library(file: str) -> bool:
    """Return whether a file belongs to a library, or to Python; other installed packages are subjects."""
    if file.startswith(("<", *_packages())):
        return True
    return file.startswith(_python()) and "/site-packages/" not in file and "/dist-packages/" not in file


@cache
def _python() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


@cache
def _packages() -> tuple[str, ...]:
    specs = [find_spec(name) for name in _LIBRARIES]
    return tuple(f"{place}/" for spec in specs if spec for place in spec.submodule_search_locations or ())

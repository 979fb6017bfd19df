"""Numbers in the sources of a subject's kernels: what is compared with one may go wrong just there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import numpy as np

from verifier.records.subject import Subject
from verifier.subjects.cuda_outline import without_comments
from verifier.subjects.function_nodes import FunctionNode, node_of
from verifier.subjects.source_map import SourceFunction, source_map

MOST = 8
"""Numbers that are returned at most."""
LEAST, LARGEST = 2.0**-14, 2.0**16
"""Of numbers that only compiled code has; float16 is normal between."""
_BOUNDARIES = frozenset({"where", "maximum", "minimum", "clamp", "max", "min", "fmaxf", "fminf"})
_FLOAT = re.compile(
    r"(?<![\w.])(\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)[fF]?(?!\w)"
)
_COMPARED = re.compile(r"[<>=]=?\s*-?(\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)[fF]?\b")

_known: dict[tuple[str, str], tuple[float, ...]] = {}


def source_numbers(subject: Subject) -> tuple[float, ...]:
    """Return magnitudes of literals of a subject's kernels: those that something is compared with first.

    Of these kernels' files the constants at the top count, too; 0 and 1 come last, and never alone:
    cases have them anyway.
    """
    key = (str(subject.path), subject.name)
    if key not in _known:
        functions = source_map(subject).functions
        found = sorted(_all(functions), key=lambda one: (one[1] in {0.0, 1.0}, not one[0]))
        numbers = tuple(dict.fromkeys(number for _, number in found))[:MOST]
        _known[key] = numbers if {*numbers} - {0.0, 1.0} else ()
    return _known[key]


def further_numbers(subject: Subject, compared: Iterable[float]) -> tuple[float, ...]:
    """Return what compiled code compares floats with and no literal of the sources says: what was computed.

    compared: magnitudes, in any order. Very small and very large ones are left out: they are a compiler's
    own, of logarithms and roots.
    """
    said = {np.float32(number) for number in source_numbers(subject)} | {np.float32(1)}
    told = (number for number in compared if LEAST <= number <= LARGEST)
    return tuple(sorted(number for number in told if np.float32(number) not in said))[:MOST]


def text_of_function(function: SourceFunction) -> str:
    """Return the lines of a function, of C++ without comments."""
    lines = text_of_source(function.path).splitlines()
    return "\n".join(lines[function.lines.start - 1 : function.lines.stop - 1])


def _all(functions: tuple[SourceFunction, ...]) -> Iterator[tuple[bool, float]]:
    """Yield numbers, each with whether something is compared with it."""
    for function in functions:
        if function.path.endswith(".py"):
            node = node_of(function.path, function.lines.start)
            yield from _of_python(node) if node is not None else ()
        else:
            yield from _of_cuda(text_of_function(function))
    for path in dict.fromkeys(function.path for function in functions if function.path.endswith(".py")):
        yield from _at_the_top(path)


def _of_python(node: FunctionNode) -> Iterator[tuple[bool, float]]:
    compared = {
        id(constant)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Compare) or (isinstance(inner, ast.Call) and _called(inner) in _BOUNDARIES)
        for constant in ast.walk(inner)
    }
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Constant)
            and isinstance(inner.value, int | float)
            and not isinstance(inner.value, bool)
        ):
            near = id(inner) in compared
            if near or isinstance(inner.value, float):
                yield from _finite(near, inner.value)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _of_cuda(text: str) -> Iterator[tuple[bool, float]]:
    for found in _COMPARED.finditer(text):
        yield from _finite(near=True, number=float(found[1]))
    for found in _FLOAT.finditer(text):
        yield from _finite(near=False, number=float(found[1]))


@cache
def _at_the_top(path: str) -> tuple[tuple[bool, float], ...]:
    try:
        body = ast.parse(text_of_source(path)).body
    except (SyntaxError, ValueError):
        return ()
    given = (inner for s in body if isinstance(s, ast.Assign | ast.AnnAssign) for inner in ast.walk(s))
    floats = (one.value for one in given if isinstance(one, ast.Constant) and type(one.value) is float)
    return tuple(pair for number in floats for pair in _finite(near=False, number=number))


def _finite(near: bool, number: float) -> Iterator[tuple[bool, float]]:
    if abs(number) <= 1e308:
        yield near, abs(float(number))


@cache
def text_of_source(path: str) -> str:
    """Return the text of a file, of C++ without comments, and nothing where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
    return text if path.endswith(".py") else without_comments(text)

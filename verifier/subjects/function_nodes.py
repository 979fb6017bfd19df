"""The syntax tree of a function, by its file and first line."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_SETTLED_SECONDS = 2.0
"""A file that was written earlier has another time when it is written again."""
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def node_of(path: str, line: int) -> FunctionNode | None:
    """Return the function that begins in this line, decorators included; None where it cannot be read.

    It is the same object as long as the file says the same: what is read off it can be kept.
    """
    try:
        about = os.stat(path)  # noqa: PTH116 (asked thousands of times, and faster)
        if time.time() - about.st_mtime > _SETTLED_SECONDS:
            return _functions_of(path, about.st_mtime_ns, about.st_ctime_ns, about.st_size).get(line)
        return _functions_in(Path(path).read_text(encoding="utf-8")).get(line)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=256)
def _functions_of(path: str, *_state: int) -> dict[int, FunctionNode]:
    """Return the functions of a file that is in this state."""
    return _functions_in(Path(path).read_text(encoding="utf-8"))


@lru_cache(maxsize=256)
def _functions_in(text: str) -> dict[int, FunctionNode]:
    """Return the functions of a source by their first line, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    return {
        min([node.lineno, *(d.lineno for d in node.decorator_list)]): node
        for node in _with_bodies(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def _with_bodies(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree, at any depth: no expression holds one."""
    for name in _BODIES:
        inside = getattr(tree, name, ())
        for node in inside if isinstance(inside, list) else ():
            yield node
            yield from _with_bodies(node)

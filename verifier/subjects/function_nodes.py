"""The syntax tree of a function, by its file and first line."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def node_of(path: str, line: int) -> FunctionNode | None:
    """Return the function that begins in this line, decorators included; None where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return _functions_in(text).get(line)


@lru_cache(maxsize=256)
def _functions_in(text: str) -> dict[int, FunctionNode]:
    """Return the functions of a source by their first line, decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    return {
        min([node.lineno, *(d.lineno for d in node.decorator_list)]): node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

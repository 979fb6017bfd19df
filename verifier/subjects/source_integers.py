"""Integers in a subject's sources: where an extent is compared with one, something else may happen."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from verifier.records.subject import Subject
from verifier.subjects.cuda_outline import without_comments
from verifier.subjects.function_nodes import node_of
from verifier.subjects.source_map import SourceFunction, source_map
from verifier.subjects.source_numbers import text_of_function, text_of_source

_BESIDE_A_SIZE = re.compile(r"(?:[<>=!]=?|%)\s*(\d{1,7})(?![\w.])")
MOST_SIZES, MOST_OF_WRAPPER = 4, 8
"""Integers that kernels, and the wrapper, compare with which are returned at most."""
LEAST_SIZE, LARGEST_SIZE = 5, 1 << 20
"""Of these; lanes and warps are compared with smaller ones."""
MOST_TABLED, LEAST_TABLED = 4, 32
"""Integers by which tables of the wrapper are looked up that are returned at most, and the least of them."""
MOST_BITS = 21
"""Of an integer that a shift of literals comes to."""


def literals(files: Iterable[str]) -> set[int]:
    """Return the integers of sources of Python, products and sums of literals too, and of CUDA C++.

    What cannot be read has none.
    """
    return {number for file in files for number in _literals(Path(file))}


def _literals(file: Path) -> Iterator[int]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix != ".py":
            yield from map(int, re.findall(r"\b\d{1,7}\b", without_comments(text)))
            return
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        number = _folded(node)
        if number is not None:
            yield number


_FOLDED: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: lambda a, b: a << min(b, MOST_BITS),
}


def _folded(node: ast.AST) -> int | None:
    """Return the integer that an expression of literals is, None of any other."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in _FOLDED:
        return None
    left, right = _folded(node.left), _folded(node.right)
    known = left is not None and right is not None and min(left, right) >= 0
    return _FOLDED[type(node.op)](left, right) if known else None  # type: ignore[arg-type]


def compared_sizes(subject: Subject) -> tuple[int, ...]:
    """Return integers that a subject's kernels compare with or divide by, the smallest first.

    Literals in their functions, and constants at the top of these files; small ones any shape has.
    """
    functions = source_map(subject).functions
    every = {number for function in functions for number in _sizes(function)}
    return tuple(sorted(number for number in every if LEAST_SIZE <= number <= LARGEST_SIZE))[:MOST_SIZES]


def _sizes(function: SourceFunction) -> Iterator[int]:
    if not function.path.endswith(".py"):
        yield from (int(found[1]) for found in _BESIDE_A_SIZE.finditer(text_of_function(function)))
        return
    node = node_of(function.path, function.lines.start)
    for inner in ast.walk(node) if node is not None else ():
        yield from (number for _, number in _beside(inner, function.path, _literal))


@cache
def _integers_at_the_top(path: str) -> tuple[tuple[str, int], ...]:
    """Return the names at the top of a file that stand for one integer, `tl.constexpr(4096)` included."""
    try:
        body = ast.parse(text_of_source(path)).body
    except (SyntaxError, ValueError):
        return ()
    found = []
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            names = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value = statement.value
            value = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
            if (number := _folded(value)) is not None:
                found += [(name.id, number) for name in names if isinstance(name, ast.Name)]
    return tuple(found)


def wrapper_sizes(subject: Subject) -> tuple[int, ...]:
    """Return integers that a subject's wrapper compares with or divides by, the smallest first.

    Sums, products and shifts of literals count, and names at the top of its files; small ones any shape has.
    """
    statements = source_map(subject).statements
    lines = {(one.path, number) for one in statements for number in one.lines}
    found = {n for path in {path for path, _ in lines} for at, n in _compared_in(path) if (path, at) in lines}
    return tuple(sorted(n for n in found if LEAST_SIZE <= n <= LARGEST_SIZE))[:MOST_OF_WRAPPER]


def tabled_sizes(subject: Subject) -> tuple[int, ...]:
    """Return integers that are keys of dictionaries in the files of a subject's wrapper, the smallest first.

    Small ones are no extents; powers of two are those of tiles, which the steps of launches show.
    """
    keys = {n for path in {one.path for one in source_map(subject).statements} for n in _keys_in(path)}
    found = (n for n in keys if LEAST_TABLED <= n <= LARGEST_SIZE and n & (n - 1))
    return tuple(sorted(found))[:MOST_TABLED]


@cache
def _keys_in(path: str) -> frozenset[int]:
    try:
        tree = ast.parse(text_of_source(path))
    except (SyntaxError, ValueError):
        return frozenset()
    tables = (node for node in ast.walk(tree) if isinstance(node, ast.Dict))
    keys = (_folded(key) for table in tables for key in table.keys if key is not None)
    return frozenset(key for key in keys if key is not None)


@cache
def _compared_in(path: str) -> tuple[tuple[int, int], ...]:
    """Return the lines of a file in which something is compared with an integer, each with the integer."""
    try:
        tree = ast.parse(text_of_source(path))
    except (SyntaxError, ValueError):
        return ()
    return tuple((line, number) for node in ast.walk(tree) for line, number in _beside(node, path, _folded))


def _literal(node: ast.AST) -> int | None:
    return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None


def _beside(node: ast.AST, path: str, read: Callable[[ast.AST], int | None]) -> Iterator[tuple[int, int]]:
    """Yield the integers that a comparison or a division has on one of its sides, each with its line."""
    if isinstance(node, ast.Compare) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        named = dict(_integers_at_the_top(path))
        for side in ast.iter_child_nodes(node):
            number = named.get(side.id) if isinstance(side, ast.Name) else read(side)
            if number is not None:
                yield node.lineno, number

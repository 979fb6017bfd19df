"""What stands in a subject's sources: functions of kernels, their loops, and statements of the wrapper.

The sources are read, nothing is compiled: what a compiler removed or never saw is still there to be missed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import CodeType

from verifier.records.printable import said
from verifier.records.reach import SourcePlace
from verifier.records.subject import Subject
from verifier.subjects.cuda_outline import included, outline_of
from verifier.subjects.function_nodes import FunctionNode, node_of
from verifier.subjects.used_functions import PythonFunction, Used, used_by

_UNROLLED = "static_range"


@dataclass(frozen=True, kw_only=True)
class SourceLoop:
    """A loop: where it is, the lines of its head and those of its body, in the file at `path`.

    unrolled: the compiler is told to write its turns out.
    """

    place: SourcePlace
    path: str
    head: range
    body: range
    unrolled: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceFunction:
    """A function of a kernel, and its lines in the file at `path`; entry: the host may launch it."""

    place: SourcePlace
    path: str
    lines: range
    entry: bool


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A statement of the wrapper and its lines; refuses: it raises, or does what comes before."""

    place: SourcePlace
    path: str
    lines: range
    refuses: bool = False


@dataclass(frozen=True, kw_only=True)
class SourceMap:
    """All that stands in the sources of one subject; unread: why there may be more, which nobody knows."""

    unread: str = ""
    functions: tuple[SourceFunction, ...] = ()
    loops: tuple[SourceLoop, ...] = ()
    statements: tuple[Statement, ...] = ()

    @property
    def wrapper_files(self) -> frozenset[str]:
        """The files of the wrapper."""
        return frozenset(statement.path for statement in self.statements)


def source_map(subject: Subject) -> SourceMap:
    """Read the sources that a subject's function uses: its own file, and those of kernels that it may launch.

    Functions that only the declaration uses (depths of trees, domains) are none of it.
    """
    try:
        used = used_by(subject.function)
        made = _read(subject, used)
    except Exception as error:  # of objects of the subject's, which say what they like of themselves
        return SourceMap(unread=said(error))
    if subject.language == "torch" and not made.functions:
        return made
    if not made.functions:
        return replace(made, unread="; ".join(["they name no kernel", *used.unfollowed[:1]]))
    return replace(made, unread=next(iter(used.unfollowed), ""))


def _read(subject: Subject, used: Used) -> SourceMap:
    kernels = [f for f in used.functions if f.kernel]
    own_folder = str(Path(subject.path).resolve().parent)
    homes = {f.path for f in kernels}
    wrapper = [
        f for f in used.functions if not f.kernel and (_lies_in(f.path, own_folder) or f.path in homes)
    ]
    outlines = [outline_of(path) for path in included(used.cuda_sources)]
    return SourceMap(
        functions=(
            *(_function(f) for f in kernels),
            *(
                SourceFunction(
                    place=SourcePlace(Path(o.path).name, f.name, f.line),
                    path=o.path,
                    lines=f.lines,
                    entry=f.entry,
                )
                for o in outlines
                for f in o.functions
            ),
        ),
        loops=(
            *(loop for f in kernels for loop in _loops(f)),
            *(
                SourceLoop(
                    place=SourcePlace(Path(o.path).name, one.function, one.line),
                    path=o.path,
                    head=one.head,
                    body=one.body,
                )
                for o in outlines
                for one in o.loops
            ),
        ),
        statements=tuple(statement for f in wrapper for statement in _statements(f)),
    )


def _lies_in(path: str, folder: str) -> bool:
    return str(Path(path).resolve().parent) == folder


def _function(found: PythonFunction) -> SourceFunction:
    lines = _lines(found)
    return SourceFunction(
        place=SourcePlace(Path(found.path).name, found.name, found.line),
        path=found.path,
        lines=lines,
        entry=found.launched,
    )


def _lines(found: PythonFunction) -> range:
    node = _node(found)
    return (
        range(found.line, (node.end_lineno or found.line) + 1) if node else range(found.line, found.line + 1)
    )


def _node(found: PythonFunction) -> FunctionNode | None:
    return node_of(found.path, found.line)


def _loops(found: PythonFunction) -> tuple[SourceLoop, ...]:
    node = _node(found)
    return () if node is None else _loops_in(node, found.path, found.name)


@lru_cache(maxsize=1024)
def _loops_in(node: FunctionNode, path: str, function: str) -> tuple[SourceLoop, ...]:
    found = []
    for inner in ast.walk(node):
        if isinstance(inner, ast.For | ast.While):
            first, last = inner.body[0].lineno, max(s.end_lineno or s.lineno for s in inner.body)
            found.append(
                SourceLoop(
                    place=SourcePlace(Path(path).name, function, inner.lineno),
                    path=path,
                    head=range(inner.lineno, max(first, inner.lineno + 1)),
                    body=range(first, last + 1),
                    unrolled=isinstance(inner, ast.For) and _UNROLLED in ast.unparse(inner.iter),
                )
            )
    return tuple(found)


def _statements(found: PythonFunction) -> tuple[Statement, ...]:
    """Return the statements of a function that compile to something, without those of functions in it."""
    node = _node(found)
    return () if node is None else _statements_in(node, found.path, found.name, found.code)


@lru_cache(maxsize=1024)
def _statements_in(node: FunctionNode, path: str, function: str, code: CodeType) -> tuple[Statement, ...]:
    executable = {line for _, _, line in code.co_lines() if line is not None}
    return tuple(
        Statement(
            place=SourcePlace(Path(path).name, function, inner.lineno),
            path=path,
            lines=lines,
            refuses=refuses,
        )
        for inner, refuses in _flat(node.body, refuses=False)
        if executable & set(lines := _own_lines(inner))
    )


def _flat(body: Iterable[ast.stmt], *, refuses: bool) -> Iterator[tuple[ast.stmt, bool]]:
    statements = list(body)
    refuses = refuses or isinstance(statements[-1] if statements else None, ast.Raise)
    for number, statement in enumerate(statements):
        if number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring
        yield statement, refuses
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _flat(getattr(statement, name, ()), refuses=False)
        for handler in getattr(statement, "handlers", ()):
            yield from _flat(handler.body, refuses=False)
        for case in getattr(statement, "cases", ()):
            yield from _flat(case.body, refuses=False)


def _own_lines(statement: ast.stmt) -> range:
    """Return the lines of a statement without those of the statements in it."""
    inside = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not isinstance(inside, list) or not inside:
        return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    first = inside[0].pattern.lineno if isinstance(inside[0], ast.match_case) else inside[0].lineno
    return range(statement.lineno, max(first, statement.lineno + 1))

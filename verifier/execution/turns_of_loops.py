"""How often loops turn in one launch, as far as their heads tell: from its arguments, constants and grid."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType

from verifier.execution.loops_of_source import functions_of_cuda, functions_of_triton
from verifier.subjects.cuda_outline import CudaFunction, included, without_comments
from verifier.subjects.function_nodes import FunctionNode, node_of

ReadNumber = Callable[[Mapping[str, int]], int]
"""Computes a number of the source from those of a launch; `KeyError` where a name is not known."""

_DEEP = 4
"""How many definitions deep a name is followed."""
_MOST_LINES = 4
"""Lines that the head of a loop takes beyond its first, at most."""
_FOR = re.compile(
    r"for\s*\(\s*[\w:\s]+?\b(\w+)\s*=(?!=)([^;]*);\s*\1\s*(<=?)([^;]*);\s*"
    r"(?:\+\+\s*\1|\1\s*\+\+|\1\s*\+=(.*))\)\s*$",
    re.DOTALL,
)
_CONSTANT = re.compile(r"\bconst(?:expr)?\s+(?:[\w:]+\s+)+(\w+)\s*=(?!=)([^;,]*);")
_ASSIGNED = re.compile(r"\b(\w+)\s*(?:[-+*/%&|^]|<<|>>)?=(?!=)")
_CAST = re.compile(r"\bstatic_cast\s*<[^<>]*>")
_INDEX = re.compile(r"\b(blockDim|gridDim|blockIdx|threadIdx)\.([xyz])\b")
_TEMPLATE = r"template\s*<([^{{}};]*?)>\s*__global__[^;{{]*?\b{}\s*\("
_FIRST = {f"{what}_{axis}": 0 for what in ("blockIdx", "threadIdx") for axis in "xyz"}
"""The first thread of the first block, whose turns are the most where a loop begins at an index."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """The head of a loop that goes up in steps; where: file and line. over: 1 where its end is one, too."""

    where: tuple[str, int]
    start: ReadNumber
    end: ReadNumber
    step: ReadNumber
    over: int = 0

    def turns(self, values: Mapping[str, int]) -> int | None:
        """Return how often it turns at most; None where its head names what a launch does not tell.

        values: by name; functions are taken to name their arguments and constants as the kernel does.
        """
        try:
            start, end, step = self.start(values), self.end(values), self.step(values)
        except (KeyError, ZeroDivisionError):
            return None
        return max(0, -(-(end + self.over - start) // step)) if step > 0 else None


# Triton


def heads_of_triton(kernel: object, constants: Mapping[str, object]) -> tuple[Head, ...]:
    """Read the loops over a range of a Triton kernel and of the functions that it calls, in one launch."""
    codes = dict.fromkeys(code for _, code in functions_of_triton(kernel, constants))
    return tuple(head for code in codes for head in _of_python(code))


def _of_python(code: CodeType) -> tuple[Head, ...]:
    node = node_of(code.co_filename, code.co_firstlineno)
    return () if node is None else _of_function(node, Path(code.co_filename).name)


@lru_cache(maxsize=1024)
def _of_function(node: FunctionNode, file: str) -> tuple[Head, ...]:
    return tuple(_heads(node, file))


def _heads(node: FunctionNode, file: str) -> Iterator[Head]:
    assigned = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for inner in ast.walk(node):
        if not isinstance(inner, ast.For) or not isinstance(inner.iter, ast.Call) or inner.iter.keywords:
            continue
        called, given = ast.unparse(inner.iter.func).rpartition(".")[2], inner.iter.args
        if called not in {"range", "static_range"} or not 1 <= len(given) <= 3:
            continue
        zero, one = ast.Constant(0), ast.Constant(1)
        bounds = (zero, *given, one) if len(given) == 1 else (*given, one)[:3]
        read = [_value(bound, dict.fromkeys(assigned)) for bound in bounds]
        yield Head(where=(file, inner.lineno), start=read[0], end=read[1], step=read[2])


# CUDA C++


@cache
def heads_of_cuda(path: Path, kernel: str) -> tuple[Head, ...]:
    """Read the loops that go up in steps of a kernel and of what it may call; none if a macro writes it."""
    files = [Path(one) for one in included([str(path)])]
    texts = {file: without_comments(file.read_text(encoding="utf-8", errors="replace")) for file in files}
    everywhere = {name: value for text in texts.values() for name, value in _CONSTANT.findall(text)}
    return tuple(
        head
        for file, functions in functions_of_cuda(files, kernel).items()
        for head in _of_functions(file, texts[file].split("\n"), functions, everywhere)
    )


def _of_functions(
    file: Path, lines: Sequence[str], functions: Sequence[CudaFunction], everywhere: Mapping[str, str]
) -> Iterator[Head]:
    for function in functions:
        own = "\n".join(lines[function.lines.start - 1 : function.lines.stop - 1])
        known: dict[str, str | None] = dict.fromkeys(_ASSIGNED.findall(own))
        constants = _CONSTANT.findall(own)
        known |= {n: v for n, v in everywhere.items() if n not in known}
        known |= {n: v for n, v in constants if sum(n == name for name in _ASSIGNED.findall(own)) == 1}
        for number in function.lines:
            found = re.search(r"\bfor\s*\(.*", lines[number - 1])
            if found and (head := _FOR.match(_closed("\n".join([found[0], *lines[number:][:_MOST_LINES]])))):
                names = {n: _tree(v) if v else None for n, v in known.items() if n != head[1]}
                start, end, step = (_value(_tree(text or "1"), names) for text in head.group(2, 4, 5))
                over = int(head[3] == "<=")
                yield Head(where=(file.name, number), start=start, end=end, step=step, over=over)


def _closed(text: str) -> str:
    """Return a text as far as its first bracket closes."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == ")" and depth == 0:
            return text[: position + 1]
    return text


def _tree(text: str) -> ast.expr | None:
    """Read an expression of C++ as one of Python; of positive integers both mean the same."""
    plain = _INDEX.sub(r"\1_\2", _CAST.sub("", text)).replace("/", "//")
    try:
        return ast.parse(f"({plain})", mode="eval").body
    except (SyntaxError, ValueError):
        return None


@cache
def template_names(path: Path, kernel: str) -> tuple[str, ...]:
    """Return the names of a kernel's template parameters, in their order."""
    for file in included([str(path)]):
        text = without_comments(Path(file).read_text(encoding="utf-8", errors="replace"))
        if found := re.search(_TEMPLATE.format(re.escape(kernel)), text):
            parts = (part.partition("=")[0].split() for part in found[1].split(","))
            return tuple(words[-1] for words in parts if words)
    return ()


def of_launch(
    named: Mapping[str, object], template: Mapping[str, object], grid: Sequence[int], block: Sequence[int]
) -> dict[str, int]:
    """Return the numbers that heads of a launch may name."""
    extents = {
        f"{what}_{axis}": int(extent)
        for what, extents in (("gridDim", grid), ("blockDim", block))
        for axis, extent in zip("xyz", extents, strict=False)
    }
    return {**_FIRST, **whole(template), **whole(named), **extents}


def whole(values: Mapping[str, object]) -> dict[str, int]:
    """Return the integers among values."""
    return {n: v for n, v in values.items() if isinstance(v, int) and not isinstance(v, bool)}


# Expressions


def _value(tree: ast.expr | None, defined: Mapping[str, ast.expr | None], deep: int = _DEEP) -> ReadNumber:
    """Return what computes an expression; defined: what names stand for, None where nobody knows."""
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        number = tree.value
        return lambda _: number
    if isinstance(tree, ast.Name):
        name = tree.id
        if name in defined:
            return _value(defined[name], defined, deep - 1) if deep else _unknown
        return lambda values: values[name]
    if isinstance(tree, ast.BinOp) and type(tree.op) in _OPERATIONS:
        left, right = _value(tree.left, defined, deep), _value(tree.right, defined, deep)
        operation = _OPERATIONS[type(tree.op)]
        return lambda values: operation(left(values), right(values))
    return _unknown


_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
}


def _unknown(_: Mapping[str, int]) -> int:
    raise KeyError

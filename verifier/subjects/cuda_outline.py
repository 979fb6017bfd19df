"""What stands in a CUDA C++ source: functions of the device and their loops, found by brackets and words.

Nothing is preprocessed: a function or loop that a macro writes is not seen.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

_COMMENT = r"//[^\n]*|/\*.*?\*/"
_BLANKED = re.compile(
    _COMMENT + r"|\"(?:\\.|[^\"\\\n])*\"|(?<![\w'])'(?:\\.|[^'\\\n])+'"
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
    re.DOTALL | re.MULTILINE,
)
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+\"([^\"]+)\"", re.MULTILINE)
_DEVICE = re.compile(r"\b__(?:global|device)__\b")
_LOOP = re.compile(r"\b(for|while|do)\b")
_NAME = re.compile(r"(operator\s*\(\s*\)|operator\s*[^\s\w(]+|~?\w+)\s*$")
_QUALIFIERS = frozenset(
    {
        "__launch_bounds__",
        "__cluster_dims__",
        "__block_size__",
        "__maxnreg__",
        "__attribute__",
        "__align__",
        "decltype",
        "noexcept",
        "alignas",
    }
)
_CLOSING = {"(": ")", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class CudaFunction:
    """A function of the device by its first line; entry: it is `__global__`."""

    name: str
    line: int
    lines: range
    entry: bool


@dataclass(frozen=True, kw_only=True)
class CudaLoop:
    """A loop by its first line and its function's name; the lines of its head and of its body."""

    function: str
    line: int
    head: range
    body: range


@dataclass(frozen=True, kw_only=True)
class CudaOutline:
    """The functions and loops of one file."""

    path: str
    functions: tuple[CudaFunction, ...]
    loops: tuple[CudaLoop, ...]


def included(paths: Iterable[str]) -> list[str]:
    """Return sources with the files that they include from beside them, each once."""
    found: dict[str, None] = {}
    waiting = [Path(path) for path in paths]
    while waiting:
        path = waiting.pop(0)
        if str(path) in found or not path.is_file():
            continue
        found[str(path)] = None
        waiting += [path.parent / name for name in _INCLUDE.findall(_read(path))]
    return list(found)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def outline_of(path: str) -> CudaOutline:
    """Read one file."""
    return _outline(path, _read(Path(path)))


def code_alone(text: str) -> str:
    """Blank comments, strings, characters and directives; everything else stays where it is."""
    return _BLANKED.sub(_blank, text)


def without_comments(text: str) -> str:
    """Blank comments alone."""
    return re.sub(_COMMENT, _blank, text, flags=re.DOTALL)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


@lru_cache(maxsize=256)
def _outline(path: str, text: str) -> CudaOutline:
    return _Reader(text).outline(path)


class _Reader:
    def __init__(self, text: str) -> None:
        """Blank what is no code; lines stay where they are."""
        self.text = code_alone(text)
        self.starts = [0, *accumulate(len(line) for line in self.text.splitlines(keepends=True))]

    def line(self, position: int) -> int:
        """Return the number of the line at a position, from 1."""
        return bisect_right(self.starts, position)

    def outline(self, path: str) -> CudaOutline:
        """Return functions and loops; a loop belongs to the innermost function about it."""
        functions = {f.line: (f, span) for f, span in self.functions()}
        loops = []
        for start, head_end, body in self.loops():
            around = [(f, span) for f, span in functions.values() if span[0] <= start < span[1]]
            if around:
                function = max(around, key=lambda found: found[1][0])[0]
                head = range(self.line(start), self.line(head_end) + 1)
                lines = range(self.line(body[0]), self.line(body[1]) + 1)
                loops.append(CudaLoop(function=function.name, line=self.line(start), head=head, body=lines))
        return CudaOutline(path=path, functions=tuple(f for f, _ in functions.values()), loops=tuple(loops))

    def functions(self) -> Iterator[tuple[CudaFunction, tuple[int, int]]]:
        """Yield functions with the positions of their first word and of their end."""
        for found in _DEVICE.finditer(self.text):
            body = self._body_of(found.end())
            if body is None:
                continue
            name, opening = body
            end = self.closing(opening)
            lines = range(self.line(found.start()), self.line(end) + 1)
            made = CudaFunction(name=name, line=lines.start, lines=lines, entry=found[0] == "__global__")
            yield made, (found.start(), end)

    def _body_of(self, position: int) -> tuple[str, int] | None:
        """Return the name of the function declared here, and where its body opens; None if it has none."""
        name = ""
        while position < len(self.text):
            letter = self.text[position]
            if letter in ";=" and not name:
                return None  # a variable
            if letter == ";":
                return None
            if letter == "{":
                return (name, position) if name else None
            if letter == "(":
                before = _NAME.search(self.text, max(0, position - 200), position)
                word = before[1] if before else ""
                if word == "operator":  # operator()
                    position = self.closing(position)
                    word, position = "operator()", self.text.find("(", position)
                if not name and word and word not in _QUALIFIERS:
                    name = re.sub(r"\s", "", word)
                position = self.closing(position)
            position += 1
        return None

    def closing(self, opening: int) -> int:
        """Return the position of the bracket that closes the one here; the end where it is missing."""
        opens, closes = self.text[opening], _CLOSING[self.text[opening]]
        depth = 0
        for position in range(opening, len(self.text)):
            letter = self.text[position]
            depth += (letter == opens) - (letter == closes)
            if depth == 0:
                return position
        return len(self.text) - 1

    def loops(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Yield the start of each loop, the end of its head, and its body; `do` ends with its condition."""
        conditions: set[int] = set()
        for found in _LOOP.finditer(self.text):
            if found.start() in conditions:
                continue
            if found[1] == "do":
                opening = self.text.find("{", found.end())
                if opening < 0 or self.text[found.end() : opening].strip():
                    continue
                end = self.closing(opening)
                condition = re.compile(r"\s*while\b").match(self.text, end + 1)
                if condition:
                    conditions.add(condition.end() - len("while"))
                yield found.start(), found.end(), (opening, end)
                continue
            opening = self.text.find("(", found.end())
            if opening < 0 or self.text[found.end() : opening].strip():
                continue
            head_end = self.closing(opening)
            yield found.start(), head_end, self._statement(head_end + 1)

    def _statement(self, position: int) -> tuple[int, int]:
        """Return first and last position of the statement that begins here."""
        first = position
        while first < len(self.text) - 1 and self.text[first].isspace():
            first += 1
        position = first
        while position < len(self.text):
            letter = self.text[position]
            if letter == "{":
                return first, self.closing(position)
            if letter == ";":
                return first, position
            if letter == "(":
                position = self.closing(position)
            position += 1
        return first, len(self.text) - 1

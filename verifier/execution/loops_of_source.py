"""Which integers a kernel's loops go over in which steps, read off its source: words of one loop's head."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

from verifier.subjects.cuda_outline import CudaFunction, included, outline_of, without_comments

_HEAD = re.compile(r"^\s*(?:for|while)\b.*$", re.MULTILINE)
_WORD = re.compile(r"[A-Za-z_]\w*")
_PRODUCT = re.compile(r"^\s*(\w+)\s*=\s*(\w+)\s*\*\s*(\w+)\s*$", re.MULTILINE)
_BY_ONES = re.compile(
    r"^\s*for\s*\([^;]*;\s*\w+\s*<=?\s*([^;]*);\s*(?:\+\+\s*\w+|\w+\s*\+\+)\s*\)", re.MULTILINE
)
_DEFINITION = re.compile(r"\b(\w+)\s*=(?!=)([^;=]*);")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)
_FAR = 3
"""How many calls deep functions are read that a kernel calls."""


@dataclass(frozen=True, kw_only=True)
class Loops:
    """The words of each loop's head in a kernel and what it calls, and names that stand for a product.

    counted: likewise of loops in C++ that go by ones, with the words by which their ends are defined.
    """

    heads: tuple[frozenset[str], ...] = ()
    products: Mapping[str, tuple[str, str]]
    counted: tuple[frozenset[str], ...] = ()

    def named(self, arguments: Mapping[str, object]) -> dict[str, int]:
        """Return the integers that loops may go over: arguments, and products of two of them, by name."""
        whole = {n: v for n, v in arguments.items() if isinstance(v, int) and not isinstance(v, bool)}
        made = {n: whole[a] * whole[b] for n, (a, b) in self.products.items() if a in whole and b in whole}
        words = frozenset().union(*self.heads, *self.counted)
        return {n: v for n, v in {**whole, **made}.items() if n in words}

    def goes_through(self, name: str, tile: str) -> bool:
        """Return whether a loop may go over an integer in steps of a tile, as far as its head tells.

        A loop that names no tile (`while start < columns`) may go in any.
        """
        return any(name in words and (tile in words or "while" in words) for words in self.heads)

    def strides_to(self, name: str) -> bool:
        """Return whether a loop's head names an integer."""
        return any(name in words for words in self.heads) or name in self.products

    def counts_to(self, name: str) -> bool:
        """Return whether a loop may go by ones to an end that depends on an integer."""
        return any(name in words for words in self.counted)


def loops_of_triton(kernel: object, constants: Mapping[str, object]) -> Loops:
    """Read the loops of a Triton kernel and of the functions that it calls.

    constants: of one launch; among them may be functions. Functions are taken to name their arguments as the
    kernel does.
    """
    return _loops(text for text, _ in functions_of_triton(kernel, constants))


@cache
def loops_of_cuda(path: Path, kernel: str) -> Loops:
    """Read the loops of a kernel in a `.cu` file, and of what it may call there and in the file's headers."""
    texts = tuple(_of_kernel([Path(one) for one in included([str(path)])], kernel))
    return replace(_loops(texts), counted=tuple(words for one in texts for words in _counted(one)))


def _of_kernel(paths: Sequence[Path], kernel: str) -> Iterator[str]:
    """Yield sources without functions that a kernel does not call; whole ones where nothing defines it."""
    called = functions_of_cuda(paths, kernel)
    for path in paths:
        text = own = _read(path)
        for one in outline_of(str(path)).functions if called else ():
            if one not in called.get(path, ()):
                function = _lines_of(text, one.lines)
                own = own.replace(function, "\n" * function.count("\n"))
        yield own


def functions_of_cuda(paths: Iterable[Path], kernel: str) -> dict[Path, list[CudaFunction]]:
    """Return of each source the functions that a kernel may call, and itself; none where nothing defines it.

    By name alone, macros among them: what has the name of a function that is called counts as called.
    """
    texts = {path: _read(path) for path in paths}
    functions = [(path, one) for path in texts for one in outline_of(str(path)).functions]
    called: dict[str, set[str]] = {}
    for path, one in functions:
        called.setdefault(one.name, set()).update(_WORD.findall(_lines_of(texts[path], one.lines)))
    if kernel not in called:
        return {}
    for text in texts.values():
        for name, body in _MACRO.findall(text):
            called.setdefault(name, set()).update(_WORD.findall(body))
    reached: set[str] = set()
    new = {kernel, *(name for name in called if name.startswith("operator"))}
    while new:
        reached |= new
        new = {word for name in new for word in called[name] if word in called} - reached
    return {path: [one for home, one in functions if home == path and one.name in reached] for path in texts}


def _read(path: Path) -> str:
    return without_comments(path.read_text(encoding="utf-8", errors="replace"))


def _lines_of(text: str, lines: range) -> str:
    return "\n".join(text.split("\n")[lines.start - 1 : lines.stop - 1])


def _counted(text: str) -> Iterator[frozenset[str]]:
    """Yield of each loop by ones the words of its end, and those of the expressions that define them."""
    defined: dict[str, set[str]] = {}
    for name, value in _DEFINITION.findall(text):
        defined.setdefault(name, set()).update(_WORD.findall(value))
    for end in _BY_ONES.findall(text):
        words = _WORD.findall(end)
        yield frozenset(words).union(*(defined.get(word, ()) for word in words))


def _loops(sources: Iterable[str]) -> Loops:
    return _loops_of(tuple(dict.fromkeys(sources)))


@lru_cache(maxsize=1024)
def _loops_of(texts: tuple[str, ...]) -> Loops:
    return Loops(
        heads=tuple(frozenset(_WORD.findall(head)) for text in texts for head in _HEAD.findall(text)),
        products={name: (a, b) for text in texts for name, a, b in _PRODUCT.findall(text)},
    )


def functions_of_triton(
    kernel: Any, constants: Mapping[str, object], depth: int = _FAR
) -> Iterator[tuple[str, CodeType]]:
    """Yield source and code of a function of Triton and of those that it may call, some more than once."""
    text = getattr(kernel, "src", None)
    if not isinstance(text, str):
        return
    yield text, kernel.fn.__code__
    globals_ = getattr(kernel.fn, "__globals__", {})
    for name in _words_of(text) if depth else ():
        known = constants[name] if name in constants else globals_.get(name)
        if known is not kernel:
            yield from functions_of_triton(known, constants, depth - 1)


@lru_cache(maxsize=1024)
def _words_of(text: str) -> tuple[str, ...]:
    return tuple(sorted({*_WORD.findall(text)}))

"""Cuts a traceback down to the frames of the user's own files."""

from __future__ import annotations

import importlib.util
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<function>.+)$')
_HEAD = "Traceback (most recent call last):"
_NOISE = re.compile(r"\(most recent call first\):$|^Extension modules: ")  # of the fault handler
_MARKS = re.compile(r"[\s~^]+")  # the lines with which Python underlines a part of the source line
_LIBRARIES = ("verifier", "strategies", "torch", "triton", "numpy", "hypothesis", "typer", "click")
_SHOWN = 4
"""Frames that are shown at most: the innermost."""
_WORDS_SHOWN = 8
"""Lines of the exception's own text that are shown at most: a compiler's are the last."""


@dataclass(frozen=True, kw_only=True)
class _Frame:
    file: str
    line: int
    function: str
    source: str = ""


def traceback_lines(detail: str, path: Path) -> Iterator[str]:
    """Yield the subject's frames of a traceback, innermost first, how many others there are, and its words.

    detail: a traceback as Python or its fault handler prints it, or other last words of a process.
    path: the subject's file; files of its folder are the user's own.
    """
    # Of chained exceptions the last one is what the message says.
    *before, text = detail.strip().split(_HEAD)
    frames, words = _parts(text.splitlines())
    if before:
        frames, words = frames[::-1], words[1:]  # its first line is the message of the finding
    own = [frame for frame in frames if _is_own(frame.file, path)]
    for frame in own[:_SHOWN]:
        source = f": {frame.source}" if frame.source else ""
        yield f"{Path(frame.file).name}:{frame.line}, in {frame.function}{source}"
    hidden = len(frames) - len(own[:_SHOWN])
    if hidden:
        yield f"({hidden} other frame{'s' if hidden > 1 else ''}, of the verifier and of libraries)"
    yield from words[-_WORDS_SHOWN:]


def _parts(lines: list[str]) -> tuple[list[_Frame], list[str]]:
    """Return the frames in the order of the text, and what else it says."""
    frames: list[_Frame] = []
    words: list[str] = []
    in_frame = False
    for line in lines:
        found = _FRAME.match(line)
        if found:
            frames.append(_Frame(file=found["file"], line=int(found["line"]), function=found["function"]))
            in_frame = True
        elif in_frame and line.startswith("    "):
            if frames[-1].source == "" and not _MARKS.fullmatch(line):
                frames[-1] = replace(frames[-1], source=line.strip())
        elif line.strip() and not _NOISE.search(line):
            in_frame = False
            words.append(line.rstrip())
    return frames, words


def _is_own(file: str, path: Path) -> bool:
    """Return whether a file is the user's: in its folder, or of no library that the verifier brings."""
    if Path(file).parent == path.parent:
        return True
    return not file.startswith("<") and not any(file.startswith(root) for root in _library_roots())


@cache
def _library_roots() -> tuple[str, ...]:
    """Return the folders of Python's own library and of the packages that stand between user and verifier."""
    roots = [sysconfig.get_path("stdlib")]
    for name in _LIBRARIES:
        spec = importlib.util.find_spec(name)
        roots += list(spec.submodule_search_locations or ()) if spec else []
    return tuple(f"{root.rstrip('/')}/" for root in roots)

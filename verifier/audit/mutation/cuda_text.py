"""Mutations of CUDA C++ source, by its tokens: comments, strings and directives are left as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from verifier.audit.mutation.mutation import Mutation
from verifier.subjects.cuda_outline import code_alone, outline_of

_EXCHANGED: tuple[tuple[str, str, str], ...] = (
    (" + ", " - ", "operator"),
    (" - ", " + ", "operator"),
    (" * ", " + ", "operator"),
    (" / ", " * ", "operator"),
    (" % ", " / ", "operator"),
    (" && ", " || ", "operator"),
    (" || ", " && ", "operator"),
    (" < ", " <= ", "comparison"),
    (" <= ", " < ", "comparison"),
    (" > ", " >= ", "comparison"),
    (" >= ", " > ", "comparison"),
    (" == ", " != ", "comparison"),
    (" != ", " == ", "comparison"),
    (" += ", " = ", "accumulation"),
)
"""Binary operators stand between blanks; what does not (templates, pointers, signs) is something else."""
_WORDS: tuple[tuple[str, str, str], ...] = (
    ("fmaxf", "fminf", "name"),
    ("fminf", "fmaxf", "name"),
    ("rsqrtf", "sqrtf", "name"),
    ("int64_t", "int32_t", "dtype"),
    ("__float2half_rn", "__float2half_rz", "rounding"),
    ("__float2bfloat16_rn", "__float2bfloat16_rz", "rounding"),
    ("threadIdx.x", "threadIdx.y", "name"),
    ("blockIdx.x", "blockIdx.y", "name"),
)
_BARRIER = re.compile(r"\b__sync(?:threads|warp)\s*\([^;{}]*\)\s*;")
_STORE = re.compile(r"(?<=[;{}\n)])[ \t]*[\w.>-]+\[[^;=\n]*\]\s*=(?!=)[^;]*;")
_INTEGER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")
_FLOAT = re.compile(r"(?<![\w.])(\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][+-]?\d+)?f?(?!\w)")
_CAST = re.compile(r"\bstatic_cast<(?:[^<>]|<[^<>]*>)*>(?=\()")
_WIDE = re.compile(r"(?<![\w<])double(?=\s+\w+\s*[=;\[])")
_STORED = re.compile(r"(?<=[;{}\n)])[ \t]*\*?[\w.>-]+\[[^;=\n]*\]\s*=(?!=)\s*([^;]*);")
_CALL = re.compile(r"[(,]\s*([A-Za-z_]\w*),\s*([A-Za-z_]\w*)(?=\s*[,)])")
_ADDED = re.compile(r"(?<=[;{}\n)])[ \t]*([\w.>-]+(?:\[[^;=\n]*\])?)\s*\+=\s*")
_NAME = re.compile(r"(?:\w+(?:::|\.|->))*\w+$")
_EPS = re.compile(r"\s*\+\s*(?:\w+\.)?eps(?:ilon)?\b")


def mutations(path: Path) -> list[Mutation]:
    """List the single mutations of a CUDA C++ file, in the order of its text."""
    text = path.read_text(encoding="utf-8")
    code, functions = code_alone(text), outline_of(str(path)).functions
    halves = any("cuda_fp16.h" in source for source in (text, *_included(path, text)))

    def made(start: int, end: int, after: str, kind: str) -> Mutation:
        line = text.count("\n", 0, start) + 1
        within = [f.name for f in functions if line in f.lines]
        return Mutation(
            file=path,
            start=start,
            end=end,
            before=text[start:end],
            after=after,
            kind=kind,
            line=line,
            within=within[-1] if within else "",
            in_kernel=True,
        )

    every = (*_places(code), *_outside_roots(code), *(_in_half(code) if halves else ()))
    found = {made(*place) for place in every}
    return sorted(mutation for mutation in found if mutation.within)


def _places(code: str) -> Iterator[tuple[int, int, str, str]]:
    for before, after, kind in _EXCHANGED:
        for found in re.finditer(re.escape(before), code):
            yield found.start(), found.end(), after, kind
    for before, after, kind in _WORDS:
        for found in re.finditer(rf"(?<!\w){re.escape(before)}(?!\w)", code):
            yield found.start(), found.end(), after, kind
    for found in _BARRIER.finditer(code):
        yield found.start(), found.end(), ";", "barrier"
    for found in _STORE.finditer(code):
        yield found.start(), found.end(), " ;", "store"
    for found in _CAST.finditer(code):
        yield found.start(), found.end(), "", "cast"
    for found in _WIDE.finditer(code):
        yield found.start(), found.end(), "float", "dtype"
    for found in _STORED.finditer(code):  # an ulp of float16 too small: twice what rounding to zero costs
        yield found.start(1), found.end(1), f"({found[1]}) * 0.9990234375f", "rounding"
    for found in _CALL.finditer(code):
        if found[1] != found[2]:
            between = code[found.end(1) : found.start(2)]
            yield found.start(1), found.end(2), f"{found[2]}{between}{found[1]}", "exchange"
    for found in _INTEGER.finditer(code):
        yield found.start(), found.end(), str(int(found[0]) + 1), "constant"
    for found in _FLOAT.finditer(code):
        number = float(found[0].rstrip("f"))
        suffix = "f" if found[0].endswith("f") else ""
        yield found.start(), found.end(), f"{2 * number or 1.0!r}{suffix}", "constant"
    for found in _EPS.finditer(code):
        yield found.start(), found.end(), "", "eps"


def _included(path: Path, text: str) -> Iterator[str]:
    """Yield the texts of headers beside a file that it includes, and of those that these include."""
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE):
        header = path.parent / name
        if header.is_file():
            yield (inner := header.read_text(encoding="utf-8"))
            yield from _included(header, inner)


def _in_half(code: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield sums that are rounded to half precision after each addition, as an accumulator in it would be."""
    for found in _ADDED.finditer(code):
        total, term = found[1], code[found.end() :].partition(";")[0]
        if term.count("(") == term.count(")") and "{" not in term:  # or it is the end of a loop's head
            rounded = f"{total} = __half2float(__float2half_rn({total} + ({term})))"
            yield found.start(1), found.end() + len(term), rounded, "dtype"


def _outside_roots(code: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield calls of a root to which eps is added that add it behind the root instead."""
    for found in _EPS.finditer(code):
        opening = _opening(code, found.start())
        named = _NAME.search(code, 0, opening) if code[found.end() : found.end() + 1] == ")" else None
        if named and re.search("sqrt|root", named[0]):
            inner, added = code[opening : found.start()], found[0].strip()
            yield named.start(), found.end() + 1, f"({named[0]}{inner}) {added})", "eps"


def _opening(code: str, end: int) -> int:
    """Return where the bracket opens that is not closed before a place."""
    depth = 0
    for place in range(end - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(code[place], 0)
        if depth < 0:
            return place
    return 0

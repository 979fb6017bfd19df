"""Literals, lists of operands and declared variables in PTX text."""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from verifier.machine.execute.findings import ParseError
from verifier.machine.ptx.syntax import BITS, Immediate, Variable

_NAME = r"[A-Za-z_$%][\w$]*"
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|\d+)U?$")
VARIABLE = re.compile(
    r"(?:\.(?:visible|extern|weak|common)\s+)*\.(?P<space>global|shared|const|local|param)\s*"
    r"(?:\.attribute\([^)]*\)\s*)?(?:\.align\s+(?P<align>\d+)\s*)?(?:\.(?P<vector>v[24])\s*)?\.(?P<type>\w+)\s+"
    r"(?:\.ptr\s*(?:\.(?:global|shared|const|local|param)\s*)?(?:\.align\s+\d+\s*)?)?"
    r"(?P<name>" + _NAME + r")\s*(?P<shape>(?:\[[^\]]*\]\s*)*)(?:=\s*(?P<value>[^;]*))?"
)


@lru_cache(maxsize=4096)
def parse_literal(text: str) -> Immediate | None:
    """Read an integer or a hexadecimal or decimal float; None for anything else."""
    digits = text[2:]
    if text[:2] in ("0f", "0F") and len(digits) == 8:
        return Immediate(int(digits, 16), "f32")
    if text[:2] in ("0d", "0D") and len(digits) == 16:
        return Immediate(int(digits, 16), "f64")
    if _INTEGER.match(text):
        digits = text.rstrip("U")
        plain = digits.lstrip("-")
        if len(plain) > 1 and plain[0] == "0" and plain.isdigit():
            return Immediate(int(digits, 8))
        return Immediate(int(digits, 0))
    if re.fullmatch(r"-?\d+\.\d*(?:[eE][-+]?\d+)?", text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], "f64")
    return None


def split_operands(text: str) -> list[str]:
    """Split at the commas that stand outside braces and brackets."""
    if not text.strip():
        return []
    if "{" not in text and "/" not in text:
        return text.split(",")
    text = re.sub(r"//[^\n]*", "", text)
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        if letter in "{[(":
            depth += 1
        elif letter in "}])":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return parts


def read_parameters(text: str | None) -> tuple[Variable, ...]:
    """Read a parameter list."""
    cleaned = re.sub(r"//[^\n]*", "", text or "")
    variables = []
    for part in (piece.strip() for piece in cleaned.split(",")):
        if not part:
            continue
        match = VARIABLE.fullmatch(part)
        if not match:
            raise ParseError(f"unknown parameter {part!r}")
        variables.append(make_variable(match))
    return tuple(variables)


def make_variable(match: re.Match[str]) -> Variable:
    """Compute size, alignment and initial bytes of a declared variable."""
    width = BITS[match["type"]] // 8 * int((match["vector"] or "v1")[1:])
    count = 1
    for extent in re.findall(r"\[([^\]]*)\]", match["shape"] or ""):
        count *= int(extent, 0) if extent.strip() else 0
    initial, references = initial_bytes(match["value"], match["type"])
    size = width * count
    if match["shape"] and count == 0 and initial is not None:
        size = len(initial)
    return Variable(
        name=match["name"],
        space=match["space"],
        type=match["type"],
        alignment=int(match["align"] or width),
        size=size,
        initial=initial,
        references=references,
    )


def initial_bytes(text: str | None, type_name: str) -> tuple[bytes | None, tuple[tuple[int, str], ...]]:
    """Bytes of an initialiser, and (offset, name) of the addresses it holds."""
    if text is None:
        return None, ()
    width = BITS[type_name] // 8
    data, references = bytearray(), []
    for word in (part.strip() for part in re.sub(r"[{}]", " ", text).split(",")):
        literal = parse_literal(word) if word else None
        if literal is not None:
            data += (literal.value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        elif word:
            references.append((len(data), re.sub(r"generic\(([^)]*)\)", r"\1", word)))
            data += bytes(width)
    return bytes(data), tuple(references)

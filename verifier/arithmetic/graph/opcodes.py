"""What the names of a graph's operations mean: family, format of the result, format of the operands.

A name that is not known here has no meaning: its nodes equal nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

_FORMAT = r"(?P<format>f16|bf16|f32|f64)"
SUM_WITH_PRODUCT = "addmul.f32"
"""A sum of a product, which was not rounded, and of another number; the product is a node of its own."""
UNORDERED_SUM = "torch.sum.f32"
"""A sum of two, part of a chain that is made of the terms of one sum in an order that is not known."""
_COMPARISON = "eq|ne|lt|le|gt|ge|equ|neu|ltu|leu|gtu|geu|num|nan"
_WIDENINGS = {("f32", "f16"), ("f32", "bf16"), ("f64", "f16"), ("f64", "bf16"), ("f64", "f32")}

_PATTERNS = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (rf"(?P<family>add|sub|mul)(\.rn)?\.{_FORMAT}", ""),
        (rf"(?P<family>fma|div|sqrt)\.rn\.{_FORMAT}", ""),
        (r"(?P<family>addmul)\.(?P<format>f32)", ""),
        (r"(?P<family>divfma)\.full\.(?P<format>f32)", ""),
        (rf"(?P<family>neg|abs|max|min)\.{_FORMAT}", ""),
        (rf"(div\.(full|approx)|(div|add|sub|mul|fma)\.rn|add|sub|mul)(\.ftz)?\.{_FORMAT}", "other"),
        (rf"((sqrt|rcp)\.(rn|approx)|(rsqrt|ex2|lg2|tanh)\.approx)(\.ftz)?\.{_FORMAT}", "other"),
        (r"(exp|log|tanh)\.(cuda|libdevice)\.(?P<format>f32)", "other"),
        (r"within\.f32", "question"),
        (rf"(max|min|neg|abs)\.(ftz|NaN|ftz\.NaN)\.{_FORMAT}", "other"),
        (rf"setp\.({_COMPARISON})(\.ftz)?\.{_FORMAT}", "comparison"),
        (r"(and|or|xor|not)\.pred", "predicate"),
        (r"ite", "choice"),
    )
)
_CONVERSION = re.compile(rf"cvt(?P<rounds>\.rn)?\.{_FORMAT}\.(?P<source>f16|bf16|f32|f64)")
_ARITY = {
    "fma": 3,
    "divfma": 3,
    "neg": 1,
    "abs": 1,
    "sqrt": 1,
    "rcp": 1,
    "rsqrt": 1,
    "ex2": 1,
    "lg2": 1,
    "tanh": 1,
    "exp": 1,
    "log": 1,
    "not": 1,
}


@dataclass(frozen=True, kw_only=True)
class Opcode:
    """One operation.

    name: as terms carry it: rounding to nearest is not written, since `add` and `add.rn` compute the same.
    family: divfma (`div.full` whose last product is fused into a sum), addmul (`SUM_WITH_PRODUCT`),
        unordered (`UNORDERED_SUM`),
        add, sub, mul, fma, div, sqrt, neg, abs, max, min (correctly rounded, subnormals kept), widen,
        narrow, comparison, predicate, choice, or other: no rule knows it, but equal operands give equal
        results.
    result, source: formats of the result and of every operand ("pred" for truth values; of a choice, "").
    divisor: which operand must not be a zero whose sign is unknown, or -1 (`within` asks for the sign bit).
    """

    name: str
    family: str
    result: str
    source: str
    arity: int
    divisor: int = -1


@cache
def opcode(name: str) -> Opcode | None:
    """Return what a name means, or None: nothing is known of it."""
    if name.startswith("torch."):
        return _of_torch(name.removeprefix("torch."))
    conversion = _CONVERSION.fullmatch(name)
    if conversion:
        return _conversion(name, conversion)
    for pattern, kind in _PATTERNS:
        found = pattern.fullmatch(name)
        if found:
            return _known(name, kind or found["family"], found.groupdict().get("format") or "")
    return None


def _of_torch(name: str) -> Opcode | None:
    """Return what an elementwise operation of torch means: rounded to nearest, subnormal numbers kept."""
    family, _, formats = name.partition(".")
    if family == "sum":
        kind = formats if formats == "f32" else ""
        known = Opcode(name=UNORDERED_SUM, family="unordered", result="f32", source="f32", arity=2)
        return known if kind else None
    if family in {"add", "sub", "mul", "neg"}:
        return opcode(name)
    if family == "div":
        return opcode(f"div.rn.{formats}")
    return (opcode(f"cvt.{formats}") or opcode(f"cvt.rn.{formats}")) if family == "to" else None


def in_format(family: str, held: str) -> Opcode:
    """Return the correctly rounded operation of a family in a format."""
    known = opcode(f"{family}.rn.{held}" if family in {"fma", "div", "sqrt"} else f"{family}.{held}")
    if known is None:
        raise ValueError(f"no operation {family!r} in {held!r}")
    return known


def _known(name: str, family: str, held: str) -> Opcode:
    root = name.split(".", maxsplit=1)[0]
    divisor = {"div": 1, "divfma": 1, "rcp": 0, "rsqrt": 0, "lg2": 0}.get(root, -1)
    if family == "predicate":
        return Opcode(name=name, family=family, result="pred", source="pred", arity=_ARITY.get(root, 2))
    if family == "question":
        return Opcode(name=name, family="other", result="pred", source="f32", arity=1, divisor=0)
    if family == "choice":
        return Opcode(name=name, family=family, result="", source="", arity=3)
    if family == "comparison":
        held = held or name.rpartition(".")[2]
        return Opcode(name=name, family=family, result="pred", source=held, arity=_ARITY.get(root, 2))
    written = name if family == "other" else f"{family}.{held}"
    return Opcode(
        name=written, family=family, result=held, source=held, arity=_ARITY.get(root, 2), divisor=divisor
    )


def _conversion(name: str, found: re.Match[str]) -> Opcode | None:
    result, source = found["format"], found["source"]
    if (result, source) in _WIDENINGS:
        return Opcode(name=name, family="widen", result=result, source=source, arity=1)
    if found["rounds"] and (source, result) in _WIDENINGS:
        return Opcode(name=name, family="narrow", result=result, source=source, arity=1)
    return None

"""Exponentials, logarithms and tangents of compilers, recognised in graphs and replaced by one node each.

A function is known by the text of its expression: `x` is the argument, a hexadecimal number a literal of
that many bits, `#0` a term that an earlier line defines. A graph has the function where it has this very
expression of one node, bit for bit; that node is then the only operand of a node of the function's name.
How far a function is from what it is named after is an assumption of certificates, which
`benchmarks/functions.py` measures for every number of float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np

from verifier.arithmetic.graph.graph import Graph, Ids, pruned
from verifier.arithmetic.graph.opcodes import SUM_WITH_PRODUCT

_ARGUMENT = "x"
_SCALED = "#0 = (setp.lt.f32 x 0x800000)\n#1 = (ite #0 (mul.f32 x 0x4b000000) x)\n"
_LOGARITHM = _SCALED + (
    "#2 = (and.b32 (add.s32 (to_bits.b32 #1) 0xc0d55555) 0xff800000)\n"
    "#3 = (add.f32 (from_bits.f32 (sub.s32 (to_bits.b32 #1) #2)) 0xbf800000)\n"
    "#4 = (fma (fma (fma (fma 0xbe055027 #3 0x3e1039f6) #3 0xbdf8cdcc) #3 0x3e0f2955) #3 0xbe2ad8b9)\n"
    "#5 = (fma (fma (fma (fma #4 #3 0x3e4ced0b) #3 0xbe7fff22) #3 0x3eaaaa78) #3 0xbf000000)\n"
    "#6 = (fma (cvt.rn.f32.s32 #2) 0x34000000 (ite #0 0xc1b80000 0x0))\n"
    "(ite (setp.eq.f32 #1 0x0) 0xff800000 (fma #6 0x3f317218 (fma (mul.f32 #3 #5) #3 #3)))"
)
_TANGENT = (
    "#0 = (abs.ftz.f32 x)\n"
    "#1 = (add.f32 (ex2.approx.ftz.f32 (mul.f32 #0 0x4038aa3b)) 0x3f800000)\n"
    "#2 = (fma.rn.ftz.f32 (rcp.approx.ftz.f32 #1) 0xc0000000 0x3f800000)\n"
    "#3 = (to_bits.b32 (ite (setp.ge.f32 #0 0x41102cb4) 0x3f800000 #2))\n"
    "#4 = (mul.f32 x x)\n"
    "#5 = (fma.rn.ftz.f32 (fma.rn.ftz.f32 0x3c80f082 #4 0xbd563cae) #4 0x3e085941)\n"
    "#6 = (fma.rn.ftz.f32 (fma.rn.ftz.f32 (fma.rn.ftz.f32 #5 #4 0xbeaaa9ed) #4 0x0) x x)\n"
    "(ite (setp.ge.f32 #0 0x3f19999a) (from_bits.f32 (or.b32 #3 (and.b32 (to_bits.b32 x) 0x80000000))) #6)"
)
TEXTS = {
    "exp.cuda.f32": (
        "#0 = (fma.rm.f32 (cvt.sat.f32.f32 (fma.rn.f32 x 0x3bbb989d 0x3f000000)) 0x437c0000 0x4b400001)\n"
        "#1 = (fma.rn.f32 x 0x3fb8aa3b (neg.f32 (add.f32 #0 0xcb40007f)))\n"
        "(mul.f32 (ex2.approx.ftz.f32 (fma.rn.f32 x 0x32a57060 #1)) "
        "(from_bits.f32 (shl.b32 (to_bits.b32 #0) 0x17)))"
    ),
    "log.cuda.f32": _LOGARITHM.replace("(fma ", "(fma.rn.f32 "),
    "log.libdevice.f32": _LOGARITHM.replace("(fma ", "(fma.rn.ftz.f32 "),
    "tanh.libdevice.f32": _TANGENT,
    "within.f32": _SCALED + "(setp.lt.u32 (to_bits.b32 #1) 0x7f800000)",
}
"""By the name of the node that takes their place: expf and logf of CUDA's compilers, logf and tanhf of
libdevice as Triton 3.9 has them, and what logarithms ask before: whether x is finite and has no sign bit."""
POWER_OF_TWO = "from_bits.f32"
"""What an exponential is multiplied with at last: rounding this product changes subnormal results alone."""

_known: WeakKeyDictionary[Graph, dict[tuple[bool, bool], tuple[Graph, dict[str, int]]]] = WeakKeyDictionary()
"""What `with_functions` made of graphs, as long as these are kept."""


@dataclass(kw_only=True)
class Pattern:
    """An expression: for each of its terms the operation, literal or argument, and the terms it takes."""

    names: list[str] = field(default_factory=list)
    operands: list[tuple[int, ...]] = field(default_factory=list)

    def append(self, name: str, operands: tuple[int, ...] = ()) -> int:
        """Append a term; return its number."""
        self.names.append(name)
        self.operands.append(operands)
        return len(self.names) - 1


@cache
def pattern_of(name: str) -> Pattern:
    """Return the expression of a function."""
    found, argument = Pattern(), -1
    defined: dict[str, int] = {}

    def term(words: list[str]) -> int:
        nonlocal argument
        word = words.pop(0)
        if word in defined:
            return defined[word]
        if word == _ARGUMENT:
            argument = found.append(word) if argument < 0 else argument
            return argument
        if word != "(":
            return found.append(word)
        operation, below = words.pop(0), []
        while words[0] != ")":
            below.append(term(words))
        words.pop(0)
        return found.append(operation, tuple(below))

    for line in TEXTS[name].split("\n"):
        label, _, text = line.rpartition(" = ")
        defined[label] = term(text.replace("(", " ( ").replace(")", " ) ").split())
    return found


def with_functions(
    graph: Graph, *, fused: bool = False, marked: bool = False
) -> tuple[Graph, dict[str, int]]:
    """Return a graph in which each known function is one node, and how often rules were used for that.

    fused: a product with a power of two that is fused into a sum is taken for the rounded one (claim C).
    marked: such sums are told from others (`opcodes.SUM_WITH_PRODUCT`), which claim C makes sums.
    """
    if not {"to_bits.b32", POWER_OF_TWO} & set(graph.names):
        return graph, {}
    known, marked = _known.setdefault(graph, {}), fused and marked
    if (fused, marked) not in known:
        known[fused, marked] = _with_functions(graph, fused=fused, marked=marked)
    found, fired = known[fused, marked]
    return found, dict(fired)


def _with_functions(graph: Graph, *, fused: bool, marked: bool) -> tuple[Graph, dict[str, int]]:
    fired: dict[str, int] = {}
    if fused:
        graph, fired["contraction"] = _split(graph, SUM_WITH_PRODUCT if marked else "add.f32")
    graph, fired["plus_zero"] = _without_zeros(graph)
    for name in TEXTS:
        graph = _replaced(graph, name)
    return graph, {rule: count for rule, count in fired.items() if count}


def _without_zeros(graph: Graph) -> tuple[Graph, int]:
    """Return a graph in which what takes a + 0 takes a: compilers see through a zero in some uses alone."""
    zero = np.array([name == "literal:f32" for name in graph.names], dtype=np.bool_)[graph.operation]
    zero &= (graph.value & np.uint64(0x7FFFFFFF)) == 0
    added = np.array([name in {"add.f32", "add.rn.f32"} for name in graph.names], dtype=np.bool_)
    first, second = (np.maximum(graph.operands[:, place], 0) for place in range(2))
    sums = np.flatnonzero(added[graph.operation] & zero[second] & (graph.operands[:, 1] >= 0))
    if not len(sums):
        return graph, 0
    place = np.arange(len(graph) + 1)
    place[-1] = -1
    for node in sums:  # operands come first
        place[node] = place[first[node]]
    outputs = {name: place[nodes] for name, nodes in graph.outputs.items()}
    several = None if graph.several is None else graph.several.copy()
    if several is not None:
        several[place[sums[several[sums]]]] = True
    changed = replace(graph, operands=place[graph.operands], outputs=outputs, several=several)
    return changed, graph.times(sums)


def _replaced(graph: Graph, name: str) -> Graph:
    roots, arguments = _matches(graph, pattern_of(name))
    if not len(roots):
        return graph
    names = graph.names if name in graph.names else (*graph.names, name)
    operation, operands = graph.operation.copy(), graph.operands.copy()
    operation[roots] = names.index(name)
    operands[roots] = -1
    operands[roots, 0] = arguments
    return pruned(replace(graph, names=names, operation=operation, operands=operands))


def _matches(graph: Graph, pattern: Pattern) -> tuple[Ids, Ids]:
    """Return the nodes that are a pattern, and the node that is the argument of each."""
    number = {name: code for code, name in enumerate(graph.names)}
    if any(
        operands and name not in number
        for name, operands in zip(pattern.names, pattern.operands, strict=True)
    ):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    literal = np.array([name.startswith("literal:") for name in graph.names], dtype=np.bool_)
    top = len(pattern.names) - 1
    roots = np.flatnonzero(graph.operation == number[pattern.names[top]])
    held: dict[int, Ids] = {top: roots}
    right = np.ones(len(roots), dtype=np.bool_)
    for term in range(top, -1, -1):  # a term comes after those that it takes
        name, nodes = pattern.names[term], held[term]
        if name.startswith("0x"):
            right &= literal[graph.operation[nodes]] & (graph.value[nodes] == np.uint64(int(name, 16)))
        elif name != _ARGUMENT:
            right &= graph.operation[nodes] == number[name]
            for place, below in enumerate(pattern.operands[term]):
                given = graph.operands[nodes, place]
                right &= given >= 0
                given = np.where(given >= 0, given, 0)
                if below in held:
                    right &= held[below] == given
                else:
                    held[below] = given
    return roots[right], held[pattern.names.index(_ARGUMENT)][right]


def _split(graph: Graph, name: str) -> tuple[Graph, int]:
    """Return a graph in which no product with a power of two is fused into a sum, and how many were.

    name: of the operation that takes such a product and what it was added to.
    """
    fused = [code for code, name in enumerate(graph.names) if name == "fma.rn.f32"]
    scale = [code for code, name in enumerate(graph.names) if name == POWER_OF_TWO]
    nodes = np.flatnonzero(np.isin(graph.operation, fused))
    nodes = nodes[np.isin(graph.operation[graph.operands[nodes, 1]], scale)]
    if not len(nodes):
        return graph, 0
    names = tuple(dict.fromkeys((*graph.names, "mul.f32", name)))
    # Each of these nodes makes room for its product before it.
    shift = np.zeros(len(graph) + 1, dtype=np.int64)
    np.add.at(shift, nodes, 1)
    place = np.arange(len(graph)) + np.cumsum(shift[:-1])
    moved = np.append(place, -1)
    operation, line = (np.zeros(len(graph) + len(nodes), dtype=np.int32) for _ in range(2))
    operands, value = (
        np.full((len(operation), 3), -1, dtype=np.int64),
        np.zeros(len(operation), dtype=np.uint64),
    )
    operation[place], line[place], value[place] = graph.operation, graph.line, graph.value
    operands[place] = moved[graph.operands]
    sums = place[nodes]
    products = sums - 1
    operation[products], operation[sums] = names.index("mul.f32"), names.index(name)
    line[products] = line[sums]
    operands[products, :2] = operands[sums, :2]
    operands[sums] = np.stack([products, operands[sums, 2], np.full(len(sums), -1)], axis=1)
    made = several = None
    if graph.several is not None:
        several = np.zeros(len(operation), dtype=np.bool_)
        several[place] = graph.several
    if graph.made is not None:
        made = np.zeros(len(operation), dtype=np.int64)
        made[place] = graph.made
        made[products] = made[sums]
    outputs = {name: place[ids] for name, ids in graph.outputs.items()}
    return replace(
        graph, names=names, operation=operation, operands=operands, value=value, line=line, outputs=outputs,
        made=made, several=several,
    ), graph.times(nodes)  # fmt: skip


def named_functions(names: Iterable[str]) -> list[str]:
    """Return which of these names are those of functions."""
    return sorted(set(names) & set(TEXTS))

"""Values of recorded expressions in a prime field: equal ones are the same real function.

Sums, products and quotients are those of the field, and rounding is none. Every other operation (roots,
exponentials, maxima, choices) is some function of its operands, the same in all graphs, of which nothing else
is known: the results are rational functions of elements and of such values. Two that differ agree at random
elements with a probability of at most their degree over p (Schwartz and Zippel).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from verifier.arithmetic.formats import Array
from verifier.arithmetic.graph.constants import FULL_NAMES, decoded
from verifier.arithmetic.graph.graph import Bits, Graph
from verifier.arithmetic.graph.levels import levels
from verifier.arithmetic.graph.opcodes import opcode
from verifier.machine.shadow.arithmetics import field

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SYMMETRIC = ("max", "min")
_SHIFT = np.uint64(29)


def field_values(graph: Graph, constants: Mapping[float, Fraction], seed: int) -> dict[str, Bits]:
    """Return the residues of all results, at elements that the seed alone chooses.

    constants: the rationals that some literals stand for.

    Raises:
        ValueError: a literal is NaN or infinite, or nothing is known of an operation.

    """
    values = np.zeros(len(graph) + 1, dtype=np.uint64)
    for level in levels(graph):
        operations = graph.operation[level]
        for code in np.unique(operations):
            nodes = level[operations == code]
            name = graph.names[code]
            kind, _, detail = name.partition(":")
            if kind == "literal" and detail in FULL_NAMES:
                numbers = decoded(detail, graph.value[nodes])
                if not np.isfinite(numbers).all():
                    raise ValueError("a constant is no finite number")
                values[nodes] = _literals(numbers, constants)
            elif detail:
                values[nodes] = _any(name, seed, graph.value[nodes])
            else:
                operands = [values[graph.operands[nodes, place]] for place in range(3)]
                count = int((graph.operands[nodes[0]] >= 0).sum())
                values[nodes] = _computed(name, seed, operands[:count])
    return {result: values[nodes] for result, nodes in graph.outputs.items()}


def _literals(numbers: Array, constants: Mapping[float, Fraction]) -> Bits:
    found = field.of_floats(numbers)
    for held, meaning in constants.items():
        found = np.where(numbers == held, np.uint64(field.of_fraction(meaning)), found)
    return found


def _computed(name: str, seed: int, operands: list[Bits]) -> Bits:
    operation = opcode(name)
    if operation is None:
        raise ValueError(f"nothing is known of {name}")
    if operation.family in {"widen", "narrow"}:
        return operands[0]
    family, *rest = name.removeprefix("torch.").split(".")
    if family in _EXACT:
        return _EXACT[family](*operands)
    if family in _SYMMETRIC:
        operands = list(np.sort(np.stack(operands), axis=0))
    if family in {"sqrt", "rsqrt"}:
        root = _any("sqrt", seed, *operands)
        return root if family == "sqrt" else field.inverse(root)
    return _any(f"setp.{rest[0]}" if family == "setp" else family, seed, *operands)


def _fused(a: Bits, b: Bits, c: Bits) -> Bits:
    return field.add(field.multiply(a, b), c)


def _quotient(a: Bits, b: Bits) -> Bits:
    return field.multiply(a, field.inverse(b))


_EXACT: dict[str, Callable[..., Bits]] = {
    "add": field.add,
    "sum": field.add,  # of torch, in any order
    "sub": field.subtract,
    "mul": field.multiply,
    "fma": _fused,
    "div": _quotient,
    "rcp": field.inverse,
    "neg": field.negate,
}


def _any(name: str, seed: int, *operands: Bits) -> Bits:
    """Return elements that depend on a name, a seed and operands as if drawn for each."""
    found: Bits = np.full(operands[0].shape, (zlib.crc32(name.encode()) << 16) ^ seed, dtype=np.uint64) * _ODD
    for operand in (*operands, np.ones_like(operands[0])):
        found = (found ^ operand ^ (found >> _SHIFT)) * _ODD
        found ^= found >> np.uint64(32)
        found = found * np.uint64(0xD6E8FEB86659FD93)
        found ^= found >> _SHIFT
    return field.reduce61(found)

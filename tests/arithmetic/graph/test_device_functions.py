"""Exponentials and logarithms of compilers: recognised bit for bit."""

import numpy as np
import pytest

from verifier.arithmetic.graph.device_functions import TEXTS, pattern_of, with_functions
from verifier.arithmetic.graph.graph import Builder

INTEGERS = {"and.b32", "or.b32", "add.s32", "sub.s32", "shl.b32", "setp.lt.u32"}


def appended(name, append, argument, change=None):
    """Append the expression of a function node by node; change: a literal to be put in another's place."""
    pattern, made = pattern_of(name), []
    for term, operands in zip(pattern.names, pattern.operands, strict=True):
        if term == "x":
            made.append(argument)
        elif term.startswith("0x"):
            bits = int(term, 16)
            user = next(n for n, o in zip(pattern.names, pattern.operands, strict=True) if len(made) in o)
            kind = "b32" if user in INTEGERS else "f32"
            made.append(append(f"literal:{kind}", value=change[1] if change and change[0] == bits else bits))
        else:
            made.append(append(term, *(made[operand] for operand in operands)))
    return made[-1]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_function_is_one_node_and_no_other_expression_is(name):
    literals = sorted({int(term, 16) for term in pattern_of(name).names if term.startswith("0x")})
    for change in [None, *((bits, bits ^ 1) for bits in literals)]:
        builder = Builder()
        x = builder.append("input:x", value=np.arange(3))
        graph = builder.graph({"y": appended(name, builder.append, x, change)}, {"x": "f32"})
        found, _ = with_functions(graph)
        used = {found.names[code] for code in found.operation}
        assert (name in used) == (change is None), change
        assert change is not None or used == {name, "input:x"}


def test_an_argument_that_is_two_nodes_is_no_function_of_one():
    builder = Builder()
    x = builder.append("input:x", value=np.arange(2))
    arguments = iter([x, x, builder.append("neg.f32", x)])

    def append(name, *operands, value=0):
        mine = [next(arguments, x) if operand is x else operand for operand in operands]
        return builder.append(name, *mine, value=value)

    graph = builder.graph({"y": appended("exp.cuda.f32", append, x)}, {"x": "f32"})
    assert "exp.cuda.f32" not in with_functions(graph)[0].names

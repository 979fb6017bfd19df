"""Exponentials and logarithms of compilers: recognised bit for bit."""

import numpy as np
import pytest

from verifier.arithmetic.graph.device_functions import TEXTS, pattern_of, with_functions
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.opcodes import SUM_WITH_PRODUCT

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


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_an_element_in_the_place_of_a_literal_is_no_literal_whatever_its_number(name):
    literals = [term for term in pattern_of(name).names if term.startswith("0x")]
    for turn in range(len(literals)):
        builder, met = Builder(), iter(range(len(literals)))
        x = builder.append("input:x", value=np.arange(3))

        def append(name, *operands, value=0, builder=builder, met=met, turn=turn):
            element = name.startswith("literal:") and next(met) == turn
            return builder.append("input:y" if element else name, *operands, value=value)

        graph = builder.graph({"y": appended(name, append, x)}, {"x": "f32", "y": "f32"})
        assert name not in with_functions(graph)[0].names


@pytest.mark.parametrize(("bits", "zero"), [(0, True), (0x80000000, True), (1, False), (0x10000, False)])
def test_a_zero_that_is_added_is_left_out_and_nothing_else(bits, zero):
    builder = Builder()
    x = builder.append("input:x", value=np.arange(2))
    total = builder.append("add.rn.f32", x, builder.append("literal:f32", value=bits))
    graph = builder.graph({"y": builder.append("to_bits.b32", total)}, {"x": "f32"})
    found, fired = with_functions(graph)
    assert fired == ({"plus_zero": 2} if zero else {})
    assert (found.operands[found.outputs["y"], 0].tolist() == x.tolist()) is zero


def test_only_a_product_with_a_power_of_two_is_taken_out_of_a_sum():
    builder = Builder()
    x = builder.append("input:x", value=np.arange(1))
    scale = builder.append("from_bits.f32", builder.append("shl.b32", builder.append("to_bits.b32", x), x))
    sums = [builder.append("fma.rn.f32", x, factor, x) for factor in (scale, x)]
    graph = builder.graph({"scaled": sums[0], "plain": sums[1]}, {"x": "f32"})
    found, fired = with_functions(graph, fused=True, marked=True)
    named = {name: found.names[int(found.operation[nodes[0]])] for name, nodes in found.outputs.items()}
    assert (named, fired) == ({"scaled": SUM_WITH_PRODUCT, "plain": "fma.rn.f32"}, {"contraction": 1})

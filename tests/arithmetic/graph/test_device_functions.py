"""Exponentials and logarithms of compilers: recognised bit for bit, and as exact as they are said to be."""

import numpy as np
import pytest

from verifier.arithmetic.graph.device_functions import TEXTS, pattern_of, with_functions
from verifier.arithmetic.graph.graph import Builder
from verifier.machine.arithmetic.approximation import Correct
from verifier.machine.shadow.graph_nodes import Nodes

INTEGERS = {"and.b32", "add.s32", "sub.s32", "shl.b32", "setp.lt.u32"}


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


@pytest.mark.parametrize(
    ("name", "exact", "low", "high", "ulp"),
    [
        ("exp.cuda.f32", np.exp, -87.0, 88.0, 2.0),
        ("log.cuda.f32", np.log, 1e-37, 1e38, 1.0),
        ("log.libdevice.f32", np.log, 1e-37, 1e38, 1.0),
    ],
)
def test_a_function_errs_as_little_as_its_documentation_says(name, exact, low, high, ulp):
    draw = np.random.default_rng(0)
    x = draw.uniform(low, high, 20000) if low < 0 else np.exp(draw.uniform(np.log(low), np.log(high), 20000))
    ends = [-np.inf, 0.0, -0.0] if low < 0 else [1.0, 1 + 2.0**-23, 1 - 2.0**-24]
    x = np.concatenate([x, ends]).astype(np.float32)
    nodes = Nodes()
    argument = nodes.add("input:x", x.shape, value=np.arange(len(x), dtype=np.uint64))

    def append(operation, *operands, value=0):
        return nodes.add(operation, x.shape, operands, np.asarray(value) if not operands else None)

    result = appended(name, append, argument)
    bits, known = nodes.evaluate({"x": x.view(np.uint32).astype(np.uint64)}, Correct())
    assert known.all()
    computed = bits[result].astype(np.uint32).view(np.float32)
    wanted = exact(x.astype(np.float64))
    spacing = np.spacing(np.maximum(np.abs(wanted), 2.0**-126).astype(np.float32)).astype(np.float64)
    assert (np.abs(computed - wanted) <= (ulp + 0.01) * spacing).all()
    assert low > 0 or (computed[-2:] == 1.0).all()

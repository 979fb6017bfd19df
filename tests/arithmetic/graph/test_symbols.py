"""Simulations run on symbols: their expressions give every bit of the same simulation on numbers."""

import numpy as np
import pytest

from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.graph.constants import decoded
from verifier.arithmetic.graph.graph import Builder
from verifier.arithmetic.graph.levels import levels
from verifier.arithmetic.graph.symbols import SymbolicArithmetic, literals
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.arithmetic.trees.tree import pairwise, tree
from verifier.bounds.variance import Reduction, algorithms
from verifier.bounds.variance.options import option_rules, reduction

ROWS, COLUMNS = 3, 11


def evaluated(graph, data, rounded):
    """Return the value of every node, with the operations of `RoundedArithmetic`."""
    value = np.full(len(graph) + 1, np.nan)
    computes = {
        "add": rounded.add,
        "sub": rounded.subtract,
        "mul": rounded.multiply,
        "fma": rounded.multiply_add,
        "div": rounded.divide,
        "sqrt": rounded.square_root,
        "neg": np.negative,
        "max": rounded.maximum,
        "ite": np.where,
    }
    for level in levels(graph):
        for code in np.unique(graph.operation[level]):
            nodes = level[graph.operation[level] == code]
            name = graph.names[code]
            below = [value[graph.operands[nodes, place]] for place in range(3)]
            family, kept = name.split(".")[0], name.split(".")[-1]
            if name.startswith("input:"):
                value[nodes] = data.ravel()[graph.value[nodes].astype(int)]
            elif name.startswith("literal:"):
                value[nodes] = decoded(name.removeprefix("literal:"), graph.value[nodes])
            elif family == "setp":
                value[nodes] = below[0] < below[1]
            elif family == "cvt":
                value[nodes] = round_to(FORMATS["float16"], below[0]) if kept == "f32" else below[0]
            else:
                arity = int((graph.operands[nodes[0]] >= 0).sum())
                value[nodes] = computes[family](*below[:arity])
    return value


def claims(name):
    """Yield declarations of an algorithm that reach each way of computing it."""
    options = option_rules(name)
    given = [{}]
    given += [{"merge": form} for form in ("weighted", "pooled")] if "merge" in options else []
    given += [{"mean_cast": "float16"}] if "mean_cast" in options else []
    given += [{"squares_tree": tree(lanes=4)}] if "squares_tree" in options else []
    given += [{"corrects_mean": True}] if "corrects_mean" in options else []
    for number, (by, how) in enumerate(
        (by, how) for by in ("division", "reciprocal") for how in ("none", "uniform", "mixed")
    ):
        yield reduction(
            name,
            given[number % len(given)],
            Reduction(
                arithmetic=ieee("float32"),
                tree=tree(lanes=3) if number % 2 else pairwise(),
                divide_by_n=by,
                mean_contraction=how,
                clamp=number % 2 == 0,
            ),
        )


@pytest.mark.parametrize("name", algorithms())
def test_expressions_of_a_simulation_give_its_bits(name):
    rounded = RoundedArithmetic(format=FORMATS["float32"])
    data = rounded.of(np.random.default_rng(0).normal(3.0, 1.0, (ROWS, COLUMNS)))
    for number, claim in enumerate(claims(name)):
        builder = Builder()
        symbolic = SymbolicArithmetic(
            format=FORMATS["float32"], builder=builder, larger=("max", "choice")[number % 2]
        )
        leaves = builder.append("input:x", value=np.arange(data.size).reshape(data.shape))
        found = algorithms()[name].simulate(symbolic, symbolic.symbols(leaves), claim)
        outputs = dict(zip(("mean", "variance"), map(symbolic.nodes, found), strict=True))
        values = evaluated(builder.graph(outputs), data, rounded)
        for wanted, nodes in zip(
            algorithms()[name].simulate(rounded, data, claim), outputs.values(), strict=True
        ):
            assert np.array_equal(values[nodes].view(np.int64), wanted.view(np.int64)), claim


def test_what_is_not_rounded_is_refused():
    builder = Builder()
    symbolic = SymbolicArithmetic(format=FORMATS["float32"], builder=builder)
    x = symbolic.symbols(builder.append("input:x", value=np.arange(4)))
    for wrong in (lambda: x + x, lambda: np.sqrt(x), lambda: np.asarray(x), lambda: np.sum(x)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="does not hold"):
        literals(builder, FORMATS["float32"], 0.1)
    with pytest.raises(ValueError, match="two graphs"):
        SymbolicArithmetic(format=FORMATS["float32"], builder=Builder()).add(x, x)


def test_operations_that_are_not_ieee_are_not_computed_beforehand():
    builder = Builder()
    symbolic = SymbolicArithmetic(
        format=FORMATS["float32"], builder=builder, named={"divide": "div.full.f32"}
    )
    node = symbolic.nodes(symbolic.divide(np.asarray(1.0), np.asarray(3.0)))
    graph = builder.graph({"share": node})
    assert [graph.names[code] for code in graph.operation] == ["literal:f32", "literal:f32", "div.full.f32"]

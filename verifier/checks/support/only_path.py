"""Whether a kernel takes the recorded path for all inputs: what branches ask of data is as it was."""

from __future__ import annotations

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.normal_form import Normaliser, cancelled_ambiguously
from verifier.arithmetic.graph.signs import Signs, reached
from verifier.arithmetic.graph.support import reach
from verifier.checks.support.obligations import discharged
from verifier.checks.support.recorded_code import RefusedError, branch_of

CONSTANTS = "what constants decide"
_NOT_BELOW = {"setp.lt", "setp.gt"}


def same_for_all(paths: Graph, results: Graph) -> tuple[str, ...]:
    """Return what was shown of the predicates by which branches were taken, where all values are finite.

    paths: the predicates that held, as the output "true", and those that did not, as "false".
    results: the recorded expressions, which are finite and so are their parts.

    Raises:
        RefusedError: one might be other than it was.

    """
    if not any(nodes.size for nodes in paths.outputs.values()):
        return ()
    terms = SharedTerms()
    # What is shown of a sum of exponentials holds whether their last products are rounded or fused.
    known, form = (
        Normaliser(terms, "EZFC").normal(with_functions(graph, fused=True, marked=True)[0])
        for graph in (results, paths)
    )
    several = np.unique(np.concatenate([known.mixed, known.either, form.mixed, form.either]))
    if cancelled_ambiguously(terms, [known, form]).size:
        raise RefusedError(
            "nothing decides on data", "a sum that may stand for two numbers would have to cancel"
        )
    discharged(terms, known.outputs.values(), form.divisors, form.vanished)
    finite = reached(terms, np.concatenate([edges.ravel() for edges in known.outputs.values()]))
    asked = np.unique(np.concatenate([edges.ravel() for edges in form.outputs.values()]))
    signs, shown = Signs(terms, asked, several), set[str]()
    by_data = reach(paths, _data(paths))
    for truth in ("true", "false"):
        fixed = by_data.none(paths.outputs[truth])
        for edge, node, constant in zip(form.outputs[truth], paths.outputs[truth], fixed, strict=True):
            why = CONSTANTS if constant else _holds(terms, signs, finite, int(edge), held=truth == "true")
            if not why:
                raise RefusedError("nothing decides on data", branch_of(paths, int(node), truth))
            shown.add(why)
    return tuple(sorted(shown))


def _data(graph: Graph) -> Ids:
    """Return labels for `reach`: 0 for each leaf that is no literal, -1 elsewhere."""
    literal = np.array([name.startswith("literal:") for name in graph.names], dtype=np.bool_)
    leaves = graph.operands[:, 0] < 0
    return np.where(leaves & ~literal[graph.operation], 0, -1)


def _holds(terms: SharedTerms, signs: Signs, finite: Ids, edge: int, *, held: bool) -> str:
    """Return why a predicate is always as it was, "" where that is not shown."""
    term = edge >> 1
    number = float(terms.number[term])
    if not np.isnan(number):
        return CONSTANTS if bool(number) == held else ""
    name = terms.names[int(terms.operation[term])]
    first, second = (int(one) for one in terms.edges[term][:2])
    if name == "within.f32" and held and first >> 1 in finite:
        positive = signs.nonnegative(first) and signs.nonzero(first)
        return f"{terms.text(first, 1)} is positive and finite" if positive else ""
    compared, _, kind = name.rpartition(".")
    if compared in _NOT_BELOW and kind in {"f32", "f64"} and not held:
        small, bound = (first, second) if compared == "setp.lt" else (second, first)
        below = float(terms.numbers(np.array([bound]))[0])
        if below == 0.0 and signs.nonnegative(small):
            return f"{terms.text(small, 1)} is not below 0"
    return ""

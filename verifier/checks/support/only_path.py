"""Whether a kernel takes the recorded path for all inputs: what branches ask of data is as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.contraction import cancelled_openly
from verifier.arithmetic.graph.device_functions import with_functions
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser, cancelled_ambiguously
from verifier.arithmetic.graph.signs import Signs, reached
from verifier.arithmetic.graph.support import reach
from verifier.checks.support.obligations import discharged
from verifier.checks.support.recorded_code import RefusedError, branch_of
from verifier.execution.settled_nodes import is_approximate

CONSTANTS = "what constants decide"
_NOT_BELOW = {"setp.lt", "setp.gt"}


CLAIMS = "EZFC"
"""Claims of the rules by which predicates and results are formed here."""


def same_for_all(
    paths: Graph, results: Graph, formed: tuple[SharedTerms, NormalForm] | None = None
) -> tuple[str, ...]:
    """Return what was shown of the predicates by which branches were taken, where all values are finite.

    paths: the predicates that held, as the output "true", and those that did not, as "false".
    results: the recorded expressions, which are finite and so are their parts. formed: their normal form by
    `CLAIMS`, if it is known; more terms are put into its table.

    Raises:
        RefusedError: one might be other than it was.

    """
    by_data = reach(paths, _data(paths))
    fixed = {truth: by_data.none(nodes) for truth, nodes in paths.outputs.items()}
    shown = {CONSTANTS for constant in fixed.values() if constant.any()}
    if all(constant.all() for constant in fixed.values()):
        return tuple(shown)
    open_ = {truth: nodes[~fixed[truth]] for truth, nodes in paths.outputs.items()}
    paths = replace(paths, outputs=open_)
    # What is shown of a sum of exponentials holds whether their last products are rounded or fused.
    terms, known = formed or _formed(SharedTerms(), results)
    terms, form = _formed(terms, paths)
    several = np.unique(np.concatenate([known.mixed, known.either, form.mixed, form.either]))
    if cancelled_ambiguously(terms, [known, form]).size or cancelled_openly(terms, [known, form]).size:
        raise RefusedError(
            "nothing decides on data", "a sum that may stand for two numbers would have to cancel"
        )
    fused = np.union1d(known.fused, form.fused)
    discharged(
        terms, known.outputs.values(), form.divisors, form.vanished,
        nonzero=form.nonzero, either=several, fused=fused,
    )  # fmt: skip
    finite = reached(terms, np.concatenate([edges.ravel() for edges in known.outputs.values()]))
    asked = np.unique(np.concatenate([edges.ravel() for edges in form.outputs.values()]))
    signs = Signs(terms, asked, several, fused)
    for truth in ("true", "false"):
        for edge, node in zip(form.outputs[truth], paths.outputs[truth], strict=True):
            why = _holds(terms, signs, finite, int(edge), held=truth == "true")
            if not why:
                raise RefusedError("nothing decides on data", branch_of(paths, int(node), truth))
            shown.add(why)
    return tuple(sorted(shown))


def _formed(terms: SharedTerms, graph: Graph) -> tuple[SharedTerms, NormalForm]:
    return terms, Normaliser(terms, CLAIMS).normal(with_functions(graph, fused=True, marked=True)[0])


def _data(graph: Graph) -> Ids:
    """Return labels for `reach`: 0 for leaves that are no literals and for approximate results, -1 elsewhere.

    An approximation of constants that PTX leaves open may be another number on another device.
    """
    literal, approximate = (
        np.array([told(name) for name in graph.names], dtype=np.bool_)
        for told in (lambda name: name.startswith("literal:"), is_approximate)
    )
    leaves = graph.operands[:, 0] < 0
    return np.where((leaves & ~literal[graph.operation]) | approximate[graph.operation], 0, -1)


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

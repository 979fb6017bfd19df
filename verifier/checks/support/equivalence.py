"""Compares two compiled kernels result by result, for all inputs that lie in memory as those of a case do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.contraction import cancelled_openly
from verifier.arithmetic.graph.graph import Graph, Ids
from verifier.arithmetic.graph.normal_form import (
    NormalForm,
    Normaliser,
    cancelled_ambiguously,
    first_difference,
    place_of,
)
from verifier.arithmetic.graph.rules import OF_ALL_VALUES
from verifier.arithmetic.graph.support import labels_of, reach
from verifier.checks.support.field_values import field_values
from verifier.checks.support.obligations import discharged
from verifier.checks.support.reached_elements import in_memory, told_apart
from verifier.checks.support.recorded_code import (
    COPIES,
    MODES,
    Recordings,
    RefusedError,
    must_be_what_each_call_gives,
    must_hold_for_all_inputs,
    recorded_filled,
    recorded_run,
)
from verifier.execution.child_process import Runner
from verifier.ops import Op, op
from verifier.ops.specification.literals import meant
from verifier.records.case import Case
from verifier.records.certificate import Refusal
from verifier.records.comparison import (
    DEGREES,
    CodeComparison,
    ComparedResult,
    Degree,
    FirstDifference,
    Witness,
)
from verifier.records.observation import Observation
from verifier.records.subject import Subject

LEVELS: tuple[tuple[str, Degree], ...] = (
    ("E", "bits"),
    ("EZ", "zeros"),
    ("EZF", "zeros"),
    ("EZC", "fusing"),
    ("EZFC", "fusing"),
)
"""Claims that are admitted, one after the other, and what two equal terms then are."""
DRAWS = (1, 2)
"""Seeds of the elements at which real functions are compared: two errors by chance are as likely as 2^-90."""
_ORDER = tuple(DEGREES)


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two recordings that are compared."""

    first: Graph
    second: Graph
    op: Op
    case: Case

    @property
    def common(self) -> list[str]:
        """The results that both give, in as many elements."""
        sizes = {name: nodes.size for name, nodes in self.second.outputs.items()}
        return [name for name, nodes in self.first.outputs.items() if sizes.get(name) == nodes.size]


def compared_codes(
    first: Subject, second: Subject, case: Case, *, runner: Runner, gradients: bool = False
) -> CodeComparison | Refusal:
    """Say how far each result of two kernels is the same computation, for all inputs of the case's layout.

    Different expressions prove nothing but where a witness is given: the rules are not complete.
    """
    try:
        runs = tuple(recorded_run(one, case, runner=runner, gradients=gradients) for one in (first, second))
        pairs = _pairs((first, second), case, runs, runner=runner, gradients=gradients)
        found = [_compared(pair) for pair in pairs.values()]
    except RefusedError as error:
        return error.refusal
    names = [set(pairs[MODES[0]].first.outputs), set(pairs[MODES[0]].second.outputs)]
    return CodeComparison(
        first=first.name,
        second=second.name,
        dtype=case.dtype,
        rows=case.rows,
        columns=case.columns,
        results=tuple(
            _weakest([by_name[name] for by_name, _ in found], _witness(name, *runs)) for name in found[0][0]
        ),
        alone=tuple(sorted((names[0] ^ names[1]) | ((names[0] & names[1]) - set(found[0][0])))),
        obligations=tuple(sorted({one for _, held in found for one in held} | _of_copies(runs))),
    )


def _of_copies(runs: Iterable[Observation]) -> set[str]:
    """Say which number of several is compared, where copies of a thread store in one place at once."""
    each = (one for run in runs for one in run.found_as(Recordings).by_mode.values())
    return {f"{COPIES}: the last one's is compared"} if any(one.copies_differ for one in each) else set()


def _pairs(
    subjects: tuple[Subject, Subject],
    case: Case,
    runs: tuple[Observation, ...],
    *,
    runner: Runner,
    gradients: bool,
) -> dict[str, _Pair]:
    """Return the recordings to compare by what tells them apart: products fused or not, lanes filled."""
    graphs: list[dict[str, Graph]] = []
    fills = any(run.found_as(Recordings).undefined for run in runs)
    for subject, run in zip(subjects, runs, strict=True):
        found = run.found_as(Recordings)
        by_mode = dict(found.by_mode)
        if fills:
            by_mode["filled"] = (
                recorded_filled(subject, case, runner=runner, gradients=gradients)
                if found.undefined
                else by_mode[MODES[0]]
            )
        for one in by_mode.values():
            try:
                must_be_what_each_call_gives(found)
                must_hold_for_all_inputs(one)
            except RefusedError as error:
                raise RefusedError(error.refusal.stage, f"{subject.name}: {error}") from error
        graphs.append({mode: one.graph for mode, one in by_mode.items()})
    a, b = graphs
    pairs = {mode: _Pair(first=a[mode], second=b[mode], op=op(case.op), case=case) for mode in a}
    if not pairs[MODES[0]].common:
        raise RefusedError("there are results to compare", "the two kernels have no result in common")
    return pairs


def _compared(pair: _Pair) -> tuple[dict[str, ComparedResult], tuple[str, ...]]:
    """Return how far each common result is the same, and the obligations that were met."""
    open_results, found, met = list(pair.common), dict[str, ComparedResult](), tuple[str, ...]()
    why = dict.fromkeys(open_results, "")
    differences = dict[str, FirstDifference]()
    for claims, degree in LEVELS:
        terms = SharedTerms()
        forms = tuple(
            Normaliser(terms, claims, without=OF_ALL_VALUES).normal(graph)
            for graph in (pair.first, pair.second)
        )
        same = [name for name in open_results if not _differing(forms, name).size]
        if degree != "bits" and same:
            same, more = _allowed(pair, terms, forms, same, claims, why)
            met += more
        for name in same:
            found[name] = ComparedResult(
                result=name, degree=degree, why=why[name], difference=differences.get(name)
            )
        open_results = [name for name in open_results if name not in found]
        for name in open_results:
            if _differing(forms, name).size:
                differences[name] = _first(terms, forms, name)
        if not open_results:
            break
    formulas = _formulas(pair, open_results)
    for name in open_results:
        reason = why[name] or formulas[name]
        degree = "none" if formulas[name] else "formula"
        found[name] = ComparedResult(result=name, degree=degree, why=reason, difference=differences.get(name))
    return found, met


def _differing(forms: tuple[NormalForm, ...], name: str) -> Ids:
    """Return the elements of a result, in row-major order, that are different terms."""
    first, second = (form.outputs[name].ravel() for form in forms)
    return np.flatnonzero(first != second)


def _first(terms: SharedTerms, forms: tuple[NormalForm, ...], name: str) -> FirstDifference:
    where = int(_differing(forms, name)[0])
    left, right = first_difference(terms, *(int(form.outputs[name].ravel()[where]) for form in forms))
    return FirstDifference(
        first=terms.text(left),
        first_line=place_of(terms, forms[0], left),
        second=terms.text(right),
        second_line=place_of(terms, forms[1], right),
    )


def _allowed(  # noqa: PLR0917 (what a level has)
    pair: _Pair,
    terms: SharedTerms,
    forms: tuple[NormalForm, ...],
    same: list[str],
    claims: str,
    why: dict[str, str],
) -> tuple[list[str], tuple[str, ...]]:
    """Return the results of equal terms for which the rules may be used; the others get their reason."""
    for term in cancelled_ambiguously(terms, forms)[:1].tolist():
        lost = f"{terms.text(2 * term)}, of which not all uses fuse the same product, would have to cancel"
        why.update(dict.fromkeys(same, lost))
        return [], ()
    for term in cancelled_openly(terms, forms)[:1].tolist():
        lost = f"{terms.text(2 * term)}, which ptxas may fuse in one place alone, would have to cancel"
        why.update(dict.fromkeys(same, lost))
        return [], ()
    try:
        met = discharged(
            terms,
            (edges for form in forms for edges in form.outputs.values()),
            np.union1d(forms[0].divisors, forms[1].divisors),
            np.union1d(forms[0].vanished, forms[1].vanished),
            nonzero=np.union1d(forms[0].nonzero, forms[1].nonzero),
            either=np.union1d(forms[0].either, forms[1].either),
            fused=np.union1d(forms[0].fused, forms[1].fused),
        )
    except RefusedError as error:
        why.update(dict.fromkeys(same, f"it was not shown that {error.refusal.stage}: {error}"))
        return [], ()
    if "F" in claims:
        reaching = {name: _reaches_more(pair, name) for name in same}
        why.update({name: reason for name, reason in reaching.items() if reason})
        same = [name for name in same if not reaching[name]]
    return same, met


def _reaches_more(pair: _Pair, name: str) -> str:
    """Say on which argument's elements one result alone depends, before any rule; or nothing.

    Elements are told apart by the rows and by the columns between which they lie, and by entries of weight.
    """
    place = pair.op.flat_index(pair.case, name, pair.first.outputs[name].shape).ravel()
    arguments = {n.removeprefix("input:") for g in (pair.first, pair.second) for n in g.names if ":" in n}
    for argument in sorted(arguments & set(pair.case.given)):
        for labels in _labels(pair, argument, name):
            bounds = []
            for graph in (pair.first, pair.second):
                nodes = graph.outputs[name].ravel()[place]
                reached = reach(graph, labels_of(graph, argument, labels))
                bounds.append(np.stack([reached.low[nodes], reached.high[nodes]]))
            if (bounds[0] != bounds[1]).any():
                return f"{name} depends on elements of {argument} on which only one of the two depends"
    return ""


def _labels(pair: _Pair, argument: str, name: str) -> Iterator[Ids]:
    """Yield labels of an argument's elements in row-major order: the row, the column, see `told_apart`."""
    shape = tuple(pair.case.given[argument].shape)
    index = pair.op.flat_index(pair.case, argument, shape)
    for axis in np.indices(index.shape):
        yield in_memory(index, axis)
    for _, labels in told_apart(pair.op, pair.case, argument, shape, [name]):
        yield labels


def _formulas(pair: _Pair, names: list[str]) -> dict[str, str]:
    """Say for each result why it is not shown to be the same real function; nothing where it is."""
    found = dict.fromkeys(names, "")
    for seed in DRAWS if names else ():
        try:
            first, second = (
                field_values(graph, meant(pair.case), seed) for graph in (pair.first, pair.second)
            )
        except ValueError as error:
            return dict.fromkeys(names, f"it has no meaning in a field: {error}")
        for name in names:
            if (first[name].ravel() != second[name].ravel()).any():
                found[name] = "in a prime field, where nothing is rounded, the two differ"
    return found


def _weakest(found: list[ComparedResult], witness: Witness | None) -> ComparedResult:
    """Return the weakest of what several recordings show of a result."""
    one = max(found, key=lambda result: _ORDER.index(result.degree))
    return ComparedResult(
        result=one.result, degree=one.degree, why=one.why, difference=one.difference, witness=witness
    )


def _witness(name: str, first: Observation, second: Observation) -> Witness | None:
    """Return the first element of a result that the two runs give as different numbers."""
    tensors = [run.outputs[name] for run in (first, second)]
    if tensors[0] is None or tensors[1] is None:
        return None
    a, b = (tensor.double().cpu().numpy() for tensor in tensors if tensor is not None)
    b = b.reshape(a.shape)
    different = (a != b) & ~(np.isnan(a) & np.isnan(b))
    if not different.any():
        return None
    place = tuple(int(axis[0]) for axis in np.nonzero(different))
    return Witness(place=place, first=float(a[place]), second=float(b[place]))

"""Gives a certificate for a kernel at a shape, or says what could not be shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

import numpy as np

from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.contraction import mixed
from verifier.arithmetic.graph.graph import LEAVES, Graph
from verifier.arithmetic.graph.normal_form import Normaliser
from verifier.arithmetic.graph.opcodes import opcode
from verifier.arithmetic.graph.ranges import finite_below
from verifier.arithmetic.graph.signs import Signs, reached
from verifier.arithmetic.graph.support import unknown_leaves
from verifier.bounds import variance
from verifier.checks.support.compared_graphs import Agreement, compared
from verifier.checks.synchronization import SANITIZERS
from verifier.checks.synchronization import experiment as watched
from verifier.execution.backend import Backend
from verifier.execution.child_process import Runner
from verifier.execution.record_graph import RecordedGraph, recorded_graph
from verifier.machine.model import MaskedFill
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Certificate, CodeProof, ReadSum, Refusal
from verifier.records.observation import Observation
from verifier.records.subject import Subject

MODES = ("off", "on")
"""Whether products are fused into sums where ptxas may do so."""
_LANES = "nothing depends on what a load gives lanes that its mask leaves out"
_APPROXIMATE = (".approx", ".full")


class _RefusedError(Exception):
    def __init__(self, stage: str, why: str) -> None:
        super().__init__(why)
        self.refusal = Refusal(stage=stage, why=why)


@dataclass(frozen=True, kw_only=True)
class Recordings:
    """What a child recorded, by whether products are fused.

    tuned: kernels whose configuration a tuner chose. undefined: loads that leave lanes undefined.
    processors: whether the wrapper asked how many multiprocessors the device has.
    """

    by_mode: Mapping[str, RecordedGraph]
    tuned: tuple[str, ...]
    undefined: tuple[str, ...]
    processors: bool


def recordings(subject: Subject, case: Case, *, place: Backend, gradients: bool) -> Observation:
    """Run a case with every access watched, then record it in each mode; runs in the child."""
    asked, found = place.asked_processors(), dict[str, RecordedGraph]()
    with place.tuned() as tuning:
        seen = watched(subject, case, place=place, gradients=gradients)
        undefined = place.unfilled()
        for mode in MODES:
            if seen.status != "ok" or seen.damage:
                return seen
            with place.varied(contraction=mode):
                seen = recorded_graph(subject, case, place=place, gradients=gradients)
            found[mode] = seen.found
        known = Recordings(
            by_mode=found,
            tuned=tuple(kernel.function for kernel in tuning.met),
            undefined=undefined,
            processors=place.asked_processors() > asked,
        )
    return seen if seen.status != "ok" else replace(seen, found=known)


def filled(subject: Subject, case: Case, *, place: Backend, gradients: bool) -> Observation:
    """Record a case with NaN in all lanes that a load's mask leaves out; runs in the child."""
    with place.varied(masked_fill=MaskedFill(number="nan")):
        seen = recorded_graph(subject, case, place=place, gradients=gradients)
    known = Recordings(by_mode={MODES[0]: seen.found}, tuned=(), undefined=place.unfilled(), processors=False)
    return seen if seen.status != "ok" else replace(seen, found=known)


def certified(
    subject: Subject, case: Case, *, runner: Runner, gradients: bool = False
) -> Certificate | Refusal:
    """Prove that a kernel computes what it declares, for all inputs that lie in memory as the case's do.

    gradients: prove it of the backward pass too. A refusal is no finding: what is not shown may be true.
    """
    seen = runner.run(
        subject, case, experiment="verifier.checks.support.certify:recordings", gradients=gradients
    )
    if seen.status != "ok" or not isinstance(seen.found, Recordings):
        why = seen.message or "; ".join(seen.damage) or seen.status
        return Refusal(stage="the kernel runs to its end, without a race or a stray write", why=why)
    try:
        _is_one_code(seen.found)
        proofs = tuple(
            _proved(subject, case, mode, found, gradients=gradients)
            for mode, found in seen.found.by_mode.items()
        )
    except _RefusedError as error:
        return error.refusal
    why = _depends_on_lanes(subject, case, seen.found, runner=runner, gradients=gradients)
    return Refusal(stage=_LANES, why=why) if why else _certificate(subject, case, proofs, seen.found)


def _depends_on_lanes(
    subject: Subject, case: Case, found: Recordings, *, runner: Runner, gradients: bool
) -> str:
    """Say what may depend on lanes that a load's mask leaves out; nothing if none does."""
    if not found.undefined:
        return ""
    seen = runner.run(subject, case, experiment="verifier.checks.support.certify:filled", gradients=gradients)
    if seen.status != "ok" or not isinstance(seen.found, Recordings):
        return f"with NaN in them: {seen.message or seen.status}"
    if seen.found.undefined:
        return f"those of {seen.found.undefined[0]} cannot be filled"
    try:
        _proved(subject, case, MODES[0], seen.found.by_mode[MODES[0]], gradients=gradients)
    except _RefusedError as error:
        return f"with NaN in them: {error}"
    return ""


def _proved(
    subject: Subject, case: Case, mode: str, recorded: RecordedGraph, *, gradients: bool
) -> CodeProof:
    """Prove what the certificate says of one recording, or raise."""
    _holds_for_all_inputs(recorded)
    found = compared(recorded.graph, op(subject.op), subject, case, gradients=gradients)
    if not isinstance(found, Agreement):
        raise _RefusedError("the code is the declared computation", found.why)
    sums = tuple(
        ReadSum(terms=order.terms, depth=order.depth, declared=order.declared.depth(order.terms))
        for order in found.orders
    )
    for one in sums:
        if one.depth > one.declared:
            why = f"a term of a sum of {one.terms} meets {one.depth} additions, {one.declared} are declared"
            raise _RefusedError("sums are no deeper than declared", why)
    used = {recorded.graph.names[code] for code in np.unique(recorded.graph.operation)}
    return CodeProof(
        contraction=mode,
        kernels=dict(recorded.kernels),
        launches=recorded.launches,
        claims=found.claims,
        rules=found.fired,
        obligations=_discharged(found),
        way=asdict(found.way),
        sums=sums,
        approximate=tuple(sorted(name for name in used if any(part in name for part in _APPROXIMATE))),
        expressions=_digest(recorded.graph),
        nodes=len(recorded.graph),
        finite_to=finite_below(recorded.graph).exponent,
        mixed=_mixed(recorded.graph) if mode == "off" else (),
    )


def _mixed(graph: Graph) -> tuple[str, ...]:
    """Return the places of products that may be fused in one use and rounded in another."""
    terms = SharedTerms()
    form = Normaliser(terms, "EZ").normal(graph)
    lines = (form.line_of(2 * int(term)) or terms.text(2 * int(term), 1) for term in mixed(form))
    return tuple(sorted({line.rpartition("/")[2] for line in lines}))


def _is_one_code(found: Recordings) -> None:
    """Raise where another choice than the one recorded may run."""
    for kernel in found.tuned:
        raise _RefusedError("one configuration runs", f"a tuner chooses among those of {kernel}")


def _holds_for_all_inputs(recorded: RecordedGraph) -> None:
    """Raise unless the expressions are those of every input, and wholly known."""
    for kernel, decision in recorded.decisions:
        raise _RefusedError("nothing decides on data", f"{kernel}: {decision}")
    for question in recorded.asked:
        raise _RefusedError("nothing decides on data", f"Python asks for {question}")
    for operation in recorded.uncovered:
        raise _RefusedError("every operation is recorded", f"torch's {operation} is not followed")
    for reason in unknown_leaves(recorded.graph):
        raise _RefusedError("every operation is recorded", f"a result reaches an unknown value: {reason}")
    graph = recorded.graph
    for code in np.unique(graph.operation).tolist():
        if not graph.names[code].startswith(LEAVES) and opcode(graph.names[code]) is None:
            line = graph.lines[int(graph.line[graph.operation == code][0])]
            raise _RefusedError("every operation is known", f"{graph.names[code]} {line}".strip())


def _discharged(found: Agreement) -> tuple[str, ...]:
    """Return the obligations of the rules, all of which hold, or raise."""
    terms, vanished = found.terms, found.vanished
    kept = reached(terms, np.concatenate([edges.ravel() for edges in found.kernel.outputs.values()]))
    signs = Signs(terms, np.union1d(found.divisors, vanished))
    for edge in vanished[~np.isin(vanished >> 1, kept)].tolist():
        top, below, *_ = terms.edges[edge >> 1].tolist()
        divides = terms.names[int(terms.operation[edge >> 1])].startswith("div.") and top >= 0
        if divides and terms.number[top >> 1] == 0.0 and below >> 1 in kept and signs.nonzero(below):
            continue  # 0 / y, y a part of a result
        why = f"{terms.text(edge)} is in no result any more, and not proved to be finite"
        raise _RefusedError("values that a rule has removed are finite", why)
    for edge in found.divisors.tolist():
        if not signs.nonzero(edge):
            why = f"{terms.text(edge)} is not proved to be other than 0"
            raise _RefusedError("no divisor is a zero whose sign a rule has changed", why)
    what = {_kind(terms, edge): "finite where all results are" for edge in vanished.tolist()}
    nonzero = sorted({f"{terms.text(edge, 1)} is no zero" for edge in found.divisors.tolist()})
    return (*nonzero, *(f"{kind} is {holds}" for kind, holds in sorted(what.items())))


def _kind(terms: SharedTerms, edge: int) -> str:
    """Return what an edge is, an element of an argument without its place."""
    name = terms.names[int(terms.operation[edge >> 1])]
    return name.removeprefix("input:") if name.startswith("input:") else terms.text(edge, 1)


def _certificate(
    subject: Subject, case: Case, proofs: tuple[CodeProof, ...], found: Recordings
) -> Certificate:
    claim, recorded = subject.claim, found.by_mode[MODES[0]]
    outputs = tuple(recorded.graph.outputs)
    algorithm = claim.variance if op(subject.op).needs_variance else None
    form = op(subject.op).form(claim, case.dtype).name
    approximate = sorted({name for proof in proofs for name in proof.approximate})
    claims = {claim for proof in proofs for claim in proof.claims}
    up_to = "" if claims <= {"E"} else ", up to the sign of a zero"
    reaches = [proof.finite_to for proof in proofs]
    known = [exponent for exponent in reaches if exponent is not None]
    magnitude = f"2^{min(known)} in magnitude" if known == reaches else ""
    where = (
        f" Every value is finite where no element of an argument exceeds {magnitude}." if magnitude else ""
    )
    fused = ", and to products fused into sums (Lemma 2)" if "C" in claims else ""
    return Certificate(
        subject=subject.name,
        source=sha256(subject.path.read_bytes()).hexdigest(),
        op=subject.op,
        dtype=case.dtype,
        rows=case.rows,
        columns=case.columns,
        tensors={name: asdict(laid) for name, laid in recorded.tensors.items()},
        scalars=dict(recorded.scalars),
        outputs=outputs,
        statement=(
            f"For all inputs laid out so of which every value computed is finite, {', '.join(outputs)} are "
            f"what {f'the variance algorithm {algorithm} and ' if algorithm else ''}"
            f"the form {form} of {subject.op} give in "
            f"{subject.accumulation(case.dtype)}, summed in the orders read off the code"
            f"{up_to}{fused}.{where}"
        ),
        theorems=_theorems(subject.op, algorithm),
        proofs=proofs,
        watched=tuple(sorted(SANITIZERS)),
        assumptions=(
            "the machine executes PTX as the PTX ISA says",
            *(["the device has as many multiprocessors as the machine"] if found.processors else []),
            *(f"{name} errs by no more than the PTX ISA says" for name in approximate),
        ),
    )


def _theorems(name: str, algorithm: str | None) -> tuple[str, ...]:
    """Return the theorems that bound the declared computation."""
    if algorithm is not None:
        return (*variance.algorithm(algorithm).THEOREMS, "T9", "T10")
    return ("T11",) if "softmax" in name else ("T10",)


def _digest(graph: Graph) -> str:
    """Return a digest of all that a graph says."""
    found = sha256("\n".join(graph.names).encode())
    for column in (graph.operation, graph.operands, graph.value):
        found.update(np.ascontiguousarray(column).tobytes())
    for name, nodes in sorted(graph.outputs.items()):
        found.update(name.encode() + np.ascontiguousarray(nodes).tobytes())
    return found.hexdigest()

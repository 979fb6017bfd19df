"""Gives a certificate for a kernel at a shape, or says what could not be shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

import numpy as np

from verifier.arithmetic.formats import FORMATS
from verifier.arithmetic.graph.consing import SharedTerms
from verifier.arithmetic.graph.constants import FULL_NAMES, decoded
from verifier.arithmetic.graph.contraction import mixed
from verifier.arithmetic.graph.device_functions import named_functions, with_functions
from verifier.arithmetic.graph.graph import Graph
from verifier.arithmetic.graph.normal_form import NormalForm, Normaliser
from verifier.arithmetic.graph.opcodes import UNORDERED_SUM
from verifier.arithmetic.graph.ranges import finite_terms
from verifier.arithmetic.graph.rules import OF_ALL_VALUES
from verifier.bounds import variance
from verifier.bounds.theorems import stated
from verifier.checks.support.compared_graphs import Agreement, compared, merges_parts
from verifier.checks.support.named_sums import named_sums
from verifier.checks.support.obligations import discharged, finite_within
from verifier.checks.support.only_path import CLAIMS, same_for_all
from verifier.checks.support.reached_elements import elements_reached
from verifier.checks.support.read_bounds import bound_read
from verifier.checks.support.read_orders import OrderOfSum
from verifier.checks.support.recorded_code import (
    COPIES,
    LANES,
    LAST_LANE,
    MODES,
    WATCHED,
    Recordings,
    RefusedError,
    must_be_what_each_call_gives,
    must_hold_for_all_inputs,
    recorded,
    recorded_filled,
    recorded_run,
)
from verifier.execution.child_process import Runner
from verifier.execution.record_graph import RecordedGraph
from verifier.ops import Op, op
from verifier.records.case import Case
from verifier.records.certificate import Certificate, CodeProof, Refusal, StatedTheorem
from verifier.records.subject import Subject

DOCUMENTED = "the CUDA C++ Programming Guide says"
OF_COPIES = (
    "of the lanes that hold the same elements and store merges in one place at once the last one's stays: "
    "those of the others, in orders of their own, are compared with it on the values of the run alone"
)
_APPROXIMATE = (".approx", ".full")


@dataclass(frozen=True, kw_only=True)
class FirstCertified:
    """The first of several declarations of one kernel that is proved, and what of its code is proved besides.

    orders: those of the sums in each proof, with the trees of `subject` that they were held against.
    copies: whether lanes that hold the same elements may merge them in orders of their own, of which one was
    read. texts: digests of the code that ran (`CompiledCode.texts`).
    """

    subject: Subject
    certificate: Certificate
    orders: tuple[tuple[OrderOfSum, ...], ...]
    copies: bool
    texts: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Proved:
    """One proof, the claims that had to be admitted for it, and the orders of the sums."""

    proof: CodeProof
    admitted: str
    orders: tuple[OrderOfSum, ...]


def certified(
    subject: Subject, case: Case, *, runner: Runner, gradients: bool = False
) -> Certificate | Refusal:
    """Prove that a kernel computes what it declares, for all inputs that lie in memory as the case's do.

    gradients: prove it of the backward pass too. A refusal is no finding: what is not shown may be true.
    """
    return certified_recordings(subject, case, runner=runner, gradients=gradients)[0]


def certified_recordings(
    subject: Subject, case: Case, *, runner: Runner, gradients: bool = False
) -> tuple[Certificate | Refusal, Recordings | None]:
    """Return what `certified` does, and of what it is proved."""
    try:
        found = recorded(subject, case, runner=runner, gradients=gradients)
        proofs = tuple(one.proof for one in _proofs(subject, case, found, gradients=gradients))
        must_be_what_each_call_gives(found)
    except RefusedError as error:
        return error.refusal, None
    why = _depends_on_lanes(subject, case, found, runner=runner, gradients=gradients)
    if why:
        return Refusal(stage=LANES, why=why), None
    return _certificate(subject, case, proofs, found, gradients=gradients), found


def first_certified(
    claims: Iterable[Subject], case: Case, *, runner: Runner, gradients: bool = False
) -> FirstCertified | Refusal:
    """Return the first of several declarations of one kernel that is proved, and what is proved of it.

    The kernel is recorded once. A refusal is that of the first claim.
    """
    found: Recordings | None = None
    refused: Refusal | None = None
    texts = frozenset[str]()
    for subject in claims:
        try:
            if found is None:
                seen = recorded_run(subject, case, runner=runner, gradients=gradients)
                found, texts = seen.found_as(Recordings), seen.compiled.texts if seen.compiled else texts
                must_be_what_each_call_gives(found)
            proved = tuple(_proofs(subject, case, found, gradients=gradients))
        except RefusedError as error:
            if found is None or found.unlike:
                return error.refusal
            refused = refused or error.refusal
            continue
        if why := _depends_on_lanes(subject, case, found, runner=runner, gradients=gradients):
            return Refusal(stage=LANES, why=why)
        proofs = tuple(one.proof for one in proved)
        return FirstCertified(
            subject=subject,
            certificate=_certificate(subject, case, proofs, found, gradients=gradients),
            orders=tuple(one.orders for one in proved),
            copies=any(one.copies_differ for one in found.by_mode.values()),
            texts=texts,
        )
    return refused or Refusal(stage="the code is the declared computation", why="no claim was tried")


def _depends_on_lanes(
    subject: Subject, case: Case, found: Recordings, *, runner: Runner, gradients: bool
) -> str:
    """Say what may depend on lanes that a load's mask leaves out; nothing if none does."""
    if not found.undefined:
        return ""
    try:
        one = recorded_filled(subject, case, runner=runner, gradients=gradients)
    except RefusedError as error:
        return str(error)
    try:
        must_hold_for_all_inputs(one, paths=True)
        _proved(subject, case, MODES[0], one, gradients=gradients)
    except RefusedError as error:
        return f"with NaN in them: {error}"
    return ""


def _proofs(subject: Subject, case: Case, found: Recordings, *, gradients: bool) -> Iterator[_Proved]:
    """Yield what is proved with products fused and not; where both recorded the same, it is proved once."""
    known: dict[tuple[str, str], _Proved] = {}
    admitted = ""
    for mode, one in found.by_mode.items():
        must_hold_for_all_inputs(one, paths=True)
        if one.copies_differ and not merges_parts(op(subject.op), subject):
            raise RefusedError(LAST_LANE, COPIES)
        said = one.digest, one.taken
        if said in known:
            proof = replace(known[said].proof, contraction=mode, kernels=dict(one.kernels), mixed=())
            yield replace(known[said], proof=proof)
            continue
        known[said] = _proved(subject, case, mode, one, gradients=gradients, first=admitted)
        admitted = known[said].admitted
        yield known[said]


def _proved(
    subject: Subject, case: Case, mode: str, one: RecordedGraph, *, gradients: bool, first: str = ""
) -> _Proved:
    """Prove what the certificate says of one recording that must hold for all inputs, or raise.

    first: the claims to admit first.
    """
    if one.copies_differ and not merges_parts(op(subject.op), subject):
        raise RefusedError(LAST_LANE, COPIES)
    terms = SharedTerms()
    form = Normaliser(terms, "EZ").normal(one.graph)
    finite_to = finite_terms(terms, form.either).exponent
    open_products = _mixed(terms, form) if mode == "off" else ()
    found = compared(
        one.graph, op(subject.op), subject, case, gradients=gradients, plain=(terms, form), first=first
    )
    if not isinstance(found, Agreement):
        raise RefusedError("the code is the declared computation", found.why)
    for read in found.orders:
        if read.unlike:
            raise RefusedError("parts are merged as declared", f"of {read.terms} elements {read.unlike}")
    for order in found.orders:
        allowed = order.allowed_depth
        if order.depth > allowed:
            met = f"a term of a sum of {order.terms} meets {order.depth} additions"
            why = f"{met}, {allowed} are declared"
            raise RefusedError("sums are no deeper than declared", why)
    path = same_for_all(one.paths, one.graph, _formed_for_paths(found, one.graph))
    within = finite_within(found.kernel, found.kernel.outputs.values(), found.vanished, found.terms)
    used = {one.graph.names[code] for code in np.unique(one.graph.operation)}
    proof = CodeProof(
        contraction=mode,
        kernels=dict(one.kernels),
        launches=one.launches,
        claims=found.claims,
        rules=found.fired,
        obligations=(
            *path,
            *discharged(
                found.terms,
                found.kernel.outputs.values(),
                found.divisors,
                found.vanished,
                nonzero=found.nonzero,
                values=not OF_ALL_VALUES.isdisjoint(found.fired),
                within=None if within is None else within.terms,
                either=found.kernel.either,
                fused=np.union1d(found.kernel.fused, found.twin.fused),
            ),
        ),
        way={**asdict(found.way), "fuses": _fuses(found.twin.graph)},
        sums=named_sums(found, op(subject.op), case),
        approximate=tuple(sorted(name for name in used if any(part in name for part in _APPROXIMATE))),
        expressions=one.digest,
        nodes=one.nodes,
        finite_to=finite_to,
        within=None if within is None or _holds_all(case, within.exponent) else within.exponent,
        mixed=open_products,
        bound=bound_read(subject, case, found),
    )
    return _Proved(proof=proof, admitted=found.admitted, orders=found.orders)


def _fuses(graph: Graph) -> bool:
    """Whether products are fused into sums."""
    return any(graph.names[code].startswith("fma.") for code in np.unique(graph.operation))


def _formed_for_paths(found: Agreement, graph: Graph) -> tuple[SharedTerms, NormalForm] | None:
    """Return the normal form of what was compared, if it is the one that branches are looked at in."""
    same = found.admitted == CLAIMS and UNORDERED_SUM not in graph.names
    return (found.terms, found.kernel) if same else None


def _holds_all(case: Case, exponent: int) -> bool:
    """Whether no element of an argument can exceed 2**exponent in magnitude."""
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in case.given.values()}
    return all(name in FORMATS and FORMATS[name].maximum <= 2.0**exponent for name in dtypes)


def _mixed(terms: SharedTerms, form: NormalForm) -> tuple[str, ...]:
    """Return the places of products that may be fused in one use and rounded in another."""
    found = mixed(form)
    lines = form.lines_of(found) or [terms.text(2 * int(term), 1) for term in found]
    return tuple(sorted({line.rpartition("/")[2] for line in lines}))


def _certificate(
    subject: Subject, case: Case, proofs: tuple[CodeProof, ...], found: Recordings, *, gradients: bool
) -> Certificate:
    claim, shown = subject.claim, found.by_mode[MODES[0]]
    outputs = tuple(shown.graph.outputs)
    algorithm = claim.variance if op(subject.op).needs_variance else None
    evaluates = not case.scalars.get("training", True)
    approximate = sorted({name for proof in proofs for name in proof.approximate})
    claims = {claim for proof in proofs for claim in proof.claims}
    up_to = "" if claims <= {"E"} else ", but for the sign of a zero"
    reaches = [proof.finite_to for proof in proofs]
    known = [exponent for exponent in reaches if exponent is not None]
    magnitude = f"2^{min(known)} in magnitude" if known == reaches else ""
    where = (
        f" Every value is finite where no element of an argument exceeds {magnitude}." if magnitude else ""
    )
    aside = ", what infinite constants of the code make so apart" if _has_infinities(shown.graph) else ""
    limits = [proof.within for proof in proofs if proof.within is not None]
    finite = f"finite{aside}"
    if limits:
        finite += f"{',' * bool(aside)} and no element of an argument exceeds 2^{min(limits)} in magnitude"
    fused = ", with products fused into sums as the code fuses them"
    if "C" in claims:
        fused = ", and but for products fused into sums (Lemma 2)"
    elif not any(proof.way["fuses"] for proof in proofs):
        fused = ""
    form = op(subject.op).form(claim, case.dtype)
    sources = [f"the form {form.name} of {subject.op}"]
    if form not in op(subject.op).forms.values():
        sources = [f"a form of the file's own, not shown here to be the definition of {subject.op},"]
    if evaluates:
        sources.insert(0, "the running statistics")
    elif algorithm:
        sources.insert(0, f"the variance algorithm {algorithm}")
    theorems = _theorems(op(subject.op), algorithm, evaluates=evaluates, running="running_var" in outputs)
    gives, verb = "give" if len(sources) > 1 else "gives", "are" if len(outputs) > 1 else "is"
    return Certificate(
        subject=subject.name,
        source=sha256(subject.path.read_bytes()).hexdigest(),
        op=subject.op,
        dtype=case.dtype,
        rows=case.rows,
        columns=case.columns,
        tensors={name: asdict(laid) for name, laid in shown.tensors.items()},
        scalars=dict(shown.scalars),
        outputs=outputs,
        support=elements_reached(shown.graph, op(subject.op), case),
        call=_call(subject, case, gradients=gradients),
        statement=(
            "For all inputs of these shapes, strides and alignments, as long as every value computed is "
            f"{finite}, {_listed(outputs)} {verb} what {_listed(sources)} {gives} in "
            f"{subject.accumulation(case.dtype)}, summed in orders read off the code{up_to}{fused}.{where}"
        ),
        theorems=theorems,
        hypotheses=tuple(
            StatedTheorem(number=number, **asdict(stated(number, algorithm))) for number in theorems
        ),
        consequence=_consequence(theorems),
        proofs=proofs,
        watched=tuple(sorted(WATCHED)),
        assumptions=(
            "the machine executes PTX as the PTX ISA says",
            "the lanes of a warp run in step where they exchange values through memory",
            *(["the device has as many multiprocessors as the machine"] if found.processors else []),
            *([OF_COPIES] if any(one.copies_differ for one in found.by_mode.values()) else []),
            *(f"{name} errs by no more than the PTX ISA says" for name in approximate),
            *(f"{name} errs by no more than {DOCUMENTED}" for name in _functions(shown)),
            *(["torch's elementwise operations round to nearest"] if _asks_torch(shown.graph) else []),
            *(
                ["torch.sum adds numbers of float32 in float32, each once, in any order"]
                if UNORDERED_SUM in shown.graph.names
                else []
            ),
        ),
    )


def _has_infinities(graph: Graph) -> bool:
    """Whether an infinite constant is a part of results, as what a mask gives in the place of elements."""
    kinds = {code: name.removeprefix("literal:") for code, name in enumerate(graph.names)}
    return any(
        bool(np.isinf(decoded(kind, graph.value[graph.operation == code])).any())
        for code, kind in kinds.items()
        if kind in FULL_NAMES
    )


def _listed(names: Sequence[str]) -> str:
    """Return names as words: "a, b and c"."""
    return " and ".join((*([", ".join(names[:-1])] if len(names) > 1 else []), names[-1]))


def _call(subject: Subject, case: Case, *, gradients: bool) -> str:
    """Say which call was recorded: which arguments need gradients or are left out, in torch's own mode."""
    absent = [n for n in op(subject.op).optional if n in subject.signature and n not in case.given]
    without = f", without {_listed(absent)}" if absent else ""
    if not gradients:
        return f"a call outside of torch.no_grad() in which no argument needs a gradient{without}"
    needed = [
        name for name in case.given if name in op(subject.op).differentiable and subject.gives_gradient(name)
    ]
    return (
        f"a call in which {_listed(needed)} need{'s' * (len(needed) == 1)} a gradient, and its backward pass"
        f"{without}"
    )


def _functions(one: RecordedGraph) -> list[str]:
    graph, _ = with_functions(one.graph)
    return named_functions(graph.names[code] for code in np.unique(graph.operation))


def _asks_torch(graph: Graph) -> bool:
    return any(name.startswith("torch.") and name != UNORDERED_SUM for name in graph.names)


def _theorems(the_op: Op, algorithm: str | None, *, evaluates: bool, running: bool) -> tuple[str, ...]:
    """Return the theorems that bound the declared computation."""
    known = () if algorithm is None else (*variance.algorithm(algorithm).THEOREMS, "T9")
    first = ("T9",) if evaluates else known
    return (*first, "T10", *the_op.theorems, *(["T13"] if running and not evaluates else []))


def _consequence(theorems: Sequence[str]) -> str:
    """Say which bounds follow for a row that satisfies what the theorems ask."""
    rows = "For each row that satisfies what they ask, and as far as the assumptions hold,"
    if "T9" not in theorems:
        return f"{rows} results have the bounds of {_listed(theorems)}."
    split = theorems.index("T9")
    of, after = [number for number in theorems[:split] if number != "T12"], theorems[split + 1 :]
    statistics = f"the statistics have the bounds of {_listed(of)}" if of else "the statistics are given"
    return (
        f"{rows} {statistics}, rstd that of T9, and outputs and gradients those of {_listed(after)}, applied "
        "to these."
    )

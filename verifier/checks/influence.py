"""Each result depends on all that its definition names, and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from verifier.bounds.variance import Mask
from verifier.cases.plan import Plan
from verifier.checks.formula import demanded
from verifier.checks.support import recorded_support
from verifier.checks.support.bits import bit_numbers, comparable
from verifier.checks.support.recorded_support import Outside, RowSupport
from verifier.checks.support.session import Session, StoppedError
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.machine.shadow.slots import Counters
from verifier.ops import Index, Op
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "influence"
ORDER = 70
DEMANDS = (
    "each row of output and grad_input is computed from its own row alone; each entry of grad_weight and "
    "grad_bias is computed from all rows that it sums and from no other row, and of grad_output from its "
    "own entry alone; nothing is computed from the memory between elements (a dependence through a branch "
    "or an address alone is not seen, nor one through a comparison where expressions cannot be recorded)"
)
WHY = (
    "a value of another row that the kernel multiplies by zero changes no result, until that value is NaN "
    "or infinite"
)
CATCHES = (
    "reads_neighbour_row_triton",
    "reads_before_the_row_triton",
    "grad_weight_of_next_column_triton",
    "row_lost_from_sums_triton",
    "neighbour_row_through_bits_triton",
)

SHAPES = ((5, 37), (40, 7), (3, 130), (60, 3), (1, 9))
"""No more rows than sources; a tail, many rows for one sum, more than a block of 128 columns, one row."""
ROW_SOURCES, ENTRY_SOURCES = 60, 61
"""Each row is a source; entries of weight share theirs with every 61st, a prime."""
KINDS = ("rows", "rows of grad_output", "entries")
"""What the sources are: all tensors of a row; its gradient alone, which a sum over rows must have although
mean and rstd of a lost row still reach it; elements by their entry of weight, with clean statistics."""
WITHOUT_INPUT = "entries but of input"
"""For statistics that a backward pass computes again: every entry of input is part of them."""
NEIGHBOUR = 63
"""Source that is the memory between the elements of a tensor."""
SHOWN = 8
FOR_ALL = Measured(
    seen="for all inputs of the shape, as recorded expressions say, no result reaches another row"
)
"""What is told of a case whose code decides nothing by data."""

SourceSets = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for ordinary rows; with gaps between them where every layout is promised."""
    strided = ("contiguous", "padded_rows") if "layouts" in subject.guarantees else ("contiguous",)
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        layouts=strided,
        hazards=("ordinary", "small_integers"),
        joint=False,
        shapes=SHAPES,
        max_elements=max(rows * columns for rows, columns in SHAPES),
        max_rows=ROW_SOURCES,
        eps=(1e-5, 1e-3),
        share=0.5,
    )


def skips(subject: Subject, _op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where a value can have sources as its shadow: to compiled code on the machine."""
    if can(backend, Power.SHADOWS):
        return None
    if subject.language == "torch":
        return "this check follows compiled kernels in the machine; it cannot follow torch's own operators"
    return "this check follows compiled kernels on the backend machine, which can run this subject, too"


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Elements of a result whose sources are not those of the definition.

    source: the first of `sources`. wrong: mask over the result in canonical rows of what has it, or lacks it.
    """

    output: str
    kind: str
    source: int
    lacking: bool
    wrong: Mask
    sources: tuple[int, ...] = ()


def check(session: Session) -> list[Outcome]:
    """Follow rows and entries as sources; what is amiss is proved by other values in the suspect's place."""
    case = session.case
    if case.elements == 0 or not case.finite or case.rows > ROW_SOURCES:
        return []
    backward = bool(session.op.differentiable) and session.subject.differentiable
    found: list[Suspicion] = []
    lost: list[str] = []
    sums = "grad_output" in case.given and entries_of(session.op, case) is not None
    compared = 0
    for kind in KINDS if sums else KINDS[:1]:
        seen = session.execute(
            experiment="verifier.checks.influence:experiment", kind=kind, gradients=backward
        )
        if kind == KINDS[0] and (misshapen := session.shape_outcomes(seen, demanded(session))):
            return misshapen
        traced = seen.found_as(Traced)
        sources = {n: t for n, t in traced.sources.items() if _comparable(session.op, case, kind, n, t)}
        compared += len(sources)
        suspicions = list(_suspicions(session.op, case, kind, sources))
        if kind == "entries" and not all(one.lacking for one in suspicions):
            again = session.execute(
                experiment="verifier.checks.influence:experiment", kind=WITHOUT_INPUT, gradients=backward
            )
            traced = again.found_as(Traced)
            sources = {name: traced.sources[name] for name in sources if name in traced.sources}
            suspicions = list(_suspicions(session.op, case, kind, sources))
        found += suspicions
        lost += [words for words in [traced.lost] if words and words not in lost]
    proved = [_proved(session, s, backward) for s in _of_each_kind(found)]
    # A row that is lost is lost under more than one kind of sources.
    outcomes = list({(o.verdict, o.message): o for o in proved}.values())
    if outcomes:
        return outcomes
    if lost:
        text = "influence not decided: operations of the host hid what results are computed from"
        return [
            Outcome(
                verdict=Verdict.UNDECIDED,
                message=f"{text}: {'; '.join(lost)}",
                measured=Measured(seen=text),
                doubtful=True,
            )
        ]
    recorded = _recorded(session, backward)
    if recorded is not None and recorded.outside:
        return [_proved(session, _suspected(one), backward) for one in recorded.outside]
    if not compared:
        text = "influence not decided: no result could be compared"
        return [Outcome(verdict=Verdict.UNDECIDED, message=text, measured=Measured(seen=text))]
    known = [] if recorded is None or recorded.limited else [Outcome(verdict=Verdict.PASS, measured=FOR_ALL)]
    return [Outcome(verdict=Verdict.PASS, decided=1), *known]


def _recorded(session: Session, backward: bool) -> RowSupport | None:
    """Return what recorded expressions reach; None where they cannot be recorded."""
    try:
        seen = session.execute(experiment=f"{recorded_support.__name__}:experiment", gradients=backward)
    except StoppedError as stopped:
        if stopped.outcome.verdict is Verdict.ERROR:
            raise
        return None
    found = seen.found
    return found if isinstance(found, RowSupport) else None


def _suspected(one: Outside) -> Suspicion:
    kind, source, wrong = "rows", one.source, one.wrong
    if one.entries:  # with an entry change all that share its source
        kind, source = "entries", one.source % ENTRY_SOURCES
        wrong = wrong & (np.arange(wrong.size).reshape(wrong.shape) % ENTRY_SOURCES != source)
    return Suspicion(
        output=one.output, kind=kind, source=source, lacking=False, wrong=wrong, sources=(source,)
    )


# -- what may depend on what ---------------------------------------------------------------------------


def entries_of(op: Op, case: Case) -> Index | None:
    """Return the entry of weight of each element, (rows, columns); None where the op has no weight."""
    problem = op.problem(case)
    if problem is None or problem.parameter is None:
        return None
    parameter = problem.parameter
    rows, columns = np.indices((case.rows, case.columns))
    if isinstance(parameter, str):
        return np.asarray(rows if parameter == "rows" else columns, dtype=np.int64)
    return np.asarray(parameter, dtype=np.int64)


def _bit(sources: object) -> SourceSets:
    return np.left_shift(np.uint64(1), np.asarray(sources).astype(np.uint64))


def sources_of(op: Op, case: Case, kind: str) -> dict[str, SourceSets]:
    """Return the sources that the tensors of a case start with."""
    if kind in ("entries", WITHOUT_INPUT):
        entries = entries_of(op, case)
        assert entries is not None
        names, sources = _of_rows(op, case), _bit(entries % ENTRY_SOURCES)
        names = [name for name in names if kind == "entries" or name != "input"]
    else:
        sources = _bit(np.arange(case.rows))[:, None]
        names = _held_by_rows(op, case) if kind == "rows" else ["grad_output"]
    return {name: _spread(op, case, name, sources) for name in names}


def _held_by_rows(op: Op, case: Case) -> list[str]:
    """Return the tensors whose numbers belong to a row each: no parameter, and nothing that rows share."""
    whole = case.given["input"].shape
    shared = {n for n in op.drawn if n in case.given and case.given[n].shape != whole}
    floats = (name for name, tensor in case.given.items() if tensor.is_floating_point())
    return [name for name in floats if name not in {*op.parameters, *op.wholes, *shared}]


def _of_rows(op: Op, case: Case) -> list[str]:
    """Return the tensors that have an element for each of the input's."""
    shape, varied = case.given["input"].shape, (n for n in op.varied if n not in op.wholes)
    return ["input", "grad_output", *(n for n in varied if n in case.given and case.given[n].shape == shape)]


def _spread(op: Op, case: Case, name: str, sources: SourceSets) -> SourceSets:
    """Bring sources of canonical rows into the shape of a tensor."""
    shape = tuple(case.given[name].shape)
    index = op.flat_index(case, name, shape).reshape(case.rows, -1)
    flat = np.zeros(index.size, dtype=np.uint64)
    flat[index.reshape(-1)] = np.broadcast_to(sources, index.shape).reshape(-1)
    return flat.reshape(shape)


def _demanded(
    op: Op, case: Case, kind: str, name: str, shape: tuple[int, ...]
) -> tuple[SourceSets, SourceSets] | None:
    """Return the sources that a result must have and those that it may have, in canonical rows."""
    rows = _bit(np.arange(case.rows))
    if not op.sums_rows(name):
        own = np.broadcast_to(rows.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        must = own
        if shape == (case.rows, case.columns):
            must = np.where(op.untouched(case, name), np.uint64(0), own)
        return (must, own) if kind == "rows" else None
    entries = entries_of(op, case)
    if entries is None:
        return None  # nothing says which rows and entries a sum is made of
    if op.sums_all(name):
        every = _bit(entries % ENTRY_SOURCES) if kind == "entries" else rows
        own = np.full(shape[0], np.bitwise_or.reduce(every.ravel()) if case.elements else np.uint64(0))
        return own, own
    if kind == "entries":
        own = _bit(np.arange(shape[0]) % ENTRY_SOURCES)
        return own, own
    summed = np.zeros(shape[0], dtype=np.uint64)
    np.bitwise_or.at(summed, entries.reshape(-1), np.repeat(rows, case.columns))
    return summed, summed


def _comparable(op: Op, case: Case, kind: str, name: str, held: SourceSets) -> bool:
    """Whether a result has elements of which the definition says what they depend on."""
    summed = op.sums_rows(name)
    if not held.size or (not summed and held.size not in case.sizes_by_rows):
        return False
    shape = op.flat_index(case, name, held.shape).shape
    return _demanded(op, case, kind, name, shape) is not None


def _suspicions(op: Op, case: Case, kind: str, sources: Mapping[str, SourceSets]) -> Iterator[Suspicion]:
    """Yield, for each comparable result and each source, the elements that have it or lack it wrongly."""
    for name, held in sources.items():
        # Sets are moved by their index: an array of floats would not hold 64 bits.
        canonical = held.reshape(-1)[op.flat_index(case, name, held.shape)]
        said = _demanded(op, case, kind, name, canonical.shape)
        assert said is not None
        must, may = said
        for lacking, amiss in ((False, canonical & ~may), (True, must & ~canonical)):
            for source in range(64):
                wrong = (amiss >> np.uint64(source)) & np.uint64(1) != 0
                if wrong.any():
                    yield Suspicion(output=name, kind=kind, source=source, lacking=lacking, wrong=wrong)


def _of_each_kind(found: list[Suspicion]) -> list[Suspicion]:
    """Keep the first suspicion of each output and direction, with the sources of its likes."""
    kept: dict[tuple[str, str, bool, bool], list[Suspicion]] = {}
    for one in found:
        kept.setdefault((one.output, one.kind, one.lacking, one.source == NEIGHBOUR), []).append(one)
    return [replace(like[0], sources=tuple(s.source for s in like)) for like in kept.values()]


# -- proof ---------------------------------------------------------------------------------------------


def _proved(session: Session, suspicion: Suspicion, backward: bool) -> Outcome:
    """Put other values in the suspect's place: bits that move, or do not, are the proof."""
    text = f"{suspicion.output}: {_words(session.op, session.case, suspicion)}"
    try:
        proved = _shown(session, suspicion, backward)
    except StoppedError as stopped:
        if stopped.outcome.verdict is Verdict.ERROR:
            raise
        proved, text = False, f"{text} (no proof: the run with other values ended: {stopped.outcome.message})"
    if proved:
        return Outcome(verdict=Verdict.FAIL, output=suspicion.output, message=text, decided=1, wrong=1)
    doubt = "the code reads it, but other values in that place change no result"
    if suspicion.lacking:
        doubt = "the machine lost sight of what the code reads: other values there do change each of them"
    return Outcome(
        verdict=Verdict.UNDECIDED,
        output=suspicion.output,
        message=f"{text}; {doubt}",
        doubtful=suspicion.lacking,
    )


def _shown(session: Session, suspicion: Suspicion, backward: bool) -> bool:
    """Return whether values show it: suspect elements move with the source's values, or do not with NaN."""
    if suspicion.source == NEIGHBOUR and suspicion.kind == "rows":
        # Of both signs, so that a maximum or a minimum is seen, which swallow NaN.
        first, *others = (
            session.execute(gradients=backward, poison=p) for p in ("nan", "finite", "positive")
        )
        return any(_moved(session, suspicion, first, other).any() for other in others)
    before = session.execute(gradients=backward)
    for case in _others(session.op, session.case, suspicion):
        after = replace(session, case=case).execute(gradients=backward)
        moved = _moved(session, suspicion, before, after)
        if suspicion.lacking:
            return not moved.all()  # NaN in a sum is NaN in its result
        if moved.any():
            return True
    return False


def _others(op: Op, case: Case, suspicion: Suspicion) -> Iterator[Case]:
    """Yield the case with NaN, larger values, and infinite ones, where the source was."""
    given = dict(sources_of(op, case, suspicion.kind))
    if suspicion.kind == "entries" and op.differentiable:
        del given["input"]  # with another input the statistics would be others, and with them all columns
    for other in (torch.nan, None, torch.inf, -torch.inf):
        tensors = dict(case.tensors)
        for name, sources in given.items():
            tensor = case.given[name].clone()
            where = torch.from_numpy((sources >> np.uint64(suspicion.source)) & np.uint64(1) != 0)
            tensor[where] = tensor[where] * 3 + 3 if other is None else other
            tensors[name] = tensor
        yield replace(case, tensors=tensors)


def _moved(session: Session, suspicion: Suspicion, first: Observation, second: Observation) -> Mask:
    """Return, for each suspect element, whether its bits differ between the runs."""
    found = []
    for seen in (first, second):
        tensor = seen.outputs.get(suspicion.output)
        if tensor is None or not comparable(tensor):
            return np.zeros(0, dtype=np.bool_) if not suspicion.lacking else np.ones(1, dtype=np.bool_)
        index = session.op.flat_index(session.case, suspicion.output, tuple(tensor.shape))
        found.append(bit_numbers(tensor).reshape(-1)[index])
    differ: Mask = found[0] != found[1]
    return differ[suspicion.wrong]


# -- words ---------------------------------------------------------------------------------------------


def _words(op: Op, case: Case, suspicion: Suspicion) -> str:
    """Say what depends on what, or does not."""
    summed = op.sums_rows(suspicion.output)
    where = _listed("entry" if summed else "row", suspicion.wrong)
    if suspicion.kind == "entries":
        noun = "entry" if len(suspicion.sources) == 1 else "entries"
        origin = f"{noun} {_numbers(suspicion.sources)} (modulo {ENTRY_SOURCES}) of grad_output"
    elif suspicion.source == NEIGHBOUR:
        origin = "memory between the elements of a tensor"
    elif summed:
        noun = "row" if len(suspicion.sources) == 1 else "rows"
        origin = f"{noun} {_numbers(suspicion.sources)}{_pattern(suspicion.sources, case.rows)}"
    elif suspicion.lacking:
        origin = f"itself ({len(suspicion.sources)} such rows in all)"
    else:
        origin = f"row {suspicion.source} ({len(suspicion.sources)} rows influence others than themselves)"
    return f"{where} {'does not depend on' if suspicion.lacking else 'depends on'} {origin}"


def _listed(noun: str, wrong: Mask) -> str:
    """Name the first canonical index, and how many there are."""
    if not wrong.any():
        return f"some {noun}"
    first = np.unique(np.nonzero(wrong)[0])
    others = f" and {len(first) - 1} more" if len(first) > 1 else ""
    return f"{noun} {int(first[0])}{others}"


def _numbers(sources: tuple[int, ...]) -> str:
    return ", ".join(map(str, sources[:SHOWN])) + (", ..." if len(sources) > SHOWN else "")


def _pattern(rows: tuple[int, ...], count: int) -> str:
    """Say which arithmetic progression the rows are: those of one lock, one program, one lane."""
    steps = set(np.diff(rows).tolist())
    if len(rows) < 2 or len(steps) != 1:
        return " (the last row)" if rows == (count - 1,) and count > 1 else ""
    step = steps.pop()
    return (
        f" (every row r with r % {step} == {rows[0] % step})" if step > 1 else f" ({len(rows)} rows together)"
    )


# -- in the child --------------------------------------------------------------------------------------


def experiment(subject: Subject, case: Case, *, backend: Backend, kind: str, gradients: bool) -> Observation:
    """Return the results, and the sources of each that is one of floats."""
    from verifier import ops
    from verifier.execution.shadow_run import (
        execute_backward_with_shadows,
        execute_with_shadows,
        shadow_session,
    )
    from verifier.machine.shadow.arithmetics.taint import build

    arithmetic = build()
    given = sources_of(ops.op(case.op), case, kind)
    around = np.uint64(1) << np.uint64(NEIGHBOUR) if kind == "rows" else None
    with shadow_session(arithmetic) as opened:
        if kind in ("entries", WITHOUT_INPUT) and gradients:
            seen, sources = execute_backward_with_shadows(
                subject, case, backend=backend, opened=opened, given=given
            )
        else:
            seen, sources = execute_with_shadows(
                subject,
                case,
                backend=backend,
                opened=opened,
                given=given,
                gradients=gradients,
                around=around,
            )
        if seen.status != "ok":
            return seen
        assert opened.slots is not None
        held = {name: np.array(t, dtype=np.uint64) for name, t in sources.items()}
        return replace(seen, found=Traced(sources=held, lost=_lost(opened.slots.counters)))


@dataclass(frozen=True, kw_only=True)
class Traced:
    """The sources of each result; lost: where sources were lost, in words."""

    sources: Mapping[str, SourceSets]
    lost: str


def _lost(counters: Counters) -> str:
    """Say where sources ended although something may still have depended on them; nothing if nowhere."""
    return "; ".join(counters.describe()[:4])

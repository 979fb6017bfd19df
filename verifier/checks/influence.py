"""Each result depends on all that its definition names, and on nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from verifier.case import Case
from verifier.checks import Session, StoppedError
from verifier.checks.comparing import bit_numbers, comparable
from verifier.checks.formula import demanded
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.observation import Observation
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "influence"
ORDER = 70
DEMANDS = (
    "what rows of output and grad_input are computed from is their own row, entries of grad_weight and "
    "grad_bias every row that they sum and their own entry of grad_output; memory between elements is in "
    "nothing (a dependence through a comparison, a branch or an address alone is not seen)"
)
WHY = "a value of another row that is multiplied by zero shows in no result, until it is NaN or infinite"
CATCHES = (
    "reads_neighbour_row_triton",
    "reads_before_the_row_triton",
    "grad_weight_of_next_column_triton",
    "row_lost_from_sums_triton",
    "neighbour_row_through_bits_triton",
)

SHAPES = ((5, 37), (40, 7), (3, 130), (60, 3), (1, 9))
"""At most as many rows as tags; a tail, many rows for one sum, more than a block of 128 columns, one row."""
ROW_TAGS, ENTRY_TAGS = 60, 61
"""Rows have a tag each, entries of weight share theirs with every 61st, a prime."""
KINDS = ("rows", "rows of grad_output", "entries")
"""What is tagged: all tensors of a row; its gradient alone, which a sum over rows must have although mean and
rstd of a lost row still reach it; elements by their entry of weight, with clean statistics."""
NEIGHBOUR = 63
"""Tag of the memory between the elements of a tensor."""
SHOWN = 8

Tags = np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
Index = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


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
        max_rows=ROW_TAGS,
        eps=(1e-5, 1e-3),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply where values can carry tags: to compiled code on the machine."""
    del op, dtype
    if backend == "machine":
        return None
    if subject.language == "torch":
        return "tags ride on compiled kernels in the machine; torch's own operators are not followed"
    return "tags ride on compiled kernels on the backend machine, which runs this subject too"


@dataclass(frozen=True, kw_only=True)
class Suspicion:
    """Elements of a result whose tags are not those of the definition.

    tag: the first of `tags`. wrong: mask over the result in canonical rows of what has it, or lacks it.
    """

    output: str
    kind: str
    tag: int
    lacking: bool
    wrong: Any
    tags: tuple[int, ...] = ()


def check(session: Session) -> list[Outcome]:
    """Follow tags of rows and of entries; what is amiss is proved by other values in the suspect's place."""
    case = session.case
    if case.elements == 0 or not case.finite or case.rows > ROW_TAGS:
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
        tags = {n: t for n, t in seen.facts["tags"].items() if _comparable(session.op, case, kind, n, t)}
        compared += len(tags)
        found += list(_suspicions(session.op, case, kind, tags))
        lost += [words for words in [seen.facts["lost"]] if words and words not in lost]
    proved = [_proved(session, s, backward) for s in _of_each_kind(found)]
    # A row that is lost is lost under more than one kind of tags.
    outcomes = list({(o.verdict, o.message): o for o in proved}.values())
    if outcomes:
        return outcomes
    if lost:
        text = "influence not decided: tags were lost on the way (operations of the host)"
        return [
            Outcome(
                verdict=Verdict.UNDECIDED,
                message=f"{text}: {'; '.join(lost)}",
                facts={"measured": text, "doubtful": True, "lost": lost},
            )
        ]
    if not compared:
        text = "influence not decided: no result could be compared"
        return [Outcome(verdict=Verdict.UNDECIDED, message=text, facts={"measured": text})]
    return [Outcome(verdict=Verdict.PASS, decided=1)]


# -- what may depend on what ---------------------------------------------------------------------------


def entries_of(op: Op, case: Case) -> Index | None:
    """Return the entry of weight of each element, (rows, columns); None where the op has no weight."""
    problem = op.problem(case)
    if not hasattr(problem, "parameter"):
        return None
    parameter = problem.parameter
    rows, columns = np.indices((case.rows, case.columns))
    if isinstance(parameter, str):
        return np.asarray(rows if parameter == "rows" else columns, dtype=np.int64)
    return np.asarray(parameter, dtype=np.int64)


def _bit(tags: Any) -> Tags:
    return np.left_shift(np.uint64(1), np.asarray(tags).astype(np.uint64))


def tags_of(op: Op, case: Case, kind: str) -> dict[str, Tags]:
    """Return the tags that the tensors of a case start with."""
    if kind == "entries":
        entries = entries_of(op, case)
        assert entries is not None
        names, tags = ["input", "grad_output"], _bit(entries % ENTRY_TAGS)
    else:
        tags = _bit(np.arange(case.rows))[:, None]
        names = [n for n in case.given if n not in {"weight", "bias"}] if kind == "rows" else ["grad_output"]
    return {name: _spread(op, case, name, tags) for name in names}


def _spread(op: Op, case: Case, name: str, tags: Tags) -> Tags:
    """Bring tags of canonical rows into the shape of a tensor."""
    shape = tuple(case.given[name].shape)
    places = _places(op, case, name, shape).reshape(case.rows, -1)
    flat = np.zeros(places.size, dtype=np.uint64)
    flat[places.reshape(-1)] = np.broadcast_to(tags, places.shape).reshape(-1)
    return flat.reshape(shape)


def _demanded(op: Op, case: Case, kind: str, name: str, shape: tuple[int, ...]) -> tuple[Tags, Tags] | None:
    """Return the tags that a result must have and those that it may have, in canonical rows."""
    rows = _bit(np.arange(case.rows))
    if name not in {"grad_weight", "grad_bias"}:
        own = np.broadcast_to(rows.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        return (own, own) if kind == "rows" else None
    entries = entries_of(op, case)
    if entries is None:
        return None  # nothing says which rows and entries a sum is made of
    if kind == "entries":
        own = _bit(np.arange(shape[0]) % ENTRY_TAGS)
        return own, own
    summed = np.zeros(shape[0], dtype=np.uint64)
    np.bitwise_or.at(summed, entries.reshape(-1), np.repeat(rows, case.columns))
    return summed, summed


def _comparable(op: Op, case: Case, kind: str, name: str, held: Tags) -> bool:
    """Whether a result has elements of which the definition says what they depend on."""
    summed = name in {"grad_weight", "grad_bias"}
    if not held.size or (not summed and held.size not in {case.elements, case.rows}):
        return False
    shape = _places(op, case, name, held.shape).shape
    return _demanded(op, case, kind, name, shape) is not None


def _suspicions(op: Op, case: Case, kind: str, tags: Mapping[str, Tags]) -> Iterator[Suspicion]:
    """Yield, for each result that is comparable and tag, the elements that have it or lack it wrongly."""
    for name, held in tags.items():
        # Tags are moved by their places: an array of floats would not hold 64 bits.
        canonical = held.reshape(-1)[_places(op, case, name, held.shape)]
        said = _demanded(op, case, kind, name, canonical.shape)
        assert said is not None
        must, may = said
        for lacking, amiss in ((False, canonical & ~may), (True, must & ~canonical)):
            for tag in range(64):
                wrong = (amiss >> np.uint64(tag)) & np.uint64(1) != 0
                if wrong.any():
                    yield Suspicion(output=name, kind=kind, tag=tag, lacking=lacking, wrong=wrong)


def _of_each_kind(found: list[Suspicion]) -> list[Suspicion]:
    """Keep the first suspicion of each output and direction, with the tags of its likes."""
    kept: dict[tuple[str, str, bool, bool], list[Suspicion]] = {}
    for one in found:
        kept.setdefault((one.output, one.kind, one.lacking, one.tag == NEIGHBOUR), []).append(one)
    return [replace(like[0], tags=tuple(s.tag for s in like)) for like in kept.values()]


# -- proof ---------------------------------------------------------------------------------------------


def _proved(session: Session, suspicion: Suspicion, backward: bool) -> Outcome:
    """Put other values in the suspect's place: bits that move, or do not, are the proof."""
    text = f"{suspicion.output}: {_words(session.case, suspicion)}"
    try:
        proved = _shown(session, suspicion, backward)
    except StoppedError as stopped:
        if stopped.outcome.verdict is Verdict.ERROR:
            raise
        proved, text = False, f"{text} (not shown: {stopped.outcome.message})"
    if proved:
        return Outcome(verdict=Verdict.FAIL, output=suspicion.output, message=text, decided=1, wrong=1)
    doubt = "its tags say so, and other values in that place do not show it"
    return Outcome(verdict=Verdict.UNDECIDED, output=suspicion.output, message=f"{text}; {doubt}")


def _shown(session: Session, suspicion: Suspicion, backward: bool) -> bool:
    """Return whether values show it: suspect elements move with the tag's values, or do not with NaN."""
    if suspicion.tag == NEIGHBOUR and suspicion.kind == "rows":
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
    """Yield the case with NaN, and with larger values, where the tag was."""
    tagged = dict(tags_of(op, case, suspicion.kind))
    if suspicion.kind == "entries" and op.differentiable:
        del tagged["input"]  # with another input the statistics would be others, and with them all columns
    for nan in (True, False):
        tensors = dict(case.tensors)
        for name, tags in tagged.items():
            tensor = case.given[name].clone()
            where = torch.from_numpy((tags >> np.uint64(suspicion.tag)) & np.uint64(1) != 0)
            tensor[where] = torch.nan if nan else tensor[where] * 3 + 3
            tensors[name] = tensor
        yield replace(case, tensors=tensors)


def _moved(session: Session, suspicion: Suspicion, first: Observation, second: Observation) -> Any:
    """Return, for each suspect element, whether its bits differ between the runs."""
    found = []
    for seen in (first, second):
        tensor = seen.outputs.get(suspicion.output)
        if tensor is None or not comparable(tensor):
            return np.zeros(0, dtype=np.bool_) if not suspicion.lacking else np.ones(1, dtype=np.bool_)
        places = _places(session.op, session.case, suspicion.output, tuple(tensor.shape))
        found.append(bit_numbers(tensor).reshape(-1)[places])
    return (found[0] != found[1])[suspicion.wrong]


def _places(op: Op, case: Case, name: str, shape: tuple[int, ...]) -> Index:
    """Return the place in a tensor of each element in canonical rows."""
    numbers = op.canonical(case, name, np.arange(math.prod(shape), dtype=np.float64).reshape(shape))
    return np.asarray(numbers.astype(np.int64))


# -- words ---------------------------------------------------------------------------------------------


def _words(case: Case, suspicion: Suspicion) -> str:
    """Say what depends on what, or does not."""
    summed = suspicion.output in {"grad_weight", "grad_bias"}
    where = _listed("entry" if summed else "row", suspicion.wrong)
    if suspicion.kind == "entries":
        noun = "entry" if len(suspicion.tags) == 1 else "entries"
        source = f"{noun} {_numbers(suspicion.tags)} (modulo {ENTRY_TAGS}) of grad_output"
    elif suspicion.tag == NEIGHBOUR:
        source = "memory between the elements of a tensor"
    elif summed:
        noun = "row" if len(suspicion.tags) == 1 else "rows"
        source = f"{noun} {_numbers(suspicion.tags)}{_pattern(suspicion.tags, case.rows)}"
    elif suspicion.lacking:
        source = f"itself ({len(suspicion.tags)} such rows in all)"
    else:
        source = f"row {suspicion.tag} ({len(suspicion.tags)} rows influence others than themselves)"
    return f"{where} {'does not depend on' if suspicion.lacking else 'depends on'} {source}"


def _listed(noun: str, wrong: Any) -> str:
    """Name the first canonical index, and how many there are."""
    first = np.unique(np.nonzero(wrong)[0])
    others = f" and {len(first) - 1} more" if len(first) > 1 else ""
    return f"{noun} {int(first[0])}{others}"


def _numbers(tags: tuple[int, ...]) -> str:
    return ", ".join(map(str, tags[:SHOWN])) + (", ..." if len(tags) > SHOWN else "")


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


def experiment(subject: Subject, case: Case, *, place: Any, kind: str, gradients: bool) -> Observation:
    """Return the results, and among the facts the tags of each that is one of floats."""
    from verifier import ops
    from verifier.lifting import ride, ride_backward, riding
    from verifier.machine.arithmetics.taint import build

    arithmetic: Any = build()
    given = tags_of(ops.op(case.op), case, kind)
    around = np.uint64(1) << np.uint64(NEIGHBOUR) if kind == "rows" else None
    with riding(arithmetic) as opened:
        settings = {"place": place, "opened": opened, "given": given}
        if kind == "entries" and gradients:
            seen, tags = ride_backward(subject, case, **settings)
        else:
            seen, tags = ride(subject, case, gradients=gradients, around=around, **settings)
        if seen.status != "ok":
            return seen
        assert opened.slots is not None
        facts = {**seen.facts, "lost": _lost(opened.slots.counters)}
        facts["tags"] = {name: np.array(t, dtype=np.uint64) for name, t in tags.items()}
        return replace(seen, facts=facts)


def _lost(counters: Any) -> str:
    """Say where tags ended although something may still have depended on them; nothing if nowhere."""
    return "; ".join(counters.describe()[:4])

"""Ways of calling a subject that must change nothing, tried in one process and compared with plain calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from verifier.cases.plan import Plan
from verifier.checks.support.bits import Results, how_different
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, stopped
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import (
    UnusableError,
    backward,
    failure,
    forward,
    lay_out,
    mutated,
    named_results,
)
from verifier.execution.process_copy import in_a_copy
from verifier.execution.process_tree import single_threaded
from verifier.execution.wire import PackedObservation, pack_observation, unpack_observation
from verifier.ops import Op
from verifier.ops import op as named_op
from verifier.records.case import Case
from verifier.records.observation import Aftermath, Observation
from verifier.records.printable import text_of
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict
from verifier.subjects.process_settings import settings_kept

# -- which cases ---------------------------------------------------------------------------------------

FEW_SHAPES = ((4, 33), (3, 128))
"""Rows and columns of few programs: an interpreter takes a second for hundreds."""
TRAINING, EVALUATION = "in training", "in evaluation"


def few_cases(op: Op, *, gradients: bool) -> Plan:
    """Ask for a few small ordinary cases, since a wrapper has few paths and each case takes all ways.

    They have weights and have none, of each dtype that is promised, and are of training and of evaluation
    where the op tells them apart.
    """
    trains = _trains(op)
    return Plan(
        gradients=gradients,
        hazards=("ordinary",),
        joint=False,
        max_elements=4096,
        min_rows=1,
        min_columns=1,
        shapes=FEW_SHAPES,
        eps=(1e-5,),
        leads="variant" if trains else "weight",
        most=7 if trains else 4,
        parameter_dtypes=True,
    )


def ways_of_op(subject: Subject) -> list[str]:
    """Return of training and evaluation what a PASS needs: both where the subject takes either."""
    either = _trains(named_op(subject.op)) and "training" in subject.signature
    return [TRAINING, EVALUATION] if either else []


def _trains(op: Op) -> bool:
    return "running_mean" in op.tensors


# -- in the child --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What one way of calling showed.

    results: of one call or of several, each to be compared with the plain call's; those that are lacking are
    not. broken: results that are certainly wrong, by name, each with how.
    excused: why it is right that there is nothing to compare, or nothing. concerns: false where the demand is
    about nothing that the subject does.
    """

    results: tuple[Results, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    excused: str = ""
    concerns: bool = True


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One demand as it was tried.

    stopped: how it ended, if not well. broken: as of `Shown`. differing: how bits of results differ from the
    plain call's, by name. concerns: as of `Shown`.
    """

    demand: str
    stopped: Observation | None = None
    broken: tuple[tuple[str, str], ...] = ()
    excused: str = ""
    concerns: bool = True
    differing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """All that were tried; unsteady: results of which two plain calls have other bits already."""

    tried: tuple[Attempt, ...]
    unsteady: tuple[str, ...]


def tried_in_turn(
    subject: Subject,
    case: Case,
    backend: Backend,
    demands: Mapping[str, Callable[[], Shown]],
    *,
    gradients: bool,
    first_as: str = "",
    ahead: Mapping[str, Shown | Observation] | None = None,
) -> Observation:
    """Call the subject plainly, twice, then in each way; runs in the child.

    first_as: the demand on the first of these calls, where nothing was called before it. ahead: what ways
    showed before.

    Returns an observation whose `found` are `Attempts` and whose outputs are the plain call's results and,
    named as `key` names them, those that differ; or how the plain call ended.
    """

    def plain() -> Shown:
        call = lay_out(subject, case, device=backend.device(), gradients=gradients)
        outputs = forward(subject, call)
        results = named_results(subject, outputs) | mutated(subject, call)
        return Shown(results=(kept(results | (backward(outputs, call) if gradients else {})),))

    first, again = _tried(backend, plain), _tried(backend, plain)
    if isinstance(first, Observation):
        return first
    if isinstance(again, Observation):
        return replace(again, message=f"in a second call on the same values: {again.message}")
    expected = first.results[0]
    unsteady = [name for name in expected if how_different(expected[name], again.results[0].get(name), "")]
    attempts: list[Attempt] = []
    outputs: dict[str, torch.Tensor | None] = {}

    def compare(demand: str, shown: Shown, usual: Results) -> None:
        broken = [*shown.broken]
        found: dict[str, str] = {}
        for results in shown.results:
            broken += _other_forms(usual, results)
            for name in usual.keys() & results.keys():
                how = how_different(usual[name], results[name], "from the plain call's")
                if how is not None and _form(usual[name]) == _form(results[name]):
                    found.setdefault(name, how)
                    outputs.setdefault(key(demand, name), results[name])
        attempts.append(
            Attempt(
                demand=demand,
                broken=tuple(broken),
                excused=shown.excused,
                concerns=shown.concerns,
                differing=found,
            )
        )

    if first_as:
        compare(first_as, first, again.results[0])
    for demand in (*(ahead or {}), *demands):
        shown = ahead[demand] if ahead and demand in ahead else _tried(backend, demands[demand])
        if isinstance(shown, Observation):
            attempts.append(Attempt(demand=demand, stopped=shown))
        else:
            compare(demand, shown, expected)
    seen = Attempts(tried=tuple(attempts), unsteady=tuple(unsteady))
    return Observation(status="ok", outputs={**expected, **outputs}, found=seen)


def shown_in_a_copy(backend: Backend, way: Callable[[], Shown]) -> Shown | Observation:
    """Return what a way that gives one set of results shows in a copy of this process, or how it ended."""

    def make() -> PackedObservation:
        shown = _tried(backend, way)
        if not isinstance(shown, Observation):
            (results,) = shown.results or ({},)
            shown = Observation(status="ok", outputs=results, found=shown.excused)
        with backend.unfollowed():
            return pack_observation(shown)

    if not single_threaded():
        return Shown(excused="the process has several threads, and a copy of it would be no fair trial")
    packed = in_a_copy(make)
    if packed is None:
        dead = Aftermath(died=True)
        return Observation(status="crashed", message="the process ended", aftermath=dead)
    seen = unpack_observation(packed)
    if seen.status != "ok":
        return seen
    placed = {name: None if t is None else t.to(backend.device()) for name, t in seen.outputs.items()}
    return Shown(results=(placed,) if placed else (), excused=seen.found_as(str))


def kept(results: Results) -> Results:
    """Return copies of results, which a later call cannot change."""
    return {name: None if t is None else t.detach().clone() for name, t in results.items()}


def key(demand: str, name: str) -> str:
    """Name the result of a demand among those of all."""
    return f"{demand}: {name}"


def _tried(backend: Backend, way: Callable[[], Shown]) -> Shown | Observation:
    """Return what one way of calling shows, or how it ended if not well."""
    backend.begin()
    try:
        with settings_kept():
            shown = way()
            backend.finish()
    except UnusableError as error:
        return Observation(status="unusable", message=text_of(error))
    except Exception as error:
        return failure(error, backend)
    kept_back = backend.failed()
    return shown if kept_back is None else failure(kept_back, backend)


def _other_forms(expected: Results, results: Results) -> Iterator[tuple[str, str]]:
    """Yield results that are None, or of another shape or dtype, where those of the plain call are not."""
    for name in expected.keys() & results.keys():
        before, now = _form(expected[name]), _form(results[name])
        if before != now:
            yield name, f"it is {now}; the plain call's is {before}"


def _form(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"of shape {tuple(tensor.shape)} and dtype {str(tensor.dtype).removeprefix('torch.')}"


# -- in the verifier's process -------------------------------------------------------------------------


def outcomes_of(
    session: Session, seen: Observation, *, same_code: bool, same_bits: bool = False
) -> list[Outcome]:
    """Judge what was tried, see `outcomes_by_demand`."""
    found = outcomes_by_demand(session, seen, same_code=same_code, same_bits=same_bits)
    return [outcome for _, outcomes in found for outcome in outcomes]


def outcomes_by_demand(
    session: Session, seen: Observation, *, same_code: bool, same_bits: bool = False
) -> Iterator[tuple[str, list[Outcome]]]:
    """Judge each demand: bits that differ from a plain call's are right if they are within the bound.

    A kernel may rightly take another path in another mode, and compilers round another path otherwise.

    same_code: whether no such path is expected, so that other bits are wrong where no bound applies and
    calls repeat their bits. same_bits: other bits are wrong even within the bound where calls repeat them.
    """
    steady = can(session.backend, Power.REPEATS) or "determinism" in session.subject.guarantees
    found = seen.found_as(Attempts)
    for attempt in found.tried:
        made = _certain(attempt)
        for name, how in attempt.differing.items():
            repeats = steady and name not in found.unsteady
            if same_bits and repeats:
                made.append(_broken(name, attempt.demand, how))
                continue
            made += _of_bits(session, seen, attempt.demand, name, how, repeats, same_code=same_code)
        made = made or [Outcome(verdict=Verdict.PASS, decided=1)]
        yield attempt.demand, [*made[:-1], replace(made[-1], tried=(attempt.demand, *_way_of_op(session)))]


def _way_of_op(session: Session) -> tuple[str, ...]:
    if not _trains(session.op):
        return ()
    return (TRAINING if session.case.scalars.get("training") else EVALUATION,)


def _certain(attempt: Attempt) -> list[Outcome]:
    """Return what needs no bound: how an attempt ended, if not well, and demands that were not met."""
    if attempt.stopped is not None:
        outcome = stopped(attempt.stopped)
        return [replace(outcome, message=f"{attempt.demand}: {outcome.message}")]
    if attempt.excused:
        return [Outcome(verdict=Verdict.SKIPPED, message=attempt.excused)]
    return [_broken(name, attempt.demand, how) for name, how in attempt.broken]


def _of_bits(  # noqa: PLR0917 (of one result)
    session: Session,
    seen: Observation,
    demand: str,
    name: str,
    how: str,
    repeats: bool,
    *,
    same_code: bool,
) -> list[Outcome]:
    """Return what other bits of a result mean, nothing if they are within their bound.

    repeats: whether the plain call has the same bits each time.
    """
    only = Observation(status="ok", outputs={name: seen.outputs[key(demand, name)]})
    judged = [] if session.op.own else judge(session.truth, only, (name,))
    if any(o.verdict is Verdict.FAIL for o in judged):
        return [replace(o, message=f"{o.message}, {demand}") for o in judged]
    if any(o.verdict is Verdict.PASS for o in judged):
        return []
    if repeats and same_code:
        return [_broken(name, demand, how)]
    why = "no bound says whether both are right" if repeats else "two plain calls may differ as well"
    return [
        Outcome(
            verdict=Verdict.UNDECIDED,
            output=name,
            message=f"{name} {demand}: {how}; {why}",
            doubtful=repeats,
        )
    ]


def _broken(name: str, demand: str, how: str) -> Outcome:
    text = f"{name} {demand}: {how}"
    return Outcome(verdict=Verdict.FAIL, output=name, message=text, decided=1, wrong=1)

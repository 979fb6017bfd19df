"""Each configuration that a tuner may choose gives right results, and its trial launches leave none wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from verifier.cases.plan import Plan
from verifier.checks.running_bound import bounded
from verifier.checks.support.attempts import Shown, kept, outcomes_of, tried_in_turn
from verifier.checks.support.bits import differing
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, StoppedError, gradient_names
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import backward, execute, forward, lay_out, mutated, named_results
from verifier.machine.execute.tuning import TunedKernel
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Deviation, Observation
from verifier.records.reach import SourcePlace
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict
from verifier.subjects.source_map import source_map
from verifier.subjects.used_functions import used_by

NAME = "autotuning"
ORDER = 127
DEMANDS = (
    "each configuration that Triton's tuner may choose gives results within their bounds, and launches of "
    "configurations before the one that counts, as the tuner makes them to compare times, change no bit"
)
WHY = (
    "the clock chooses the configuration, so that a test sees one of them; and the first call of each new "
    "shape runs a kernel dozens of times on the same tensors, where a sum that is not reset grows"
)
CATCHES = (
    "wrong_in_third_configuration_triton",
    "sums_kept_under_tuner_triton",
    "last_rows_of_wide_configuration_triton",
)

AFTER = "after the launches by which its tuner compares configurations"
LARGEST_TILE = 4096
"""Elements of a tile beyond which no row is tried that is longer: few kernels loop over so wide ones."""
USUAL_TILE = 256
"""The same where the configurations are not known beforehand."""
USUAL_ROWS = 17
"""Rows that are more than most programs take at a time."""
LARGEST_ROWS = 1024
"""Of a constant that is larger, none is tried as a number of rows that a program takes."""
_OF_COLUMNS = re.compile(r"col|(^|_|block)n(_|$)", re.IGNORECASE)
"""Names of constants that are widths of rows."""
_WRONG = frozenset({Verdict.FAIL, Verdict.CRASH, Verdict.TIMEOUT})


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for more rows than any program takes at a time, and for rows one longer than the widest tile."""
    tuning = _tuning(subject)
    tile = min(max(tuning.tiles, default=USUAL_TILE), LARGEST_TILE)
    rows = max((USUAL_ROWS, *(number + 1 for number in tuning.rows)))
    shapes = (rows, 33), (3, tile + 1)
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        max_elements=(LARGEST_ROWS + 1) * 33,
        min_rows=1,
        min_columns=1,
        shapes=shapes,
        eps=(1e-5,),
        must=("shape",),
        leads="shape",
        most=len(shapes),
    )


def skips(subject: Subject, _op: Op, _dtype: str, backend: str) -> str | None:
    """Apply to kernels that Triton tunes, where it is known which these are, on backends that play tuners."""
    if not _tuning(subject).possible:
        return "none of its kernels is autotuned"
    if not can(backend, Power.TUNES):
        return "only the machine plays autotuners"
    return None


def must_be_tried(subject: Subject) -> list[str]:
    """Return that a tuner has compared configurations, where one is known."""
    return [AFTER] if _tuning(subject).known else []


def check(session: Session) -> list[Outcome]:
    """Run each configuration once, then the first one after launches of others and of itself."""
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    plain = session.execute(experiment=f"{__name__}:configured", gradients=gradients, forced=None)
    met = plain.found_as(TunersMet).tuners
    if not met:
        return [Outcome(verdict=Verdict.SKIPPED, message="the case launches no kernel that is autotuned")]
    outcomes = []
    for tuner in met:
        others = [words for words in tuner.candidates if tuner.chosen != (words,)]
        outcomes += _together(
            {w: _of_configuration(session, plain, tuner, w, gradients=gradients) for w in others}
        )
    for tuner in met:
        outcomes += _after_launches(session, tuner, gradients=gradients)
    return outcomes


def _of_configuration(
    session: Session, plain: Observation, tuner: Met, words: str, *, gradients: bool
) -> list[Outcome]:
    """Judge a call in which one tuner has chosen a configuration, and all others their first."""
    where = f"in configuration {words} of {tuner.place}"
    own = replace(session)  # what is known of compiled code is of this configuration's
    forced = tuner.kernel, words
    try:
        seen = own.execute(experiment=f"{__name__}:configured", gradients=gradients, forced=forced)
    except StoppedError as error:
        return [replace(error.outcome, message=f"{where}: {error.outcome.message}")]
    here = next((one for one in seen.found_as(TunersMet).tuners if one.kernel == tuner.kernel), None)
    if here is None or words not in here.chosen:
        return [Outcome(verdict=Verdict.SKIPPED, message=f"{where}: {_why_not(here, words)}")]
    known = {o.message for o in session.contradictions()}
    outcomes = [o for o in own.contradictions() if o.message not in known]
    outcomes += _judged(own, session, plain, seen, forced)
    outcomes += [_fail(one) for one in seen.damage if one not in plain.damage]
    return [
        replace(o, message=f"{o.message}, {where}" if o.message else "")
        for o in outcomes or [Outcome(verdict=Verdict.PASS, decided=1)]
    ]


def _together(found: Mapping[str, list[Outcome]]) -> list[Outcome]:
    """Say of what is wrong alike in several configurations which they are, in one outcome."""
    wrong: dict[tuple[str, ...], dict[str, Outcome]] = {}
    for words, outcomes in found.items():
        for o in outcomes:
            if o.verdict in _WRONG:
                said = "" if o.worst is not None else o.message.replace(words, "")
                wrong.setdefault((o.verdict, o.output, said), {}).setdefault(words, o)
    kept = [o for outcomes in found.values() for o in outcomes if o.verdict not in _WRONG]
    for alike in wrong.values():
        more, outcome = list(alike)[1:], next(iter(alike.values()))
        also = f"; alike in {len(more)} more: {' | '.join(more)}" if more else ""
        kept.append(replace(outcome, message=f"{outcome.message}{also}"))
    return kept


def _why_not(here: Met | None, words: str) -> str:
    fits = here is None or words not in here.unfit
    return "the call no longer launches it" if fits else "it does not fit the device, and the tuner drops it"


def _judged(
    own: Session, first: Session, plain: Observation, seen: Observation, forced: tuple[TunedKernel, str]
) -> list[Outcome]:
    """Judge results of other bits than the first configuration's; what is wrong there, too, is no news.

    own, first: the sessions of the configuration and of the first one.
    """
    names = [name for name, tensor in plain.outputs.items() if tensor is not None]
    demanded = {*own.op.outputs, *gradient_names(own.subject, own.op)}
    expected = tuple(name for name in names if name in demanded)
    misshapen = {o.message for o in first.shape_outcomes(plain, expected)}
    outcomes = [o for o in own.shape_outcomes(seen, expected) if o.message not in misshapen]

    @cache
    def bounded_in(configuration: tuple[TunedKernel, str] | None) -> list[Outcome]:
        return _by_running_bound(own if configuration else first, configuration)

    def judged_in(configuration: tuple[TunedKernel, str] | None, name: str) -> list[Outcome]:
        if own.op.own:
            return [o for o in bounded_in(configuration) if o.output == name]
        session, observed = (own, seen) if configuration else (first, plain)
        return judge(session.truth, observed, (name,))

    for name in names:
        text = differing(name, plain.outputs, seen.outputs, "from the first configuration's")
        if text is None or any(o.output == name for o in outcomes):
            continue
        judged = judged_in(forced, name)
        if any(o.verdict is Verdict.FAIL for o in judged):
            before = judged_in(None, name)
            outcomes += [] if any(o.verdict is Verdict.FAIL for o in before) else judged
        elif not any(o.verdict is Verdict.PASS for o in judged):
            why = f"{text}; no bound says whether both are right"
            outcomes.append(Outcome(verdict=Verdict.UNDECIDED, output=name, message=why, doubtful=True))
        else:
            outcomes += judged
    return outcomes


def _by_running_bound(session: Session, forced: tuple[TunedKernel, str] | None) -> list[Outcome]:
    """Judge what no theorem bounds by the roundings of a configuration's code, where they are followed."""
    if not can(session.backend, Power.SHADOWS) or session.case.dtype == "float64":
        return []
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    return bounded(session, gradients=gradients and "grad_output" in session.case.given, forced=forced)


def _after_launches(session: Session, tuner: Met, *, gradients: bool) -> list[Outcome]:
    """Compare a call in which a tuner compares configurations with one in which it does not."""
    experiment = f"{__name__}:compared"
    seen = session.execute(experiment=experiment, gradients=gradients, kernel=tuner.kernel)
    words = f"in a call {AFTER}: {tuner.place}"
    outcomes = outcomes_of(session, seen, same_code=True, same_bits=True)
    return [
        replace(o, message=o.message.replace(AFTER, words), tried=(AFTER,) if o.tried else ())
        for o in outcomes
    ]


def _fail(damage: Deviation) -> Outcome:
    return Outcome(verdict=Verdict.FAIL, output=damage.about, message=damage.text)


# -- what is known beforehand --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Tuning:
    """What the sources say of tuners: whether one is known, whether there may be one, widths of tiles.

    rows: numbers that may be of the rows that a program takes: their names do not say that they are columns.
    """

    known: bool = False
    possible: bool = True
    tiles: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


def _tuning(subject: Subject) -> _Tuning:
    """Read what the subject's functions use; what cannot be read may be tuned."""
    if subject.language != "triton":
        return _Tuning(possible=False)
    try:
        used = used_by(subject.function)
    except Exception:  # of objects of the subject's, which say what they like of themselves
        return _Tuning()
    numbers = [item for tuner in used.tuners for one in tuner.configs for item in one.kwargs.items()]
    possible = bool(used.tuners) or "autotune" in used.names or bool(source_map(subject).unread)
    tiles = {(name, value) for name, value in numbers if type(value) is int and value > 0}
    return _Tuning(
        known=bool(used.tuners),
        possible=possible,
        tiles=tuple(value for _, value in tiles),
        rows=tuple(v for name, v in tiles if v <= LARGEST_ROWS and not _OF_COLUMNS.search(name)),
    )


# -- in the child --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Met:
    """What a tuner did in one call: the configurations that it chose from, chose, and found not to fit."""

    kernel: TunedKernel
    candidates: tuple[str, ...]
    chosen: tuple[str, ...]
    unfit: frozenset[str]

    @property
    def place(self) -> SourcePlace:
        """Where the kernel stands."""
        return SourcePlace(Path(self.kernel.path).name, self.kernel.function, self.kernel.line)


@dataclass(frozen=True, kw_only=True)
class TunersMet:
    """The autotuned kernels that a call launched."""

    tuners: tuple[Met, ...]


def configured(
    subject: Subject, case: Case, *, backend: Backend, gradients: bool, forced: tuple[TunedKernel, str] | None
) -> Observation:
    """Call the subject, one kernel in a configuration and the others in their first; says what it met."""
    with backend.tuned(forced=forced) as tuning:
        seen = execute(subject, case, backend=backend, gradients=gradients, poison="nan")
    met = tuple(
        Met(
            kernel=kernel,
            candidates=tuple(one.candidates),
            chosen=tuple(sorted(one.chosen)),
            unfit=frozenset(one.unfit),
        )
        for kernel, one in tuning.met.items()
    )
    return replace(seen, found=TunersMet(tuners=met))


def compared(
    subject: Subject, case: Case, *, backend: Backend, gradients: bool, kernel: TunedKernel
) -> Observation:
    """Call the subject plainly, then with a tuner that launches configurations before it chooses."""

    def after() -> Shown:
        with backend.tuned(benched=kernel) as tuning:
            call = lay_out(subject, case, device=backend.device(), gradients=gradients)
            outputs = forward(subject, call)
            found = named_results(subject, outputs) | mutated(subject, call)
            found |= backward(outputs, call) if gradients else {}
        met = tuning.met.get(kernel)
        if met is None or not met.benched:
            return Shown(excused="its tuner has one configuration left, and launches nothing before")
        return Shown(results=(kept(found),))

    with backend.tuned():
        return tried_in_turn(subject, case, backend, {AFTER: after}, gradients=gradients)

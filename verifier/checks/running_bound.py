"""No output is further from the exact result than the roundings of its own compiled code can explain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from strategies.layouts import KINDS
from verifier.arithmetic.formats import FORMATS, Array
from verifier.bounds.variance import Mask
from verifier.cases.plan import Plan
from verifier.checks.memory import unwritten
from verifier.checks.support import lifted_radii
from verifier.checks.support.output_verdict import format_of, judge_output
from verifier.checks.support.running_bound_run import ShadowedRun
from verifier.checks.support.session import Session, gradient_names
from verifier.checks.support.tamed import tamed
from verifier.checks.support.truth import Truth
from verifier.execution.backend import Power
from verifier.execution.backends import can
from verifier.ops import Bounded, Op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import raw_bytes
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "running_bound"
ORDER = 45
DEMANDS = (
    "every element of output and gradients differs from the exact value by no more than the running error "
    "bound of the compiled code, which is what its own roundings and the documented errors of its "
    "approximate instructions can explain; where a specification of the subject's own is the judge, torch "
    "operators are held to such a bound, too"
)
WHY = (
    "the bound for any order of summation is so wide that a slightly wrong formula (N - 1 for N at a large "
    "N) stays below it; the bound of the code's own order is many times smaller"
)
CATCHES = ("divisor_n_minus_one_triton",)

_SHAPES = ((4, 33), (3, 128), (2, 1000), (1, 8192))
"""A tail, a full block, a longer row, and one so long that bounds for any order say little."""
_OURS = "bug of the verifier until explained"


@dataclass(frozen=True, kw_only=True)
class Unlimited:
    """How many elements of a result have a running bound that says nothing."""

    elements: int


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for values at which a running bound says something: large means make it wide."""
    hazards = ("ordinary", "lognormal", "one_outlier", "ordinary")
    return Plan(
        gradients=subject.differentiable,
        # Where no theorem judges results in other layouts, this check does.
        layouts=KINDS if op.own else ("contiguous",),
        hazards=hazards,
        joint=False,
        shapes=_SHAPES,
        eps=(1e-5, 1e-3),
    )


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply to compiled code on the machine, and to torch operators that a specification judges.

    No other check compares what a specification of the subject's own judges there: it is run or UNDECIDED.
    """
    if _alone(subject, op, backend):
        return None
    if subject.language == "torch":
        return "torch operators are not compiled from the subject; a running bound needs its own code"
    if not can(backend, Power.SHADOWS):
        return "only the machine computes a running bound with each float (--backend machine)"
    if dtype == "float64":
        return "bounds and values of float64 numbers would be float64 numbers too"
    return None


def _alone(subject: Subject, op: Op, backend: str) -> bool:
    """Whether no check but this one could compare the results with a specification of the subject's own."""
    return op.own and (subject.language == "torch" or not can(backend, Power.SHADOWS))


def check(session: Session) -> list[Outcome]:
    """Judge every output by its running bound, and compare the verdict with the theorem's."""
    gradients = bool(session.op.differentiable) and session.subject.differentiable
    follows = can(session.backend, Power.FOLLOWS_TORCH)
    alone = _alone(session.subject, session.op, session.backend)
    if alone and (not follows or session.case.dtype == "float64"):
        return [_nothing(_UNFOLLOWED[follows])]
    return bounded(session, gradients=gradients and "grad_output" in session.case.given)


def bounded(session: Session, **options: object) -> list[Outcome]:
    """Judge each result of one execution by its running bound; options: of `running_bound_run.bounds`."""
    alone = _alone(session.subject, session.op, session.backend)
    seen = session.execute(experiment=_experiment(session, "bounds"), **options)
    misshapen = _misshapen(session, seen, gradients=bool(options["gradients"])) if session.op.own else []
    if session.op.own:  # of other ops forward_error and gradient say so
        misshapen += session.contradictions(seen.found_as(ShadowedRun).code)
        misshapen += _rounded_to_fewer_bits(session, seen)
    run = seen.found_as(ShadowedRun)
    if run.lost:
        return [*misshapen, _nothing(run.lost) if alone else _lost(session, run)]
    outcomes: list[Outcome] = []
    for name in _comparable(session, seen):
        if name not in {o.output for o in misshapen}:
            outcomes += _judged(session, seen, name, options)
    return [*misshapen, *(lifted_radii.outweighing(outcomes) if session.op.own else outcomes)]


_UNFOLLOWED = {
    True: "bounds of float64 numbers would be float64 numbers too",
    False: "only the machine and eager follow the roundings of what they run (--backend machine)",
}
"""Why nothing is compared, by whether torch operators are run on the CPU."""


def _nothing(why: str) -> Outcome:
    """Decide nothing of results that no other check compares either."""
    text = f"results were compared with nothing: {why}"
    return Outcome(verdict=Verdict.UNDECIDED, message=text, doubtful=True)


def _experiment(session: Session, name: str) -> str:
    """Name the experiment that gives bounds, or values without rounding: torch's operators give both."""
    if session.subject.language == "torch":
        return "verifier.checks.support.running_bound_of_torch:bounds"
    return f"verifier.checks.support.running_bound_run:{name}"


def _lost(session: Session, run: ShadowedRun) -> Outcome:
    text = f"no running bound: the machine lost track of values ({run.how_lost})"
    # Results of an own specification in other layouts are judged nowhere else.
    return Outcome(
        verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text), doubtful=session.op.own
    )


def _misshapen(session: Session, seen: Observation, *, gradients: bool) -> list[Outcome]:
    """Return a FAIL for what is missing, misshapen or no float, which no other check sees in all layouts."""
    names = gradient_names(session.subject, session.op) if gradients else ()
    shapes = session.shape_outcomes(seen, ("output", *names))
    further = [n for n in session.subject.returns if n != "output" and n in session.truth.exact]
    counts = (lifted_radii.miscount(session.truth, n, seen.outputs.get(n)) for n in further)
    return [*shapes, *(outcome for outcome in counts if outcome)]


def _rounded_to_fewer_bits(session: Session, seen: Observation) -> list[Outcome]:
    """Leave open what compiled code rounds to 16 or 8 bits and no tensor is in: its bound allows for it.

    It is read of the code as it stands, whether it ran or not.
    """
    held = {
        format_of(tensor)
        for tensor in (*session.case.given.values(), *seen.outputs.values())
        if tensor is not None
    }
    code = seen.found_as(ShadowedRun).code
    opcodes = {opcode for kernel in (code.contents if code else ()) for opcode, _ in kernel.opcodes}
    targets = {tuple(opcode.split(".")[-2:]) for opcode in opcodes if opcode.startswith("cvt.")}
    found = sorted({_NARROW[to] for to, of in targets if to in _NARROW and of in {"f32", "f64"}} - held)
    text = (
        f"the code rounds numbers to {' and '.join(found)}, which no tensor is in: its bound allows for that"
    )
    return [Outcome(verdict=Verdict.UNDECIDED, message=text, doubtful=True)] if found else []


_NARROW = {
    "f16": "float16",
    "f16x2": "float16",
    "bf16": "bfloat16",
    "bf16x2": "bfloat16",
    "e4m3x2": "float8_e4m3fn",
    "e5m2x2": "float8_e5m2",
}
"""Formats of 16 bits and of 8 by their names in PTX."""


def _comparable(session: Session, seen: Observation) -> Iterator[str]:
    """Yield what is bounded and has an exact result; wrong shapes are another check's business."""
    for name, actual in seen.outputs.items():
        bounded = seen.outputs.get(f"{name}|bound")
        if actual is None or bounded is None or name not in session.truth.exact:
            continue
        if actual.numel() == int(np.prod(session.truth.shape_of(name))):
            yield name


def _judged(session: Session, seen: Observation, name: str, options: Mapping[str, object]) -> list[Outcome]:
    actual = seen.outputs[name]
    assert actual is not None
    bound = _canonical(session.truth, name, actual, seen.outputs[f"{name}|bound"])
    # Code that chooses a literal 0, as for a score that overflowed, may have the nearest number by that.
    bound = np.maximum(bound, FORMATS[format_of(actual)].omega)
    outcome = judge_output(_with_bound(session.truth, name, bound), name, actual)
    # No promise is broken where a running bound is unlimited: it depends on the values alone. But where no
    # theorem judges those elements, their result has not passed.
    notes = []
    if outcome.uncovered:
        outcome = replace(outcome, evidence=Unlimited(elements=outcome.uncovered))
        outcome = lifted_radii.in_full(outcome) if session.op.own else replace(outcome, uncovered=0)
        part = " for some elements" if outcome.decided else ""
        doubt = outcome.verdict is Verdict.NO_THEOREM and _promised_in_vain(
            session, name, actual, bound, options
        )
        notes = [_noted(f"the running bound of {name} is unlimited{part}", doubtful=doubt)]
        if doubt:
            return [replace(outcome, verdict=Verdict.UNDECIDED, message=f"{name}: {_IN_VAIN}"), *notes]
    if outcome.verdict is Verdict.FAIL:
        constants = seen.found_as(ShadowedRun).constants
        if len(constants) >= lifted_radii.POLYNOMIAL:
            return _polynomial(session, outcome, constants)
        return _confirmed(session, outcome, actual, bound, options)
    if outcome.verdict is Verdict.PASS:
        read = session.subject.claim.read  # of another shape, perhaps of other code
        theorem = None if read else judge_output(session.truth, name, actual)
        if theorem is not None and theorem.verdict is Verdict.FAIL:
            text = (
                f"{name}: the roundings of the compiled code explain an error that the declared algorithm "
                f"cannot make: the declaration is wrong, or a {_OURS}"
            )
            if cause := unwritten(session):
                text = f"no verdict on {name}: {cause}"
            return [replace(outcome, verdict=Verdict.UNDECIDED, message=text), _noted(text)]
    if outcome.verdict is Verdict.NO_THEOREM and not session.op.own:
        text = f"the running bound of {name} is unlimited"
        return [replace(outcome, verdict=Verdict.SKIPPED, measured=Measured(seen=text))]
    return [outcome, *notes]


_IN_VAIN = (
    "inside the promised domain a value overflows or is lost on the way, by the input's own numbers: the "
    "result has no bound, although its exact value is in range"
)


def _promised_in_vain(
    session: Session, name: str, actual: torch.Tensor, bound: Array, options: Mapping[str, object]
) -> bool:
    """Return whether elements lack a bound for which a specification's subject promises numbers.

    Excused is what no format holds, and what has a bound in the `tamed` case: a domain speaks of the input,
    and weight, gate or gradient may take a result out of range.
    """
    case, domain = session.case, session.subject.domain
    if not session.op.own or domain is None or not domain.numeric or domain.excludes(case) or not case.finite:
        return False
    lost = _without_bound(session, name, actual, bound)
    if not lost.any():
        return False
    small = tamed(session)
    seen = small.execute(experiment=_experiment(small, "bounds"), **options)
    again, running = seen.outputs.get(name), seen.outputs.get(f"{name}|bound")
    if again is None or running is None or again.shape != actual.shape or seen.found_as(ShadowedRun).lost:
        return True
    bound_again = _canonical(small.truth, name, again, running)
    return bool((lost & _without_bound(small, name, again, bound_again)).any())


def _without_bound(session: Session, name: str, actual: torch.Tensor, bound: Array) -> Mask:
    """Return which elements lack a bound although the format of the result holds their exact value."""
    exact = np.abs(np.broadcast_to(session.truth.exact[name].high, bound.shape))
    return np.asarray(~np.isfinite(bound) & (exact <= FORMATS[format_of(actual)].maximum))


def _polynomial(session: Session, outcome: Outcome, constants: tuple[float, ...]) -> list[Outcome]:
    """Leave a failure undecided where the code may hold a polynomial in the place of a function.

    That of a library (erf, tanh, expm1) is right to an ulp or two of its own result, which is no rounding:
    nothing tells it from a formula that is wrong by as little.
    """
    shown = ", ".join(f"{number:.9g}" for number in constants[: lifted_radii.POLYNOMIAL])
    text = (
        f"{outcome.output}: beyond the running bound, but the code has {len(constants)} constants that may "
        f"be those of a polynomial ({shown}, ...), which stands for a function and is not one"
    )
    undecided = replace(outcome, verdict=Verdict.UNDECIDED, message=text)
    return [undecided, _noted(text, doubtful=session.op.own)]


def _confirmed(
    session: Session, outcome: Outcome, actual: torch.Tensor, bound: Array, options: Mapping[str, object]
) -> list[Outcome]:
    """Let a failure stand where the code without any rounding is wrong too, within the bound.

    Of a specification of the subject's own no theorem judges the rest: no other case makes up for it.
    """
    name = outcome.output
    second = session.execute(experiment=_experiment(session, "unrounded"), **options)
    ideal = second.outputs.get(f"{name}|unrounded")
    reason = second.found_as(ShadowedRun).lost
    if not _same_bits(actual, second.outputs.get(name)):
        text = f"no verdict on {name}: two runs gave different bits (see determinism and memory)"
        return [
            replace(outcome, verdict=Verdict.UNDECIDED, message=text),
            _noted(text, doubtful=session.op.own),
        ]
    if ideal is not None and not reason:
        values = session.op.canonical(session.case, name, to_float64(actual))
        exact = _canonical(session.truth, name, actual, ideal)
        # The float64 run's own roundings are 2^-29 of those that the bound counts for float32 and narrower.
        held = np.abs(values - exact) <= bound * (1.0 + 2.0**-20)
        if bool(np.all(held | ~np.isfinite(bound))):
            text = (
                f"{name}: {outcome.wrong} element(s) are further from the exact result than all roundings of "
                "the compiled code can explain; computed without rounding it is wrong too"
            )
            why = "no rounding of the code that was compiled errs so much"
            meaning, formula = f"kernel wrong: {why}", f"formula wrong: {why}"
            return [replace(outcome, message=text, meaning=meaning, formula=formula)]
        reason = "the running bound does not hold the code's own unrounded result"
    text = f"{name}: beyond the running bound, but unconfirmed ({reason}): {_OURS}"
    return [replace(outcome, verdict=Verdict.UNDECIDED, message=text), _noted(text, doubtful=session.op.own)]


def _same_bits(first: torch.Tensor, second: torch.Tensor | None) -> bool:
    return second is not None and raw_bytes(first) == raw_bytes(second)


def _noted(text: str, *, doubtful: bool = False) -> Outcome:
    return Outcome(verdict=Verdict.UNDECIDED, measured=Measured(seen=text), doubtful=doubtful)


def _canonical(truth: Truth, name: str, actual: torch.Tensor, shadow: torch.Tensor | None) -> Array:
    assert shadow is not None
    return np.asarray(truth.op.canonical(truth.case, name, shadow.reshape(tuple(actual.shape)).numpy()))


def _with_bound(truth: Truth, name: str, bound: Array) -> Truth:
    """Return the same truth with the running bound of one output in the place of the theorems."""
    why = "the running bound is unlimited: a statistic is lost, a value overflows or its origin is unknown"
    return truth.bounded_by({name: Bounded(bound=bound, covered=np.isfinite(bound), reasons=(why,))})

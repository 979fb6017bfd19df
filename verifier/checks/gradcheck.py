"""The backward pass is the derivative of the forward pass, by torch.autograd.gradcheck in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from verifier.arithmetic.formats import ieee
from verifier.cases.plan import Plan
from verifier.checks.memory import unwritten
from verifier.checks.support import lifted_radii
from verifier.checks.support.difference_quotients import (
    Differences,
    Tolerance,
    compared,
    step_of,
    tolerance,
    without_derivative,
)
from verifier.checks.support.lifted_radii import LiftedRun
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names
from verifier.checks.support.truth import Truth
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import lay_out
from verifier.execution.shadow_run import (
    LiftedFunction,
    LostShadows,
    attempt,
    execute_with_shadows,
    shadow_session,
    watched,
)
from verifier.machine.culprit import passed_on
from verifier.ops import Op
from verifier.ops.specification.enclosures import constants
from verifier.records.case import FEATURES, Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "gradcheck"
IN_FLOAT64 = True
ORDER = 60
JUDGES_NUMBERS = True
DEMANDS = (
    "the backward pass equals central differences of the forward pass, within the proved errors of both; "
    "compiled kernels of lower precision are lifted to float64 for this, and their lifted results must "
    "equal the exact ones"
)
WHY = "a forward and a backward pass may not belong together, whatever each of them claims to compute"
CATCHES = ("backward_with_eps_twice", "gate_constant_slightly_wrong_triton")

NATIVE_SHAPES = ((2, 5), (1, 2), (3, 4), (4, 2), (1, 12), (2, 3))
LIFTED_SHAPES = ((3, 7), (4, 33), (7, 20), (2, 5), (1, 9))
"""Rows with a tail, more than a warp, several rows for one program, an odd row, one row."""
DIFFERENCED, MOST_QUOTIENTS = "ordinary", 60
"""Hazard, and most input elements, of the cases that gradcheck is run on when lifted, for the time it takes:
each element costs two runs of the kernels. Lifted results are compared with the exact ones on every case."""

CONSTANTS = (
    "the code has rounded constants that its specification does not write, so that it is another function: "
    "no differences are taken of a function whose truncation error is not known"
)
ANOTHER = "formula wrong: the kernel computes another formula than the op's"
NEARLY = (
    "lifted results differ from the exact ones by no more than float32's rounding: constants or polynomials "
    "of float32's accuracy cannot be told from an error that small"
)


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for few, ordinary elements: every one costs two evaluations."""
    shapes = NATIVE_SHAPES if subject.language == "torch" else LIFTED_SHAPES
    rows, columns = (max(extents) for extents in zip(*shapes, strict=True))
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary", "small_integers", "two_level", "sorted_row"),
        joint=False,
        shapes=shapes,
        max_elements=rows * columns,
        max_rows=rows,
        max_columns=columns,
        # Powers of two: eps is the same number where a kernel takes it as float32.
        eps=(2.0**-17, 2.0**-10, 0.5),
        share=0.5,
    )


def lifts(dtype: str, backend: str) -> bool:
    """Return whether the subject is run lifted: compiled for a lower precision, on the machine."""
    return can(backend, Power.SHADOWS) and dtype != "float64"


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply in float64 to what is differentiable, and to every compiled kernel of lower precision."""
    if op.own and not lifts(dtype, backend):
        return (
            "without a declared algorithm, only compiled code on the machine has errors with a proved bound"
        )
    if not op.own and not op.claimed(subject.claim):
        return "no algorithm is declared, so that the error of a difference quotient has no bound"
    if lifts(dtype, backend):
        return None
    if not op.differentiable:
        return f"{op.name} is a backward pass itself; the check gradient judges it"
    if not subject.differentiable:
        return "declared forward only (differentiable=False)"
    if dtype != "float64":
        offered = "float64" in subject.dtypes
        return "finite differences need float64; only the machine lifts lower precision to it" + (
            "; float64 is checked on its own line" if offered else ""
        )
    return None


def check(session: Session) -> list[Outcome]:
    """Run gradcheck with the tolerance that the theorems of forward, backward and differences give."""
    case = session.case
    if case.elements == 0 or not case.finite:
        return []
    if session.op.own:
        return _check_own(session)
    if lifts(case.dtype, session.backend):
        return _check_lifted(session)
    if _elements(session) > MOST_QUOTIENTS:
        return []
    found = tolerance(session.truth, _names(session))
    if found.why:
        return [_without(found)]
    seen = session.execute(
        experiment="verifier.checks.gradcheck:experiment",
        names=_names(session),
        step=found.step,
        tolerance=found.absolute,
        without=without_derivative(session.truth),
    )
    return [_outcome(found, seen.found_as(Differences), seen.message)]


def _names(session: Session) -> list[str]:
    given, subject = session.case.given, session.subject
    return [n for n in session.op.differentiable if subject.gives_gradient(n) and n in given]


def _elements(session: Session) -> int:
    return sum(session.case.given[name].numel() for name in _names(session))


def _without(found: Tolerance) -> Outcome:
    if found.vanishing:
        text = "gradcheck: on this input all derivatives by some tensor are zero, so that nothing is compared"
        return Outcome(verdict=Verdict.SKIPPED, message=text)
    return Outcome(verdict=Verdict.NO_THEOREM, uncovered=1, message=f"gradcheck: {found.why}")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a comparison rests on: the tolerance of differences, and what a lifted run lost."""

    tolerance: Tolerance | None = None
    lost: LostShadows | None = None


def _outcome(
    found: Tolerance, differences: Differences, why: str, lost: LostShadows | None = None
) -> Outcome:
    """Return what differences show; why: what torch says of those that are too large."""
    evidence = Evidence(tolerance=found, lost=lost)
    if differences.passed:
        return Outcome(verdict=Verdict.PASS, decided=1, evidence=evidence)
    text = f"gradcheck: the backward pass is not the derivative of the forward pass ({why})"
    return Outcome(verdict=Verdict.FAIL, message=text, evidence=evidence, decided=1, wrong=1)


# -- lifted ------------------------------------------------------------------------------------------


def lifted_truth(session: Session) -> Truth:
    """Return the truth of the case for a run in which every operation is done in float64.

    Casts keep their operand, and an operation may be made of several instructions of the compiler's: four
    roundings a division or root cover each of its sequences. NumPy's exp2 and log2 err by less than 4 ulp.
    """
    case, subject = session.case, session.subject
    wide = replace(case, dtype="float64", tensors={**case.tensors, **_doubled(case)})
    exact = subject.differing(
        accumulates="float64", saved_dtype=None, formula=session.op.form(subject.claim, case.dtype)
    )
    arithmetic = ieee(
        "float64",
        division=4.0,
        reciprocal=4.0,
        square_root=4.0,
        reciprocal_square_root=4.0,
        exponential=8.0,
        exponential_argument=4.0,
        logarithm=16.0,
        hyperbolic_tangent=8.0,
        approximate_tangent=2.0**-50,
        evidence="float64 shadows of the compiled code",
    )
    setting = replace(session.setting, arithmetic=arithmetic, scalar_format="float32")
    return Truth(subject=exact, case=wide, setting=setting)


def _doubled(case: Case) -> dict[str, torch.Tensor]:
    return {name: t.double() for name, t in case.given.items()}


def _check_lifted(session: Session) -> list[Outcome]:
    """Compare lifted results with the exact ones, and differences of the forward with the backward pass."""
    truth = lifted_truth(session)
    differentiates = bool(session.op.differentiable) and session.subject.differentiable
    names = _names(session) if differentiates else []
    found = None
    if names and session.case.hazard == DIFFERENCED and _elements(session) <= MOST_QUOTIENTS:
        found = tolerance(truth, names)
    asked = None
    if found is not None and not found.why:
        asked = found.step, found.absolute, without_derivative(truth)
    seen = session.execute(
        experiment="verifier.checks.gradcheck:lifted", gradients=differentiates, names=names, asked=asked
    )
    run = seen.found_as(LiftedRun)
    wanted = (*session.subject.returns, *session.subject.mutates)
    wanted += gradient_names(session.subject, session.op) if differentiates else ()
    outcomes = [_sharp(truth, o) for o in judge(truth, seen, tuple(dict.fromkeys(wanted)))]
    if _nearly_exact(session, seen, outcomes):
        return [_nearly(run)]
    if found is not None:
        differenced = None if found.why else run.differences
        outcomes.append(
            _without(found) if differenced is None else _outcome(found, differenced, seen.message, run.lost)
        )
    return _with_cause(session, _unless_lost(outcomes, run.lost))


def _nearly(run: LiftedRun) -> Outcome:
    return Outcome(
        verdict=Verdict.UNDECIDED,
        message=NEARLY,
        measured=Measured(seen=NEARLY),
        doubtful=True,
        evidence=Evidence(lost=run.lost),
    )


def _nearly_exact(session: Session, seen: Observation, outcomes: list[Outcome]) -> bool:
    """Return whether all that failed in float64 lies within the subject's own bound in float32.

    A kernel's constants and polynomials are good to its own accuracy, not to float64's.
    """
    failed = tuple(o.output for o in outcomes if o.verdict is Verdict.FAIL)
    case = session.case
    single = replace(
        case, dtype="float32", tensors={**case.tensors, **{n: t.float() for n, t in case.given.items()}}
    )
    form = session.op.form(session.subject.claim, case.dtype)
    subject = session.subject.differing(formula=form, saved_dtype=None)
    own = Truth(subject=subject, case=single, setting=session.setting)
    return bool(failed) and all(o.verdict is Verdict.PASS for o in judge(own, seen, failed))


def _sharp(truth: Truth, outcome: Outcome) -> Outcome:
    """Take the verdict from a bound that is wide for float64, and say that the result is the lifted one."""
    if outcome.verdict is Verdict.FAIL:
        text = f"lifted to float64, {outcome.message}"
        return replace(outcome, message=text, formula=ANOTHER)
    exact = np.asarray(truth.exact[outcome.output].high)
    scale = float(np.sqrt(np.mean(np.square(exact)))) if exact.size else 0.0
    bound = truth.bounds[outcome.output].bound if outcome.output in truth.bounds else np.array(math.inf)
    reach = lifted_radii.SHARP * max(scale, lifted_radii.SMALLEST_SCALE)
    if outcome.verdict is Verdict.PASS and not float(np.max(bound, initial=0.0)) <= reach:
        text = f"{outcome.output}: the bound in float64 is too wide to say anything"
        return replace(outcome, verdict=Verdict.SKIPPED, message=text, decided=0, worst=None)
    return outcome


def _with_cause(session: Session, outcomes: list[Outcome]) -> list[Outcome]:
    """Name the check that decides it, where values were lost because nobody wrote them."""
    if not any(o.verdict is Verdict.UNDECIDED for o in outcomes) or not (cause := unwritten(session)):
        return outcomes
    text = f"gradcheck not decided: {cause}"
    return [replace(o, message=text) if o.verdict is Verdict.UNDECIDED else o for o in outcomes]


def _unless_lost(
    outcomes: list[Outcome], lost: LostShadows, bad: tuple[Verdict, ...] = (Verdict.FAIL,)
) -> list[Outcome]:
    """Take the verdicts of a run that failed and lost shadows: the machine's loss is not the kernel's.

    A run without failure needs no such excuse.
    """
    failed = [o for o in outcomes if o.verdict in bad]
    if not failed or not lost.words:
        return outcomes
    text = f"{failed[0].message}; but lifted values were lost on the way: {lost.words}"
    return [
        Outcome(
            verdict=Verdict.UNDECIDED,
            output=failed[0].output,
            message=text,
            evidence=Evidence(lost=lost),
        )
    ]


def lifted(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    names: list[str],
    asked: tuple[float, float, torch.Tensor | None] | None,
) -> Observation:
    """Run the subject lifted, and gradcheck on it if asked; runs in the child.

    asked: step, tolerance, and the elements of the output to leave out, of `compared`.
    """
    from verifier.machine.shadow.arithmetics.lifted import build

    arithmetic = build()
    with shadow_session(arithmetic) as opened:
        lost = watched(opened, case)
        given = {name: t.double().numpy() for name, t in case.given.items()}
        seen, shadows = execute_with_shadows(
            subject, case, backend=backend, opened=opened, given=given, gradients=gradients
        )
        if seen.status != "ok":
            return seen
        tried = Observation(status="ok")
        if asked is not None:
            function = LiftedFunction(
                subject=subject, case=case, backend=backend, opened=opened, names=tuple(names)
            )
            tensors = [case.given[name].double() for name in names]
            tried = attempt(backend, lambda: compared(function, tensors, *asked))
            if tried.status != "ok":
                return tried
        outputs = {name: torch.from_numpy(np.array(values)) for name, values in shadows.items()}
        differences = None if asked is None else tried.found_as(Differences)
        run = LiftedRun(lost=lost.counted(arithmetic.apart[0]), differences=differences)
        return Observation(status="ok", outputs=outputs, message=tried.message, found=run)


# -- by a specification of the subject's own ----------------------------------------------------------


def _check_own(session: Session) -> list[Outcome]:
    """Compare enclosed results with the specification, and differences of them with the backward pass."""
    differentiates = session.subject.differentiable and "grad_output" in session.case.given
    names = _names(session) if differentiates else []
    settings = {
        "gradients": differentiates,
        "names": names,
        # A mean divides by the columns; many kernels are handed their reciprocal.
        "as_written": [*constants(session.subject, session.case), *_shares(session.case)],
    }
    asked = None
    if names and session.case.hazard == DIFFERENCED and _elements(session) <= MOST_QUOTIENTS:
        step = step_of(session.case)
        known = lifted_radii.exact_jacobian(session.subject, session.case, names, step)
        entries = {"largest": max(known.largest), "smallest": min(known.largest)}
        asked = {"step": step, "truncation": known.truncation, **entries}
    enclosed = "verifier.checks.support.lifted_radii:experiment"
    seen = session.execute(experiment=enclosed, unit_roundoff=lifted_radii.DOUBLE, asked=asked, **settings)
    run = seen.found_as(LiftedRun)
    gradients = gradient_names(session.subject, session.op) if names else ()
    shapes = session.shape_outcomes(lifted_radii.returned(seen), ("output", *gradients))
    misshapen = {o.output for o in shapes}
    wanted = tuple(n for n in (*session.subject.returns, *gradients) if n not in misshapen)
    outcomes = lifted_radii.judged(session.truth, seen, wanted)
    failed = [o for o in outcomes if o.verdict is Verdict.FAIL]
    if failed and len(run.constants) >= lifted_radii.POLYNOMIAL:
        single = session.execute(
            experiment=enclosed, unit_roundoff=lifted_radii.SINGLE, asked=None, **settings
        )
        if lifted_radii.explained_by_single_precision(session.truth, single, failed):
            return [*shapes, _nearly(run)]
    if asked is not None:
        outcomes.append(_differenced(run, seen.message, asked))
    return [*shapes, *lifted_radii.outweighing(_with_cause(session, _doubted(outcomes, run.lost)))]


def _shares(case: Case) -> list[float]:
    """Return the reciprocals of what a mean may divide by."""
    return [1 / number for number in (case.columns, case.scalars.get(FEATURES)) if number]


def _doubted(outcomes: list[Outcome], lost: LostShadows) -> list[Outcome]:
    """Doubt a result that failed or stayed open where shadows were lost: no other case makes up for it."""
    bad = (Verdict.FAIL, Verdict.NO_THEOREM)
    found = _unless_lost(outcomes, lost, bad)
    if not lost.words or not any(o.output and o.verdict in bad for o in outcomes):
        return found
    return [replace(o, doubtful=True) for o in found]


def _differenced(run: LiftedRun, message: str, asked: dict[str, float]) -> Outcome:
    differences = run.differences
    if differences is None:
        return Outcome(verdict=Verdict.SKIPPED, measured=Measured(seen=CONSTANTS))
    found = Tolerance(
        step=asked["step"],
        absolute=differences.tolerance,
        largest=asked["smallest"],
        why=differences.why,
        vanishing=differences.vanishing,
    )
    return _without(found) if found.why else _outcome(found, differences, message, run.lost)


# -- in float64 --------------------------------------------------------------------------------------


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    names: list[str],
    step: float,
    tolerance: float,
    without: torch.Tensor | None,
) -> Observation:
    """Call torch.autograd.gradcheck on the subject; runs in the child."""
    call = lay_out(subject, case, device=backend.device(), gradients=False)
    tensors = [call.placed[name].tensor for name in names]

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        arguments = {**call.arguments, **dict(zip(names, inputs, strict=True))}
        output = passed_on(subject.function, **arguments)
        first: torch.Tensor = output[0] if isinstance(output, tuple | list) else output
        return first

    return attempt(backend, lambda: compared(function, tensors, step, tolerance, without))

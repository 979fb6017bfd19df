"""The backward pass is the derivative of the forward pass, by torch.autograd.gradcheck in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from verifier.arithmetic import ieee
from verifier.case import Case
from verifier.checks import Session, enclosing, gradient_names
from verifier.checks.memory import unwritten
from verifier.checks.quotients import Tolerance, compared, step_of, tolerance
from verifier.culprit import passed_on
from verifier.judge import Truth, judge
from verifier.lifting import Lifted, attempt, rests_on_lost_slots, ride, riding, watched
from verifier.ops import Op
from verifier.recipes import Plan
from verifier.runner.execute import lay_out
from verifier.runner.observation import Observation
from verifier.specification.own import constants
from verifier.subjects import Subject
from verifier.verdicts import Outcome, Verdict

NAME = "gradcheck"
ORDER = 60
JUDGES_NUMBERS = True
DEMANDS = (
    "central differences of the forward pass equal the backward pass, within proved errors of both; compiled "
    "kernels of lower precision are run lifted to float64, and their lifted results are the exact ones"
)
WHY = "forward and backward that do not belong together, whatever either of them claims to compute"
CATCHES = ("backward_with_eps_twice", "gate_constant_slightly_wrong_triton")

NATIVE_SHAPES = ((2, 5), (1, 2), (3, 4), (4, 2), (1, 12), (2, 3))
LIFTED_SHAPES = ((3, 7), (4, 33), (7, 20), (2, 5), (1, 9))
"""Rows with a tail, more than a warp, several rows for one program, an odd row, one row."""
DIFFERENCED, MOST_QUOTIENTS = "ordinary", 60
"""Hazard, and most input elements, of the cases that gradcheck is run on when lifted, for the time it takes:
each element costs two runs of the kernels. Lifted results are compared with the exact ones on every case."""
SHARP = 2.0**-30
"""A bound on lifted results above this part of their row says too little (float64 gives about 2^-44)."""

CONSTANTS = (
    "no differences are taken where the code has rounded constants that its specification does not write: it "
    "is another function then, whose truncation is not known"
)
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
    )


def lifts(dtype: str, backend: str) -> bool:
    """Return whether the subject is run lifted: compiled for a lower precision, on the machine."""
    return backend == "machine" and dtype != "float64"


def skips(subject: Subject, op: Op, dtype: str, backend: str) -> str | None:
    """Apply in float64 to what is differentiable, and to every compiled kernel of lower precision."""
    if op.own and not lifts(dtype, backend):
        return "only lifted results have a radius without a declared algorithm: compiled code, on the machine"
    if not op.own and not op.claimed(subject.claim):
        return "no algorithm is declared, so the error of a difference quotient has no bound"
    if lifts(dtype, backend):
        return None
    if not op.differentiable:
        return f"{op.name} is a backward pass itself; see gradient"
    if not subject.differentiable:
        return "declared forward only (differentiable=False)"
    if dtype != "float64":
        offered = "float64" in subject.dtypes
        return "finite differences need float64; lower precision is lifted to it on the machine alone" + (
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
    )
    return [_outcome(found, seen)]


def _names(session: Session) -> list[str]:
    known = session.subject.signature
    return [n for n in session.op.differentiable if n in known and n in session.case.given]


def _elements(session: Session) -> int:
    return sum(session.case.given[name].numel() for name in _names(session))


def _without(found: Tolerance) -> Outcome:
    if found.vanishing:
        text = "gradcheck: all derivatives by some tensor vanish on this input"
        return Outcome(verdict=Verdict.SKIPPED, message=text)
    return Outcome(verdict=Verdict.NO_THEOREM, uncovered=1, message=f"gradcheck: {found.why}")


def _outcome(found: Tolerance, seen: Observation) -> Outcome:
    facts = {**seen.facts, "tolerance": found.absolute, "step": found.step, "largest_entry": found.largest}
    if seen.facts["passed"]:
        return Outcome(verdict=Verdict.PASS, decided=1, facts=facts)
    text = f"gradcheck: the backward pass is not the derivative of the forward pass ({seen.message})"
    return Outcome(verdict=Verdict.FAIL, message=text, facts=facts, decided=1, wrong=1)


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
        evidence="float64 beside the compiled code",
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
    asked = None if found is None or found.why else {"step": found.step, "tolerance": found.absolute}
    seen = session.execute(
        experiment="verifier.checks.gradcheck:lifted", gradients=differentiates, names=names, asked=asked
    )
    wanted = (*session.subject.returns, *session.subject.mutates)
    wanted += gradient_names(session.subject, session.op) if differentiates else ()
    outcomes = [_sharp(truth, o) for o in judge(truth, seen, tuple(dict.fromkeys(wanted)))]
    if _nearly_exact(session, seen, outcomes):
        return [_nearly(seen)]
    if found is not None:
        outcomes.append(_without(found) if found.why else _outcome(found, seen))
    return _with_cause(session, _unless_lost(outcomes, seen))


def _nearly(seen: Observation) -> Outcome:
    facts = {**seen.facts, "measured": NEARLY, "doubtful": True}
    return Outcome(verdict=Verdict.UNDECIDED, message=NEARLY, facts=facts)


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
        text = f"lifted to float64, {outcome.message}: the formula is another than the op's"
        return replace(outcome, message=text)
    exact = np.asarray(truth.exact[outcome.output].high)
    scale = float(np.sqrt(np.mean(np.square(exact)))) if exact.size else 0.0
    bound = truth.bounds[outcome.output].bound if outcome.output in truth.bounds else np.array(math.inf)
    if outcome.verdict is Verdict.PASS and not float(np.max(bound, initial=0.0)) <= SHARP * max(scale, 1e-3):
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
    outcomes: list[Outcome], seen: Observation, bad: tuple[Verdict, ...] = (Verdict.FAIL,)
) -> list[Outcome]:
    """Take the verdicts of a run that failed and lost slots: the machine's loss is not the kernel's.

    A run without failure needs no such excuse.
    """
    lost = rests_on_lost_slots(seen.facts)
    facts = {k: v for k, v in seen.facts.items() if v and k != "passed"}
    failed = [o for o in outcomes if o.verdict in bad]
    if not failed or not lost:
        return [replace(o, facts={**o.facts, **facts}) for o in outcomes]
    text = f"{failed[0].message}; but lifted values were lost on the way: {lost}"
    return [Outcome(verdict=Verdict.UNDECIDED, output=failed[0].output, message=text, facts=facts)]


def lifted(
    subject: Subject,
    case: Case,
    *,
    place: Any,
    gradients: bool,
    names: list[str],
    asked: dict[str, float] | None,
) -> Observation:
    """Run the subject lifted, and gradcheck on it if asked; runs in the child."""
    from verifier.machine.arithmetics.lifted import build

    arithmetic: Any = build()
    with riding(arithmetic) as opened:
        lost = watched(opened, case)
        given = {name: t.double().numpy() for name, t in case.given.items()}
        seen, slots = ride(subject, case, place=place, opened=opened, given=given, gradients=gradients)
        if seen.status != "ok":
            return seen
        tried = Observation(status="ok")
        if asked is not None:
            function = Lifted(subject=subject, case=case, place=place, opened=opened, names=tuple(names))
            tensors = [case.given[name].double() for name in names]
            tried = attempt(place, lambda: compared(function, tensors, **asked))
            if tried.status != "ok":
                return tried
        outputs = {name: torch.from_numpy(np.array(values)) for name, values in slots.items()}
        facts = {**tried.facts, **lost.facts(), "steered_apart": arithmetic.apart[0]}
        return Observation(status="ok", outputs=outputs, message=tried.message, facts=facts)


# -- by a specification of the subject's own ----------------------------------------------------------


def _check_own(session: Session) -> list[Outcome]:
    """Compare enclosed results with the specification, and differences of them with the backward pass."""
    differentiates = session.subject.differentiable and "grad_output" in session.case.given
    names = _names(session) if differentiates else []
    settings = {
        "gradients": differentiates,
        "names": names,
        # A mean divides by the columns; many kernels are handed their reciprocal.
        "as_written": [*constants(session.subject, session.case), 1 / session.case.columns],
    }
    asked = None
    if names and session.case.hazard == DIFFERENCED and _elements(session) <= MOST_QUOTIENTS:
        step = step_of(session.case)
        known = enclosing.exact_jacobian(session.subject, session.case, names, step)
        entries = {"largest": max(known.largest), "smallest": min(known.largest)}
        asked = {"step": step, "truncation": known.truncation, **entries}
    run = "verifier.checks.enclosing:experiment"
    seen = session.execute(experiment=run, unit=enclosing.DOUBLE, asked=asked, **settings)
    gradients = gradient_names(session.subject, session.op) if names else ()
    shapes = session.shape_outcomes(enclosing.returned(seen), ("output", *gradients))
    misshapen = {o.output for o in shapes}
    wanted = tuple(n for n in (*session.subject.returns, *gradients) if n not in misshapen)
    outcomes = enclosing.judged(session.truth, seen, wanted)
    failed = [o for o in outcomes if o.verdict is Verdict.FAIL]
    if failed and len(seen.facts["constants"]) >= enclosing.POLYNOMIAL:
        single = session.execute(experiment=run, unit=enclosing.SINGLE, asked=None, **settings)
        if enclosing.explained_by_single_precision(session.truth, single, failed):
            return [*shapes, _nearly(seen)]
    if asked is not None:
        outcomes.append(_differenced(seen, asked))
    return [*shapes, *enclosing.outweighing(_with_cause(session, _doubted(outcomes, seen)))]


def _doubted(outcomes: list[Outcome], seen: Observation) -> list[Outcome]:
    """Doubt a result that failed or stayed open where slots were lost: no other case makes up for it."""
    bad = (Verdict.FAIL, Verdict.NO_THEOREM)
    found = _unless_lost(outcomes, seen, bad)
    if not rests_on_lost_slots(seen.facts) or not any(o.output and o.verdict in bad for o in outcomes):
        return found
    return [replace(o, facts={**o.facts, "doubtful": True}) for o in found]


def _differenced(seen: Observation, asked: dict[str, float]) -> Outcome:
    facts = seen.facts
    if "tolerance" not in facts:
        return Outcome(verdict=Verdict.SKIPPED, facts={"measured": CONSTANTS})
    found = Tolerance(
        step=asked["step"],
        absolute=facts["tolerance"],
        largest=asked["smallest"],
        why=facts.get("why", ""),
        vanishing=facts["vanishing"],
    )
    return _without(found) if found.why else _outcome(found, seen)


# -- in float64 --------------------------------------------------------------------------------------


def experiment(
    subject: Subject, case: Case, *, place: Any, names: list[str], step: float, tolerance: float
) -> Observation:
    """Call torch.autograd.gradcheck on the subject; runs in the child."""
    call = lay_out(subject, case, device=place.device(), gradients=False)
    tensors = [call.placed[name].tensor for name in names]

    def function(*inputs: torch.Tensor) -> torch.Tensor:
        arguments = {**call.arguments, **dict(zip(names, inputs, strict=True))}
        output: Any = passed_on(subject.function, **arguments)
        first: torch.Tensor = output[0] if isinstance(output, tuple | list) else output
        return first

    return compared(function, tensors, step, tolerance)

"""Shows what float32 parameters, or a float32 residual, do beside a half input where nothing is promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice

from verifier.arithmetic.formats import FORMATS
from verifier.audit import rules
from verifier.audit.trial import Trial
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import build
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.subject import Domain
from verifier.records.verdict import BAD, Measured, Outcome, Verdict

USUAL = "float32"
"""The dtype of parameters and residuals in training code, whatever that of the activations is."""
LISTED = 12
"""Recipes of the fixed list among which is one that fits."""
RIGHT = "right"
"""What is said of a case that passes."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """A promise that a domain may make of dtypes.

    named: what a domain promises, None where nothing. made: the domain that promises float32. must: the
    factor of plans that try it. taken: whether an op has such tensors. missing: what is said where nothing is
    promised.
    """

    named: Callable[[Domain], tuple[str, ...] | None]
    made: Callable[[Domain], Domain]
    must: str
    taken: Callable[[Op], bool]
    missing: str


OF_PARAMETERS = Promise(
    named=lambda domain: domain.parameter_dtypes,
    made=lambda domain: replace(domain, parameter_dtypes=(USUAL,)),
    must="parameter_dtype",
    taken=lambda _: True,
    missing="parameters in float32 are not promised (Domain(parameter_dtypes=...))",
)
OF_RESIDUALS = Promise(
    named=lambda domain: domain.residual_dtypes,
    made=lambda domain: replace(domain, residual_dtypes=(USUAL,)),
    must="residual_dtype",
    taken=lambda op: bool(op.alike),
    missing="a residual in float32 is not promised (Domain(residual_dtypes=...))",
)


def measured(trial: Trial, plan: Plan, promise: Promise) -> Measured | None:
    """Run one small case with float32 where it is not promised and say what came of it.

    plan: of the check, for few shapes. None: something is promised, no such tensor is taken, the input is no
    half, or the kernel refuses such a call.
    """
    case = _case(trial, plan, promise)
    if case is None:
        return None
    outcomes, _ = trial.judge(case)
    seen = _seen(rules.deciding(outcomes))
    return Measured(seen=seen, undemanded=promise.missing) if seen else None


def _case(trial: Trial, plan: Plan, promise: Promise) -> Case | None:
    """Return the first case of the fixed list in which float32 is what is odd, and nothing else."""
    subject, domain = trial.subject, trial.subject.domain or Domain()
    if promise.named(domain) is not None or promise.must not in plan.must or not promise.taken(trial.op):
        return None
    if FORMATS[trial.dtype].holds(FORMATS[USUAL]):
        return None
    promised = subject.differing(domain=promise.made(domain))
    plain = replace(plan, hazards=("ordinary",), joint=False, min_rows=1, min_columns=2)
    for recipe in islice(covering(promised, plain.within(promised.domain)), LISTED):
        case = build(trial.op, promised, trial.dtype, recipe, gradients=plan.gradients)
        if case is None or rules.outside(promised, case) or not domain.leaves_dtypes_open(case):
            continue
        if not any(defect.where is None or defect.where(case) for defect in trial.known_defects()):
            return case
    return None


def _seen(outcomes: list[Outcome]) -> str:
    """Return in words what became of the case; nothing of a refusal, which is as good as a promise."""
    bad = next((o for o in outcomes if o.verdict in BAD), None)
    if bad is not None:
        return bad.message or f"{bad.output} is wrong"
    verdict = rules.summed(o.verdict for o in outcomes)
    return RIGHT if verdict is Verdict.PASS else ""

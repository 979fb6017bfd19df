"""The error on inputs aimed at the variance stays within the bound of the algorithm that is claimed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from verifier.bounds import variance
from verifier.cases.plan import Plan
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session
from verifier.checks.support.truth import Truth
from verifier.ops import Op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

NAME = "claim"
ORDER = 150
NEEDS_A_NORM = "a specification of the subject's own claims no algorithm"
DEMANDS = (
    "on inputs that tell algorithms apart, the error stays within the bound of the variance algorithm and "
    "of the tree that the kernel claims"
)
WHY = "a kernel that is called Welford and subtracts two large sums is right on centred data, and on no other"
CATCHES = ("welford_claimed_textbook_computed", "squares_summed_in_half_triton")

# Long enough for a tree to differ from a chain, short enough that a bound is far below kappa**2 * u.
_SHAPES = ((4, 33), (3, 64), (2, 128), (2, 256), (4, 17))


def plan(subject: Subject, _op: Op) -> Plan:
    """Ask for growing |mean| / std, a tiny eps, and nothing after the statistics that could hide them."""
    return Plan(
        hazards=("cancellation", "near_constant_row", "cancellation", "one_outlier"),
        joint=False,
        shapes=_SHAPES,
        eps=(1e-12, 1e-6),
        parameters=subject.domain is not None and not subject.domain.optional,
        share=0.4,
    )


def skips(subject: Subject, op: Op, _dtype: str, _backend: str) -> str | None:
    """Apply where an algorithm and a tree are declared."""
    if "output" not in op.outputs or not op.needs_variance:
        return f"{op.name} computes no variance"
    if not subject.claims:
        return "no variance algorithm is declared"
    if subject.claim.trees.statistics.kind == "any_order":
        return "no tree is declared, and the bound for any order is too wide to tell algorithms apart"
    return None


def check(session: Session) -> list[Outcome]:
    """Judge what the code says of itself, output and statistics; growth with kappa is never judged."""
    seen = session.execute()
    outcomes = session.shape_outcomes(seen, ("output",)) or session.contradictions()
    if outcomes:
        return outcomes
    names = tuple(n for n in ("output", "mean", "rstd") if n in seen.outputs)
    judged = judge(session.truth, seen, names)
    if any(o.verdict is Verdict.FAIL for o in judged):
        like = _others(session, seen.outputs.get("output"))
        return [_explained(o, like) for o in judged]
    return judged


def _others(session: Session, output: torch.Tensor | None) -> tuple[str, ...]:
    """Name the algorithms whose bound the output keeps, although it breaks the claimed one's."""
    if output is None:
        return ()
    centred = variance.algorithm(str(session.subject.claim.variance)).CENTRED
    kept = []
    for name, module in variance.algorithms().items():
        if centred != module.CENTRED or name == session.subject.claim.variance:
            continue
        truth = replace(session.truth, subject=session.subject.differing(variance=name))
        if _keeps(truth, output):
            kept.append(name)
    return tuple(kept)


def _keeps(truth: Truth, output: torch.Tensor) -> bool:
    values = truth.op.canonical(truth.case, "output", to_float64(output))
    bounded = truth.bounds["output"]
    shape = values.shape
    covered, bound = np.broadcast_to(bounded.covered, shape), np.broadcast_to(bounded.bound, shape)
    _, high = truth.exact["output"].error_of(values)
    return bool(covered.all()) and bool((high <= bound).all())


def _explained(outcome: Outcome, like: tuple[str, ...]) -> Outcome:
    if outcome.verdict is not Verdict.FAIL or not like:
        return outcome
    return replace(outcome, message=f"{outcome.message}; it keeps that of {', '.join(like)}")

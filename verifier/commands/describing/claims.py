"""Which algorithm and which forms a kernel may claim: those whose bounds its results keep."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from verifier.arithmetic.formats import Contraction
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import any_order
from verifier.audit.claims_at_cases import ClaimAtCase, claim_at
from verifier.audit.examination import Examination
from verifier.audit.read_claim import ReadClaim, case_read
from verifier.audit.unpromised_dtypes import OF_PARAMETERS, RIGHT, measured
from verifier.bounds import table
from verifier.bounds.variance import algorithms
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import build
from verifier.checks import check
from verifier.execution import Runner
from verifier.ops import Op, op
from verifier.records.case import Case
from verifier.records.subject import Subject
from verifier.records.verdict import BAD, Measured

KAPPAS = (0.0, 1e2, 1e4)
"""Condition numbers of the mean at which the growth of errors is seen."""
CASES, COMPILED_CASES = 15, 8
"""Cases of each dtype and plan on which a declaration is tried before it is proposed: torch, compiled."""
GRADIENT_CASES, COMPILED_GRADIENT_CASES = 10, 3
"""The same of gradients."""
_PROMISE = 'To promise it: domain=Domain(parameter_dtypes=("input", "float32")).'


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a kernel may claim, and why. output, gradients: whether they keep their bounds on a few cases."""

    variance: str
    formula: Mapping[str, str | None]
    saved_dtype: str | None
    why: str
    output: bool = True
    gradients: bool = True
    accumulates: str = "float32"


THE_FORM = "the form"
"""In the place of a variance algorithm where there is none to name: the form alone is claimed."""
COMMONEST = ("two_pass", "welford", "textbook")
"""Algorithms that most kernels have, tried before the others."""
ROWS_OF_BOUNDS = 256
"""Elements of a row on which bounds of algorithms are compared; 0.03 s for all of them."""


def guesses(candidate: Op, curve: dict[float, float]) -> tuple[tuple[str, ...], str]:
    """Return algorithms that the growth with kappa suggests, the likeliest first, and what it shows."""
    if candidate.needs_variance and not candidate.needs_mean:
        return _by_likelihood(centred=False, squared=False), "the op has no mean; "
    if not candidate.needs_variance:
        only = "softmax" if "softmax" in candidate.name else THE_FORM
        return (only,), "the op has none, and this claims its only algorithm; "
    if not curve:
        return (
            _by_likelihood(centred=True, squared=False),
            "without float32 its growth of errors with kappa tells no algorithm from another; ",
        )
    seen = ", ".join(f"{v:.3g} ulp at kappa {k:g}" for k, v in curve.items())
    squared = curve[1e4] > 100 * max(curve[1e2], 1.0) * 10 and curve[1e4] > 1e5
    names = _by_likelihood(centred=True, squared=squared)
    if squared:
        return names, f"the error grows with kappa squared ({seen}); "
    return (
        names,
        f"the error does not grow with kappa squared ({seen}); ",
    )


def _by_likelihood(*, centred: bool, squared: bool) -> tuple[str, ...]:
    """Return the registered algorithms that compute a mean, or none: the common, then those that fit, first.

    squared: whether errors were seen that grow with kappa squared.
    """
    names = [name for name, found in algorithms().items() if centred == found.CENTRED]
    ranks = {name: rank for rank, name in enumerate(COMMONEST)}
    return tuple(
        sorted(
            names,
            key=lambda n: (n not in ranks, loses_large_means(n) != squared, ranks.get(n, 0), n),
        )
    )


@cache
def loses_large_means(name: str) -> bool:
    """Return whether an algorithm loses its theorem at the largest kappa of `KAPPAS`, in float32."""
    rows = table.hold_rows(ROWS_OF_BOUNDS, max(KAPPAS), "float32", 0)
    assert rows is not None
    claim = table.reduction("float32", any_order())
    return not math.isfinite(table.proved(name, exact_statistics(rows), claim).rstd)


def settled(read: ReadClaim, runner: Runner, dtype: str) -> str:
    """Say what else the compiled code settles of a declaration at the shape where it was read."""
    case = case_read(read.subject, dtype, gradients=False)
    found = None if case is None else claim_at(read.subject, case, runner, gradients=False)
    return f"{found.text}; " if isinstance(found, ClaimAtCase) else ""


def fitting(
    trial: Subject,
    runner: Runner,
    guesses: tuple[str, ...],
    dtypes: list[str],
    read: str | None,
    *,
    backward: bool,
) -> Fit:
    """Return the first algorithm, forms by dtype and formats that keep their bounds.

    read: the form that compiled code was proved to have, which is tried before the others. backward: whether
    the gradients are judged, too.
    """
    fit = _fitted(trial, runner, guesses, dtypes, read, backward=backward)
    half = next((d for d in dtypes if d in {"float16", "bfloat16"}), None)
    if (fit.output and fit.gradients) or half is None or trial.language == "torch":
        return fit
    if not _sums_in_half(trial, runner, half, backward=backward):
        return fit
    other = _fitted(trial.differing(accumulates="input"), runner, guesses, dtypes, read, backward=backward)
    if not other.output:
        return fit
    told = "the compiled code keeps sums in half precision"
    return replace(other, accumulates="input", why=f"{other.why}; {told}")


def _sums_in_half(trial: Subject, runner: Runner, half: str, *, backward: bool) -> bool:
    """Return whether compiled code contradicts sums in float32, in a case of a half dtype."""
    judged = "gradient" if backward else "forward_error"
    declared = trial.differing(dtypes=(half,), differentiable=backward)
    examination = Examination(subject=declared, check_name=judged, dtype=half, runner=runner)
    plan = check(judged).plan(declared, op(trial.op)).few_shapes()
    cases = itertools.islice(cases_of(declared, half, plan, gradients=backward), 2)
    return any(o.output == "declaration" and o.verdict in BAD for c in cases for o in examination.judge(c)[0])


def _fitted(
    trial: Subject,
    runner: Runner,
    guesses: tuple[str, ...],
    dtypes: list[str],
    read: str | None,
    *,
    backward: bool,
) -> Fit:
    """Return the same with the format of sums that the trial claims."""
    # A form that reads what the algorithm does not keep has no bounds, and would keep any.
    further = [n for n, form in op(trial.op).forms.items() if n != "canonical" and not form.reads_parts]
    if trial.language == "torch":  # torch's own operators are likelier than what looks like them
        further.sort(key=lambda name: not name.startswith("torch"))
    forms = (None, *further) if read not in further else (read, None, *(f for f in further if f != read))
    forward: dict[str, str | None] = {}
    variance = ""
    for guess in guesses:
        found = {d: next((f for f in forms if keeps(trial, runner, guess, f, d)), "") for d in dtypes}
        if "" not in found.values():
            variance, forward = guess, dict(found)
            break
    if not variance:
        why = f"none of {', '.join(guesses)} keeps its bounds on a few cases: {guesses[0]} is a guess"
        return Fit(
            variance=guesses[0], formula=dict.fromkeys(dtypes), saved_dtype=None, why=why, output=False
        )
    why = f"{variance} keeps its bounds on a few cases"
    if not backward:
        return Fit(variance=variance, formula=forward, saved_dtype=None, why=why)
    for saved in (None, "input"):
        claimed = trial.differing(saved_dtype=saved)
        both = {d: _both(claimed, runner, variance, d, first=forward[d], forms=forms) for d in dtypes}
        if "" not in both.values():
            return Fit(variance=variance, formula=both, saved_dtype=saved, why=why)
    return Fit(variance=variance, formula=forward, saved_dtype=None, why=why, gradients=False)


def _both(
    trial: Subject,
    runner: Runner,
    variance: str,
    dtype: str,
    *,
    first: str | None,
    forms: tuple[str | None, ...],
) -> str | None:
    """Return the form whose bounds gradients and output keep on a few cases, or "": `first`, if it does."""
    for form in (first, *(f for f in forms if f != first)):
        if not keeps(trial, runner, variance, form, dtype, checks=("gradient",)):
            continue
        if form == first or keeps(trial, runner, variance, form, dtype):
            return form
    return ""


def keeps(
    trial: Subject,
    runner: Runner,
    variance: str,
    form: str | None,
    dtype: str,
    *,
    checks: tuple[str, ...] = ("forward_error", "claim"),
) -> bool:
    """Return whether a few cases stay within the bounds of a declaration.

    checks: whose plans the cases are of; gradients are judged where it is "gradient".
    """
    declared = trial.differing(
        variance=variance,
        formula=form,
        mean_contraction=contraction(trial),
        divide_by_n="either",
        dtypes=(dtype,),
        assumed=frozenset({"trees", "mean_contraction", "divide_by_n", "saved_dtype"}),
    )
    backward = checks == ("gradient",)
    judged = "gradient" if backward else "forward_error"
    examination = Examination(subject=declared, check_name=judged, dtype=dtype, runner=runner)
    # Ordinary hazards, and inputs that tell algorithms apart.
    plans = [check(name).plan(declared, op(trial.op)) for name in checks]
    if trial.language == "torch":
        wanted = GRADIENT_CASES if backward else CASES
    else:
        plans = [plan.few_shapes() for plan in plans]
        wanted = COMPILED_GRADIENT_CASES if backward else COMPILED_CASES
    return all(
        not BAD & {o.verdict for o in examination.judge(case)[0]}
        for plan in plans
        for case in itertools.islice(cases_of(declared, dtype, plan, gradients=backward), wanted)
    )


def parameters(declared: Subject, runner: Runner, formula: Mapping[str, str | None]) -> list[str]:
    """Say what float32 weight and bias do beside halves, where they are not refused.

    formula: the form that keeps its bounds in each dtype.
    """
    names = ("forward_error", "gradient") if declared.differentiable else ("forward_error",)
    seen: dict[str, list[str]] = {}
    for dtype, form in formula.items():
        subject = declared.differing(formula=form, mean_contraction=contraction(declared), dtypes=(dtype,))
        found = [one.seen for name in names if (one := _measured(subject, runner, name, dtype)) is not None]
        if found:
            seen.setdefault(next((text for text in found if text != RIGHT), RIGHT), []).append(dtype)
    told = "; ".join(f"beside {' and '.join(dtypes)}: {what}" for what, dtypes in seen.items())
    promise = f" {_PROMISE}" if set(seen) == {RIGHT} else ""
    return [f"parameters in float32 {told}.{promise}"] if told else []


def _measured(subject: Subject, runner: Runner, name: str, dtype: str) -> Measured | None:
    examination = Examination(subject=subject, check_name=name, dtype=dtype, runner=runner)
    plan = check(name).plan(subject, op(subject.op))
    few = plan if subject.language == "torch" else plan.few_shapes()
    return measured(examination, few, OF_PARAMETERS)


def contraction(subject: Subject) -> Contraction:
    """Return how the mean may be fused where nothing is declared."""
    return "none" if subject.language == "torch" else "mixed"


def cases_of(subject: Subject, dtype: str, plan: Plan, *, gradients: bool) -> Iterator[Case]:
    """Yield the cases of a plan that the subject has, the fixed list of a search."""
    made = (build(op(subject.op), subject, dtype, r, gradients=gradients) for r in covering(subject, plan))
    return (case for case in made if case is not None)

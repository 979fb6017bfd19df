"""What a narrow dtype costs: errors in ulp, bits lost, and how far kappa and magnitude may go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from strategies.values import Values
from verifier.arithmetic.formats import FORMATS
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, StoppedError, gradient_names
from verifier.commands.explain import Explained, ExplainError, brief, document, explain, reason_not
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

LIMITS = (1.0, 4.0, 16.0)
ROWS, COLUMNS = 8, 512
SEEDS = (0, 1)
COMPILED = "machine"
"""Where errors are blamed on lines."""
BLAMED = (0.0, 100.0)
"""Values of |mean| / std at which they are: none, and what an fp16 input with six bits of signal has."""


@dataclass(frozen=True, kw_only=True)
class SweptInput:
    """One input of the sweep: what it is, and the errors of every output on it.

    kappa: |mean| / std asked for; magnitude: scale of the input; row_ulp: worst error per output in
    ulp at max(|exact|, the row's root mean square); mean_ulp: mean error in ulp;
    signed_ulp: mean signed error; finite: whether all outputs are.
    """

    kappa: float
    magnitude: float
    row_ulp: dict[str, float]
    mean_ulp: dict[str, float]
    signed_ulp: dict[str, float]
    finite: bool


@dataclass(frozen=True, kw_only=True)
class Account:
    """The costs of one dtype for one subject, as observed; nothing here is a bound."""

    subject: str
    dtype: str
    backend: str
    points: tuple[SweptInput, ...]
    refused: str = ""

    def worst(self, output: str, points: tuple[SweptInput, ...]) -> float:
        """Return the worst row-scaled error of an output over some points."""
        return max((p.row_ulp[output] for p in points if output in p.row_ulp), default=math.nan)


def account(subject: Subject, dtype: str, backend_name: str) -> Account:
    """Sweep kappa and magnitude on ordinary data and measure the errors against the certified truth."""
    place = backend(backend_name)
    refusal = place.refuses(subject, dtype)
    if refusal:
        return Account(subject=subject.name, dtype=dtype, backend=backend_name, points=(), refused=refusal)
    points = []
    with Runner(backend_name) as runner:
        for kappa, magnitude in _sweep(dtype):
            measured = [p for s in SEEDS if (p := _measure(subject, dtype, runner, kappa, magnitude, s))]
            points += measured
    return Account(subject=subject.name, dtype=dtype, backend=backend_name, points=tuple(points))


def _sweep(dtype: str) -> Iterator[tuple[float, float]]:
    """Yield kappa at magnitude 1, then magnitudes at kappa 0, as far as the format goes."""
    held = FORMATS[dtype]
    yield 0.0, 1.0
    for power in range(int(held.precision * math.log10(2.0)) + 1):
        yield 10.0**power, 1.0
    top = math.frexp(held.maximum)[1] - 4
    step = 2 if held.name == "float16" else 16
    for exponent in range(held.minimum_exponent + 8, top + 1, step):
        if exponent != 0:
            yield 0.0, 2.0**exponent


def _measure(  # noqa: PLR0917 (one point of a sweep)
    subject: Subject, dtype: str, runner: Runner, kappa: float, magnitude: float, seed: int
) -> SweptInput | None:
    case = _case(subject, dtype, kappa, magnitude, seed)
    if case is None or (subject.domain is not None and subject.domain.excludes(case)):
        return None
    the_op = op(subject.op)
    backward = bool(the_op.differentiable) and subject.differentiable
    place = backend(runner.backend)
    session = Session(
        subject=subject,
        case=case,
        backend=runner.backend,
        setting=place.setting(subject, dtype),
        run=runner.run,
    )
    try:
        seen = session.execute(gradients=backward)
    except StoppedError:
        return None
    if session.unlaunched:
        return None
    names = ("output", *gradient_names(subject, the_op))
    outcomes = judge(session.truth, seen, names)
    finite = all(bool(t.isfinite().all()) for t in seen.outputs.values() if t is not None)
    return _point(outcomes, kappa, magnitude, finite=finite)


def _point(outcomes: list[Outcome], kappa: float, magnitude: float, *, finite: bool) -> SweptInput:
    worst = {o.output: o.worst for o in outcomes if o.worst is not None}
    return SweptInput(
        kappa=kappa,
        magnitude=magnitude,
        row_ulp={name: w.row_ulp for name, w in worst.items()},
        mean_ulp={o.output: o.mean_ulp for o in outcomes},
        signed_ulp={o.output: o.signed_ulp for o in outcomes},
        finite=finite,
    )


def _case(subject: Subject, dtype: str, kappa: float, magnitude: float, seed: int) -> Case | None:
    values = Values(seed=seed, scale=math.frexp(magnitude)[1] - 1)
    if kappa > 0:
        values = Values(hazard="cancellation", strength=round(math.log10(kappa)), seed=seed)
    recipe = Recipe(
        rows=ROWS, columns=COLUMNS, input=values, weight=Values(seed=seed), bias=Values(seed=seed)
    )
    return build(op(subject.op), subject, dtype, recipe, gradients=True)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a narrow dtype costs a subject, and by source line where.

    explained: one account by line for each kappa in BLAMED, empty where `unexplained` says why.
    """

    account: Account
    explained: tuple[Explained, ...] = ()
    unexplained: str = ""


def cost(subject: Subject, dtype: str, backend_name: str) -> Cost:
    """Measure the errors and blame them on lines."""
    found = account(subject, dtype, backend_name)
    reason = found.refused or reason_not(subject, dtype)
    if reason:
        return Cost(account=found, unexplained=reason)
    explained = []
    with Runner(COMPILED) as runner:
        for kappa in BLAMED:
            case = _case(subject, dtype, kappa, 1.0, SEEDS[0])
            if case is None or (subject.domain is not None and subject.domain.excludes(case)):
                continue
            try:
                explained.append(explain(subject, case, runner=runner))
            except ExplainError as error:
                return Cost(account=found, explained=tuple(explained), unexplained=str(error))
    return Cost(account=found, explained=tuple(explained))


def cost_document(found: Cost) -> dict[str, object]:
    """Return the cost as JSON data: the points of the sweep and the shares of every line."""
    points = [asdict(p) for p in found.account.points]
    return {
        "subject": found.account.subject,
        "dtype": found.account.dtype,
        "backend": found.account.backend,
        "refused": found.account.refused,
        "points": points,
        "lines": [document(e) for e in found.explained],
        "unexplained": found.unexplained,
    }


def account_lines(subject: Subject, dtype: str, backend_name: str) -> Iterator[str]:
    """Yield the account as lines of text."""
    yield from cost_lines(cost(subject, dtype, backend_name))


def cost_lines(cost: Cost) -> Iterator[str]:
    """Yield a cost as lines of text."""
    yield from _account_lines(cost.account)
    if cost.account.refused:
        return
    for explained in cost.explained:
        yield f"  where the bits are lost, at kappa {explained.case.kappa:.2g}:"
        for output in explained.outputs:
            yield f"    {output.output:<12} {brief(output)}"
        if explained.lost:
            yield f"    the account has a hole: {explained.lost}"
    if cost.unexplained:
        yield f"  where the bits are lost is not shown: {cost.unexplained}"


def _account_lines(found: Account) -> Iterator[str]:
    subject, dtype, backend_name = found.subject, found.dtype, found.backend
    yield ""
    yield f"What {dtype} costs {subject} on {backend_name} ({ROWS} x {COLUMNS}, worst seen, not a bound)"
    if found.refused:
        yield f"  not measured: {found.refused}"
        return
    plain = tuple(p for p in found.points if p.kappa == 0 and p.magnitude == 1)
    if not plain:
        yield "  not measured: the subject ran on none of the inputs"
        return
    heads = "".join(f" {word:>10}" for word in ("worst ulp", "mean ulp", "signed", "bits lost"))
    yield f"  {'output':<12}{heads}   kappa within 1, 4, 16 ulp"
    for name in plain[0].row_ulp:
        worst = found.worst(name, plain)
        mean = max(p.mean_ulp[name] for p in plain if name in p.mean_ulp)
        signed = max((p.signed_ulp[name] for p in plain if name in p.signed_ulp), key=abs)
        lost = max(0.0, math.log2(worst / 0.5)) if worst > 0 else 0.0
        reach = "  ".join(_reach(found, name, limit, "kappa") for limit in LIMITS)
        yield f"  {name:<12} {worst:>10.3g} {mean:>10.3g} {signed:>+10.2g} {lost:>10.2f}   {reach}"
    yield "  worst ulp: at max(|exact|, rms of the row); bits lost: against correct rounding (0.5 ulp)"
    for name in plain[0].row_ulp:
        reach = ", ".join(f"{limit:g} ulp: {_reach(found, name, limit, 'magnitude')}" for limit in LIMITS)
        yield f"  {name}: largest magnitude within {reach}"
    yield f"  {_overflow(found)}"


def _reach(found: Account, name: str, limit: float, axis: str) -> str:
    """Return the largest kappa (or magnitude) up to which every point stays within the limit."""
    other = "magnitude" if axis == "kappa" else "kappa"
    base = 1.0 if axis == "kappa" else 0.0
    swept = sorted({getattr(p, axis) for p in found.points if getattr(p, other) == base})
    reached = None
    for value in swept:
        points = tuple(p for p in found.points if getattr(p, axis) == value and getattr(p, other) == base)
        worst = found.worst(name, points)
        if not all(p.finite for p in points) or not worst <= limit:
            if axis == "kappa" or value >= 1.0:
                break
            continue
        reached = value
    return "none" if reached is None else f"{reached:.3g}"


def _overflow(found: Account) -> str:
    bad = [p.magnitude for p in found.points if not p.finite and p.kappa == 0]
    top = max(p.magnitude for p in found.points)
    if not bad:
        return f"no overflow up to magnitude {top:.3g}"
    return f"overflows (NaN or infinity in some output) from magnitude {min(bad):.3g}"

"""What a dtype costs: errors in ulp, bits lost, and how far kappa, magnitude and columns may go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from strategies.values import Values
from verifier.arithmetic.formats import FORMATS
from verifier.audit.read_claim import with_read_claim
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import format_of
from verifier.checks.support.row_errors import RowErrors, row_errors
from verifier.checks.support.session import Session, StoppedError, result_names
from verifier.commands.explain import Explained, ExplainError, brief, document, explain, reason_not
from verifier.commands.release.alternatives import bounds_of_alternatives
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.compiled_code import CompiledCode, joined
from verifier.records.subject import Subject

LIMITS = (1.0, 4.0, 16.0)
ROWS, COLUMNS = 8, 512
GRID = (32, 128, COLUMNS, 2048, 8192)
"""Columns of the rows on which a grid of kappas is tried."""
SEEDS = (0, 1)
COMPILED = "machine"
"""Where errors are blamed on lines."""
BLAMED = (0.0, 100.0)
"""Values of |mean| / std at which they are: none, and what an fp16 input with six bits of signal has."""


@dataclass(frozen=True, kw_only=True)
class SweptInput:
    """One input of the sweep: what it is, and the errors of every output on it.

    kappa: |mean| / std asked for; magnitude: scale of the input; columns: of each of its ROWS rows.
    outputs: errors by output. finite: whether all outputs are. alternatives: what is proved of other ways of
    computing the same, see `bounds_of_alternatives`; empty where it was not asked.
    """

    kappa: float
    magnitude: float
    columns: int
    outputs: dict[str, RowErrors]
    finite: bool
    alternatives: dict[str, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Account:
    """The costs of one dtype for one subject, as observed; no error here is a bound.

    missing: inputs of the sweep, as (kappa, magnitude, columns), on which the subject has no results.
    compiled: what is known of the code that ran.
    """

    subject: str
    dtype: str
    backend: str
    points: tuple[SweptInput, ...]
    refused: str = ""
    missing: tuple[tuple[float, float, int], ...] = ()
    compiled: CompiledCode | None = None

    def worst(self, output: str, points: tuple[SweptInput, ...]) -> float:
        """Return the worst row-scaled error of an output over some points."""
        return max((p.outputs[output].worst for p in points if output in p.outputs), default=math.nan)

    @property
    def plain(self) -> tuple[SweptInput, ...]:
        """The inputs of kappa 0, magnitude 1 and the usual columns: ordinary data."""
        return tuple(p for p in self.points if (p.kappa, p.magnitude, p.columns) == (0, 1, COLUMNS))


def account(subject: Subject, dtype: str, backend_name: str, *, grid: bool = False) -> Account:
    """Sweep kappa and magnitude on ordinary data and measure the errors against the certified truth.

    grid: sweep kappa with columns, too, and ask what is proved of other ways of computing the same.
    """
    place = backend(backend_name)
    refusal = place.refuses(subject, dtype)
    if refusal:
        return Account(subject=subject.name, dtype=dtype, backend=backend_name, points=(), refused=refusal)
    points, missing, codes = [], [], []
    with Runner(backend_name) as runner:
        subject = with_read_claim(subject, runner, dtype)
        for kappa, magnitude, columns in (*_sweep(dtype), *(_grid(dtype) if grid else ())):
            for seed in SEEDS:
                case = swept_case(subject, dtype, kappa, magnitude, seed, columns)
                found = None if case is None else _measure(subject, case, runner, grid and seed == SEEDS[0])
                if found is None:
                    missing.append((kappa, magnitude, columns))
                    break
                outputs, finite, others, code = found
                codes += [code] if code is not None else []
                points.append(
                    SweptInput(
                        kappa=kappa,
                        magnitude=magnitude,
                        columns=columns,
                        outputs=outputs,
                        finite=finite,
                        alternatives=others,
                    )
                )
    return Account(
        subject=subject.name,
        dtype=dtype,
        backend=backend_name,
        points=tuple(points),
        missing=tuple(missing),
        compiled=joined(codes),
    )


def _kappas(dtype: str) -> Iterator[float]:
    """Yield 0 and powers of ten, as far as the format tells the elements of such a row apart."""
    yield 0.0
    for power in range(int(FORMATS[dtype].precision * math.log10(2.0)) + 1):
        yield 10.0**power


def _sweep(dtype: str) -> Iterator[tuple[float, float, int]]:
    """Yield kappa at magnitude 1, then magnitudes at kappa 0, as far as the format goes."""
    held = FORMATS[dtype]
    for kappa in _kappas(dtype):
        yield kappa, 1.0, COLUMNS
    top = math.frexp(held.maximum)[1] - 4
    step = 2 if held.name == "float16" else 16
    for exponent in range(held.minimum_exponent + 8, top + 1, step):
        if exponent != 0:
            yield 0.0, 2.0**exponent, COLUMNS


def _grid(dtype: str) -> Iterator[tuple[float, float, int]]:
    """Yield every kappa with every other number of columns, at magnitude 1."""
    for columns in GRID:
        if columns != COLUMNS:
            yield from ((kappa, 1.0, columns) for kappa in _kappas(dtype))


_Seen = tuple[dict[str, RowErrors], bool, dict[str, dict[str, float]], CompiledCode | None]


def _measure(subject: Subject, case: Case, runner: Runner, ask: bool) -> _Seen | None:
    """Return errors by output, whether all is finite, what alternatives are proved to give, and the code.

    None where the case is outside of what is promised, or nothing came of it. ask: whether alternatives are.
    """
    if subject.domain is not None and subject.domain.excludes(case):
        return None
    the_op = op(subject.op)
    backward = bool(the_op.differentiable) and subject.differentiable
    place = backend(runner.backend)
    session = Session(
        subject=subject,
        case=case,
        backend=runner.backend,
        setting=place.setting(subject, case.dtype),
        run=runner.run,
    )
    try:
        seen = session.execute(gradients=backward)
    except StoppedError:
        return None
    if session.unlaunched:
        return None
    names = result_names(subject, the_op)
    given = {name: tensor for name in names if (tensor := seen.outputs.get(name)) is not None}
    found = {n: e for n, tensor in given.items() if (e := row_errors(session.truth, n, tensor)) is not None}
    formats = {name: format_of(given[name]) for name in found}
    finite = all(bool(t.isfinite().all()) for t in seen.outputs.values() if t is not None)
    others = bounds_of_alternatives(session.truth, formats) if ask else {}
    return found, finite, others, session.compiled


def swept_case(  # noqa: PLR0917 (one point of a sweep)
    subject: Subject, dtype: str, kappa: float, magnitude: float, seed: int, columns: int = COLUMNS
) -> Case | None:
    """Return an input of the sweep, or None where the op has no such case."""
    values = Values(seed=seed, scale=math.frexp(magnitude)[1] - 1)
    if kappa > 0:
        values = Values(hazard="cancellation", strength=round(math.log10(kappa)), seed=seed)
    recipe = Recipe(
        rows=ROWS, columns=columns, input=values, weight=Values(seed=seed), bias=Values(seed=seed)
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


def cost(subject: Subject, dtype: str, backend_name: str, *, grid: bool = False) -> Cost:
    """Measure the errors and blame them on lines; grid: as `account`."""
    found = account(subject, dtype, backend_name, grid=grid)
    reason = found.refused or reason_not(subject, dtype)
    if reason:
        return Cost(account=found, unexplained=reason)
    explained = []
    with Runner(COMPILED) as runner:
        for kappa in BLAMED:
            case = swept_case(subject, dtype, kappa, 1.0, SEEDS[0])
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
    plain = found.plain
    if not plain:
        yield "  not measured: the subject ran on none of the inputs"
        return
    heads = "".join(f" {word:>10}" for word in ("worst ulp", "mean ulp", "signed", "bits lost"))
    yield f"  {'output':<12}{heads}   kappa within 1, 4, 16 ulp"
    for name in plain[0].outputs:
        errors = [p.outputs[name] for p in plain if name in p.outputs]
        worst, mean = found.worst(name, plain), max(e.mean for e in errors)
        signed = max((e.signed for e in errors), key=abs)
        lost = bits_lost(worst)
        reach = "  ".join(_reach(found, name, limit, "kappa") for limit in LIMITS)
        yield f"  {name:<12} {worst:>10.3g} {mean:>10.3g} {signed:>+10.2g} {lost:>10.2f}   {reach}"
    yield "  worst ulp: at max(|exact|, rms of the row); bits lost: against correct rounding (0.5 ulp)"
    for name in plain[0].outputs:
        reach = ", ".join(f"{limit:g} ulp: {_reach(found, name, limit, 'magnitude')}" for limit in LIMITS)
        yield f"  {name}: largest magnitude within {reach}"
    yield f"  {_overflow(found)}"


def bits_lost(worst: float, rounded: float = 0.5) -> float:
    """Return the bits that an error in ulp costs beyond that of the correctly rounded result."""
    return max(0.0, math.log2(worst / rounded)) if worst > 0 and rounded > 0 else 0.0


_ORDINARY = {"kappa": 0.0, "magnitude": 1.0, "columns": COLUMNS}


def furthest(found: Account, name: str, limit: float, axis: str) -> float | None:
    """Return the largest kappa, magnitude or columns up to which every point stays within the limit.

    axis: "kappa", "magnitude" or "columns"; the other two are those of ordinary data. Magnitudes count from
    1 on. A point without a result is not within. None: already the first is not.
    """
    others = {other: usual for other, usual in _ORDINARY.items() if other != axis}
    missing = {
        point[axis]
        for point in (dict(zip(_ORDINARY, one, strict=True)) for one in found.missing)
        if all(point[other] == usual for other, usual in others.items())
    }
    along = [p for p in found.points if all(getattr(p, o) == usual for o, usual in others.items())]
    reached: float | None = None
    for value in sorted({getattr(p, axis) for p in along} | missing):
        if axis == "magnitude" and value < 1.0:
            continue
        points = tuple(p for p in along if getattr(p, axis) == value)
        whole = value not in missing and all(p.finite and name in p.outputs for p in points)
        if not whole or not found.worst(name, points) <= limit:
            break
        reached = value
    return reached


def overflows_from(found: Account) -> float | None:
    """Return the least magnitude with NaN or infinity in some output, or None."""
    return min((p.magnitude for p in found.points if not p.finite and p.kappa == 0), default=None)


def _reach(found: Account, name: str, limit: float, axis: str) -> str:
    reached = furthest(found, name, limit, axis)
    return "none" if reached is None else f"{reached:.3g}"


def _overflow(found: Account) -> str:
    least = overflows_from(found)
    if least is None:
        return f"no overflow up to magnitude {max(p.magnitude for p in found.points):.3g}"
    return f"overflows (NaN or infinity in some output) from magnitude {least:.3g}"

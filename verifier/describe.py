"""Proposes a declaration for a kernel that has none, from its signature and its behaviour."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategies.values import Values
from verifier.audit import SelectionError
from verifier.backends import backend, default_backend
from verifier.case import Case
from verifier.checks import Session, StoppedError
from verifier.judge import judge
from verifier.loading import load
from verifier.ops import Op, op, ops
from verifier.recipes import Recipe, build
from verifier.runner import Runner
from verifier.subjects import Claim, Subject
from verifier.variance import algorithms

DTYPES = ("float32", "float16", "bfloat16", "float64")
KAPPAS = (0.0, 1e2, 1e4)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A declaration with what speaks for it."""

    op: str
    language: str
    dtypes: tuple[str, ...]
    variance: str | None
    differentiable: bool
    growth: dict[float, float]
    remarks: tuple[str, ...]


def describe(path: Path, function: str | None = None) -> str:
    """Return a proposed declaration for a function of a Python file, as text to paste.

    Raises:
        LoadError: the file does not load.
        SelectionError: it has no such function, or several and none is named.

    """
    wrapper = _function(path, function)
    proposal = propose(path, wrapper)
    names = ", ".join(f'"{d}"' for d in proposal.dtypes)
    lines = [
        "from verifier import subject, tree",
        "",
        f'@subject(op="{proposal.op}", language="{proposal.language}", variance={proposal.variance!r},',
        f'         accumulates="float32", dtypes=({names}{"," if len(proposal.dtypes) == 1 else ""}),',
        f"         differentiable={proposal.differentiable},",
        "         trees=tree(lanes=...))  # the lanes that share a row: threads, or columns of a block",
        f"def {wrapper.__name__}{inspect.signature(wrapper)}: ...",
        "",
        *(f"# {remark}" for remark in proposal.remarks),
    ]
    return "\n".join(lines)


def propose(path: Path, wrapper: Callable[..., Any]) -> Proposal:
    """Find the op by signature and by value, the dtypes by trying them, the variance by error growth."""
    language, how = _language(path)
    remarks = [f"language {language}: {how}"]
    for candidate in _candidates(wrapper):
        trial = _subject(path, wrapper, candidate, language)
        place, missing = default_backend(trial)
        if place is None:
            raise SelectionError(f"nothing here can run it: {missing}")
        with Runner(place) as runner:
            errors = _errors(trial, runner, "float32", 0.0, gradients=False)
            if errors is None or not errors.get("output", math.inf) < _PLAUSIBLE_ULP:
                continue
            dtypes = [d for d in DTYPES if _accepts(trial, runner, d)]
            growth = {k: _errors(trial, runner, "float32", k, gradients=False) or {} for k in KAPPAS}
            backward = _errors(trial, runner, dtypes[0], 0.0, gradients=True)
        curve = {k: v.get("output", math.nan) for k, v in growth.items()}
        variance, why = _variance(candidate, curve)
        remarks.append(f"op {candidate.name}: ordinary data gives it within {errors['output']:.3g} ulp")
        remarks.append(why)
        remarks += [] if backward else ["no backward pass is connected to the output"]
        remarks.append("declare the reduction tree: without it the bound holds for any order and is weak")
        return Proposal(
            op=candidate.name,
            language=language,
            dtypes=tuple(dtypes),
            variance=variance,
            differentiable=backward is not None,
            growth=curve,
            remarks=tuple(remarks),
        )
    tried = ", ".join(c.name for c in _candidates(wrapper)) or "none has these arguments"
    called = f"{wrapper.__name__}{inspect.signature(wrapper)}"
    raise SelectionError(f"{called} behaves like no op known here (tried: {tried})")


_PLAUSIBLE_ULP = 1e4
"""float32 error up to which a result on ordinary data is taken for the op with roundings: 2**-10 relative."""


def _variance(candidate: Op, curve: dict[float, float]) -> tuple[str | None, str]:
    if candidate.name.startswith("rms"):
        return "rms", "variance rms: the op has no mean"
    if not candidate.needs_variance:
        return None, "no variance is involved"
    known = algorithms()
    at = {k: f"{v:.3g}" for k, v in curve.items()}
    seen = ", ".join(f"{v} ulp at kappa {k:g}" for k, v in at.items())
    quadratic = curve[1e4] > 100 * max(curve[1e2], 1.0) * 10 and curve[1e4] > 1e5
    guess = "textbook" if quadratic and "textbook" in known else "two_pass"
    reason = (
        "the error grows with kappa squared" if quadratic else "the error does not grow with kappa squared"
    )
    return guess, f"variance {guess}: {reason} ({seen}); a guess: welford looks like two_pass from outside"


def _function(path: Path, name: str | None) -> Callable[..., Any]:
    loaded = load(path)
    functions = {
        n: v
        for n, v in vars(loaded.module).items()
        if (inspect.isfunction(v) and v.__module__ == loaded.module.__name__) or isinstance(v, Subject)
    }
    plain = {n: v.function if isinstance(v, Subject) else v for n, v in functions.items()}
    if name is not None:
        if name not in plain:
            raise SelectionError(f"{path} has no function {name!r}; it has {', '.join(plain) or 'none'}")
        return plain[name]
    likely = {n: f for n, f in plain.items() if not n.startswith("_") and _candidates(f)}
    if len(likely) != 1:
        found = ", ".join(likely) or "none"
        raise SelectionError(f"{path}: name the function with --function; those that take an input: {found}")
    return next(iter(likely.values()))


def _candidates(wrapper: Callable[..., Any]) -> list[Op]:
    """Return the ops whose arguments cover the function's, the closest first."""
    required = {
        n
        for n, p in inspect.signature(wrapper).parameters.items()
        if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    }
    fitting = []
    for candidate in (o for o in ops().values() if not o.own):
        scalars = candidate.shapes(2, 4, 0)
        known = {*candidate.tensors, "eps", *(scalars.scalars if scalars else ())}
        if "output" in candidate.outputs and "input" in required and required <= known:
            fitting.append((len(known - required), candidate))
    return [c for _, c in sorted(fitting, key=lambda item: (item[0], item[1].name))]


def _language(path: Path) -> tuple[str, str]:
    text = path.read_text(encoding="utf-8")
    if "@triton.jit" in text or "import triton" in text:
        return "triton", "the file uses Triton"
    if path.with_suffix(".cu").is_file():
        return "cuda", f"{path.with_suffix('.cu').name} stands beside it"
    return "torch", "the file uses neither Triton nor CUDA C++"


def _subject(path: Path, wrapper: Callable[..., Any], candidate: Op, language: str) -> Subject:
    return Subject(
        function=wrapper,
        name=wrapper.__name__,
        path=path.resolve(),
        op=candidate.name,
        language=language,  # type: ignore[arg-type]
        dtypes=DTYPES,
        claim=Claim(),
    )


def _accepts(trial: Subject, runner: Runner, dtype: str) -> bool:
    if backend(runner.backend).refuses(trial, dtype):
        return False
    errors = _errors(trial, runner, dtype, 0.0, gradients=False)
    return errors is not None and errors.get("output", math.inf) < _PLAUSIBLE_ULP


def _errors(
    trial: Subject, runner: Runner, dtype: str, kappa: float, *, gradients: bool
) -> dict[str, float] | None:
    """Return the worst row-scaled error of each output on one case, or None if it does not run."""
    case = _case(trial, dtype, kappa)
    if case is None:
        return None
    place = backend(runner.backend)
    session = Session(
        subject=trial,
        case=case,
        backend=runner.backend,
        setting=place.setting(trial, dtype),
        run=runner.run,
    )
    try:
        seen = session.execute(gradients=gradients)
    except StoppedError:
        return None
    names = ("output", "grad_input") if gradients else ("output",)
    return {o.output: o.worst.row_ulp for o in judge(session.truth, seen, names) if o.worst}


def _case(trial: Subject, dtype: str, kappa: float) -> Case | None:
    values = Values(hazard="cancellation", strength=round(math.log10(kappa))) if kappa else Values()
    recipe = Recipe(rows=4, columns=256, input=values, weight=Values(seed=1), bias=Values(seed=2))
    return build(op(trial.op), trial, dtype, recipe, gradients=True)

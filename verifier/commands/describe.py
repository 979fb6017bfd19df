"""Proposes a declaration for a kernel that has none, from its signature and its behaviour."""

from __future__ import annotations

import inspect
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from strategies.values import Values
from verifier.arithmetic.formats import Contraction
from verifier.arithmetic.row_statistics import exact_statistics
from verifier.arithmetic.trees.tree import any_order
from verifier.audit.examination import Examination
from verifier.audit.request import SelectionError
from verifier.audit.unpromised_dtypes import RIGHT, measured
from verifier.bounds import table
from verifier.bounds.variance import algorithms
from verifier.cases.fixed_list import covering
from verifier.cases.plan import Plan
from verifier.cases.recipe import Recipe, build
from verifier.checks import check
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, StoppedError
from verifier.execution import Runner
from verifier.execution.backends import backend, default_backend
from verifier.execution.trial_import import try_out
from verifier.ops import Op, op, ops
from verifier.records.case import Case
from verifier.records.subject import Claim, Subject
from verifier.records.verdict import BAD, Measured
from verifier.subjects.load_file import load

DTYPES = ("float32", "float16", "bfloat16", "float64")
KAPPAS = (0.0, 1e2, 1e4)
CASES, COMPILED_CASES = 15, 8
"""Cases of each dtype and plan on which a declaration is tried before it is proposed: torch, compiled."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A declaration with what speaks for it."""

    op: str
    language: str
    dtypes: tuple[str, ...]
    variance: str
    formula: Mapping[str, str | None]
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
    names = ", ".join(f'"{d}"' for d in proposal.dtypes) + ("," if len(proposal.dtypes) == 1 else "")
    called = f"{wrapper.__name__}{inspect.signature(wrapper)}"
    return "\n".join(
        (
            *_comment(f"Paste this above {called}; correct what you know better."),
            "from verifier import subject",
            "",
            "",
            "@subject(",
            f'    op="{proposal.op}",',
            f'    language="{proposal.language}",',
            f'    variance="{proposal.variance}",',
            '    accumulates="float32",',
            *([f"    formula={_formula_text(proposal.formula)},"] if any(proposal.formula.values()) else []),
            f"    dtypes=({names}),",
            *([] if proposal.differentiable else ["    differentiable=False,"]),
            ")",
            *(line for remark in (*proposal.remarks, *_origin(path, wrapper)) for line in _comment(remark)),
        )
    )


def _formula_text(formula: Mapping[str, str | None]) -> str:
    """Return the forms as the declaration has them: one name, or one for each dtype that has one."""
    named = {dtype: form or "canonical" for dtype, form in formula.items()}
    text = repr(named) if len(set(named.values())) > 1 else repr(next(iter(named.values())))
    return text.replace("'", '"')


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, width=100, initial_indent="# ", subsequent_indent="#   ")


def propose(path: Path, wrapper: Callable[..., object]) -> Proposal:
    """Find the op by signature and by value, the dtypes by trying them, the variance by error growth."""
    language, how = _language(path)
    remarks = [f"language {language}: {how}"]
    tried = []
    for candidate in _candidates(wrapper):
        trial = _subject(path, wrapper, candidate, language)
        place, missing = default_backend(trial)
        if place is None:
            raise SelectionError(f"nothing here can run it: {missing}")
        with Runner(place) as runner:
            found, errors, obstacle = _recognised(trial, runner)
            if not found:
                tried.append(f"{candidate.name}: {obstacle}")
                continue
            dtypes = [d for d in DTYPES if _accepts(trial, runner, d)]
            wide = found == "float32"
            growth = {k: _errors(trial, runner, _case(trial, found, k))[0] for k in KAPPAS if wide}
            backward, _ = _errors(trial, runner, _case(trial, dtypes[0], 0.0), gradients=True)
            overflows = wide and not _holds(trial, runner, LARGE)
            curve = {k: v.get("output", math.nan) for k, v in growth.items()}
            guesses, seen = _guesses(candidate, curve)
            variance, formula, why = _fitting(trial, runner, guesses, dtypes)
            declared = trial.differing(variance=variance, differentiable=bool(backward))
            parameters = _parameters(declared, runner, formula)
        remarks.append(
            f"op {candidate.name}: ordinary data gives it within {errors['output']:.3g} ulp"
            + ("" if wide else f" of {found}; it takes no float32 ({obstacle})")
        )
        remarks.append(f"variance: {seen}{why}")
        remarks += [] if backward else ["differentiable: no backward pass is connected to the output"]
        if backward and language == "torch" and "autograd" in candidate.forms:
            remarks.append(_AUTOGRAD)
        remarks += [_DOMAIN] if overflows else []
        remarks += parameters
        remarks.append(_TREES)
        return Proposal(
            op=candidate.name,
            language=language,
            dtypes=tuple(dtypes),
            variance=variance,
            formula=formula,
            differentiable=bool(backward),
            growth=curve,
            remarks=tuple(remarks),
        )
    called = f"{wrapper.__name__}{inspect.signature(wrapper)}"
    listed = "; ".join(tried) or "none has these arguments"
    raise SelectionError(f"{called} behaves like no op known here (tried: {listed})")


LARGE = 1e30
"""|input| whose squares overflow in float32, but no norm of it does."""
_TREES = (
    "trees: not declared, so that bounds hold for any order of the sums and are weak. Of a block of 256 "
    "threads that shares a row: trees=tree(lanes=256); of tiles: trees=tile(block=1024, threads=128)."
)
_DOMAIN = (
    f"domain: inputs of {LARGE:g} do not come out right. Without a domain no theorem judges such rows, and "
    "only results that are not finite are findings. To say what you promise: "
    "domain=Domain(max_abs=1e15, max_kappa=1e3)."
)
_PROMISE = 'To promise it: domain=Domain(parameter_dtypes=("input", "float32")).'
_AUTOGRAD = (
    "differentiable: where autograd differentiates torch operators one by one, gradients have another order "
    'of operations than the canonical form: formula="autograd" says so; differentiable=False demands none.'
)
_PLAUSIBLE_ULP = 1e4
"""float32 error up to which a result on ordinary data is taken for the op with roundings: 2**-10 relative."""
_RECOGNISED_ULP = {"float32": _PLAUSIBLE_ULP, "float16": 8.0, "bfloat16": 4.0, "float64": _PLAUSIBLE_ULP}
"""The same where only one dtype tells the op: 2**-7 and 2**-5 relative in half, where ops differ by 2**-4."""


COMMONEST = ("two_pass", "welford", "textbook")
"""Algorithms that most kernels have, tried before the others."""
ROWS_OF_BOUNDS = 256
"""Elements of a row on which bounds of algorithms are compared; 0.03 s for all of them."""


def _guesses(candidate: Op, curve: dict[float, float]) -> tuple[tuple[str, ...], str]:
    """Return algorithms that the growth with kappa suggests, the likeliest first, and what it shows."""
    if candidate.name.startswith("rms"):
        return _by_likelihood(centred=False, squared=False), "the op has no mean; "
    if not candidate.needs_variance:
        return ("softmax",), "the op has none, and this claims its only algorithm; "
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
        f"the error does not grow with kappa squared ({seen}); welford looks like two_pass from outside; ",
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
            key=lambda n: (n not in ranks, _loses_large_means(n) != squared, ranks.get(n, 0), n),
        )
    )


@cache
def _loses_large_means(name: str) -> bool:
    """Return whether an algorithm loses its theorem at the largest kappa of `KAPPAS`, in float32."""
    rows = table.hold_rows(ROWS_OF_BOUNDS, max(KAPPAS), "float32", 0)
    assert rows is not None
    claim = table.reduction("float32", any_order())
    return not math.isfinite(table.proved(name, exact_statistics(rows), claim).rstd)


def _fitting(
    trial: Subject, runner: Runner, guesses: tuple[str, ...], dtypes: list[str]
) -> tuple[str, dict[str, str | None], str]:
    """Return the first algorithm and forms by dtype that keep their bounds, and how it went."""
    forms = (None, *(name for name in op(trial.op).forms if name != "canonical"))
    for variance in guesses:
        found = {d: next((f for f in forms if _keeps(trial, runner, variance, f, d)), "") for d in dtypes}
        if "" not in found.values():
            return variance, found, f"{variance} keeps its bounds on a few cases"
    why = f"none of {', '.join(guesses)} keeps its bounds on a few cases: {guesses[0]} is a guess"
    return guesses[0], dict.fromkeys(dtypes), why


def _keeps(trial: Subject, runner: Runner, variance: str, form: str | None, dtype: str) -> bool:
    """Return whether a few cases stay within the bounds of a declaration."""
    declared = trial.differing(
        variance=variance,
        formula=form,
        mean_contraction=_contraction(trial),
        divide_by_n="either",
        dtypes=(dtype,),
        assumed=frozenset({"trees", "mean_contraction", "divide_by_n", "saved_dtype"}),
    )
    examination = Examination(subject=declared, check_name="forward_error", dtype=dtype, runner=runner)
    the_op = op(trial.op)
    # Ordinary hazards, and inputs that tell algorithms apart.
    plans = [check(name).plan(declared, the_op) for name in ("forward_error", "claim")]
    if trial.language != "torch":
        plans = [plan.few_shapes() for plan in plans]
    wanted = CASES if trial.language == "torch" else COMPILED_CASES
    return all(
        not BAD & {o.verdict for o in examination.judge(case)[0]}
        for plan in plans
        for case in itertools.islice(_cases(declared, dtype, plan), wanted)
    )


def _parameters(declared: Subject, runner: Runner, formula: Mapping[str, str | None]) -> list[str]:
    """Say what float32 weight and bias do beside halves, where they are not refused.

    formula: the form that keeps its bounds in each dtype.
    """
    names = ("forward_error", "gradient") if declared.differentiable else ("forward_error",)
    seen: dict[str, list[str]] = {}
    for dtype, form in formula.items():
        subject = declared.differing(formula=form, mean_contraction=_contraction(declared), dtypes=(dtype,))
        found = [one.seen for name in names if (one := _measured(subject, runner, name, dtype)) is not None]
        if found:
            seen.setdefault(next((text for text in found if text != RIGHT), RIGHT), []).append(dtype)
    told = "; ".join(f"beside {' and '.join(dtypes)}: {what}" for what, dtypes in seen.items())
    promise = f" {_PROMISE}" if set(seen) == {RIGHT} else ""
    return [f"parameters in float32 {told}.{promise}"] if told else []


def _measured(subject: Subject, runner: Runner, name: str, dtype: str) -> Measured | None:
    examination = Examination(subject=subject, check_name=name, dtype=dtype, runner=runner)
    plan = check(name).plan(subject, op(subject.op))
    return measured(examination, plan if subject.language == "torch" else plan.few_shapes())


def _contraction(subject: Subject) -> Contraction:
    return "none" if subject.language == "torch" else "mixed"


def _cases(subject: Subject, dtype: str, plan: Plan) -> Iterator[Case]:
    made = (build(op(subject.op), subject, dtype, r, gradients=False) for r in covering(subject, plan))
    return (case for case in made if case is not None)


def _function(path: Path, name: str | None) -> Callable[..., object]:
    try_out(path)
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


def _origin(path: Path, wrapper: Callable[..., object]) -> Iterator[str]:
    """Yield what the file says of the document that the function is taken from, if it declares it."""
    for declared in load(path).subjects:
        if declared.function is wrapper and (source := declared.source) is not None:
            told = f"author or site: {source.author}{f', {source.url}' if source.url else ''}"
            yield f"source: {source.summary} ({told}; licence: {source.licence})"


def _candidates(wrapper: Callable[..., object]) -> list[Op]:
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


def _subject(path: Path, wrapper: Callable[..., object], candidate: Op, language: str) -> Subject:
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
    return _plausible(_errors(trial, runner, _case(trial, dtype, 0.0))[0])


def _recognised(trial: Subject, runner: Runner) -> tuple[str, dict[str, float], str]:
    """Return the first dtype that gives the op's results, or "", their errors, and the first obstacle."""
    obstacle = ""
    for dtype in DTYPES:
        if backend(runner.backend).refuses(trial, dtype):
            continue
        errors, why = _errors(trial, runner, _case(trial, dtype, 0.0))
        if errors.get("output", math.inf) < _RECOGNISED_ULP[dtype]:
            return dtype, errors, obstacle
        if errors:  # It ran and is another op: the next dtype would only say so less clearly.
            return "", {}, f"{obstacle}; {dtype}: {why}" if obstacle else why
        obstacle = obstacle or why
    return "", {}, obstacle


def _plausible(errors: dict[str, float]) -> bool:
    return errors.get("output", math.inf) < _PLAUSIBLE_ULP


def _holds(trial: Subject, runner: Runner, size: float) -> bool:
    """Return whether the result is still right in float32 where the largest input has this size."""
    case = _case(trial, "float32", 0.0)
    if case is None:
        return True
    largest = case.given["input"].abs().max()
    tensors = {**case.tensors, "input": case.given["input"] * (size / largest)}
    return _plausible(_errors(trial, runner, replace(case, tensors=tensors))[0])


def _errors(
    trial: Subject, runner: Runner, case: Case | None, *, gradients: bool = False
) -> tuple[dict[str, float], str]:
    """Return the worst row-scaled error of each output on one case, none if it does not run; and in words."""
    if case is None:
        return {}, "its arguments do not fit"
    place = backend(runner.backend)
    session = Session(
        subject=trial,
        case=case,
        backend=runner.backend,
        setting=place.setting(trial, case.dtype),
        run=runner.run,
    )
    try:
        seen = session.execute(gradients=gradients)
    except StoppedError as stopped:
        return {}, stopped.outcome.message
    if session.unlaunched:
        return {}, session.unlaunched[0]
    names = ("output", "grad_input") if gradients else ("output",)
    found = {o.output: o.worst.row_ulp for o in judge(session.truth, seen, names) if o.worst}
    return found, f"off by {found['output']:.3g} ulp" if "output" in found else "no output to compare"


def _case(trial: Subject, dtype: str, kappa: float) -> Case | None:
    values = Values(hazard="cancellation", strength=round(math.log10(kappa))) if kappa else Values()
    recipe = Recipe(rows=4, columns=256, input=values, weight=Values(seed=1), bias=Values(seed=2))
    return build(op(trial.op), trial, dtype, recipe, gradients=True)

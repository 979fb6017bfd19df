"""Says on which source line each output of a compiled kernel loses its bits."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from strategies.values import Values
from verifier.arithmetic.formats import FORMATS, Array
from verifier.audit.request import SelectionError
from verifier.cases.recipe import build, recorded_recipe, with_own_default
from verifier.cases.saved_case import read_case
from verifier.checks.support.truth import Truth
from verifier.execution import Runner
from verifier.execution.backend import Backend
from verifier.execution.backends import backend
from verifier.execution.shadow_experiment import lost, run_with_arithmetic
from verifier.execution.trial_import import try_out
from verifier.ops import op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import ADDED, PARAMETERS, Subject
from verifier.subjects.load_file import load_subjects

WIDTH = 50
"""Characters of a source line in a summary."""
CALLERS = 3
"""Lines of callers that are shown of a place."""
SHOWN = 0.001
"""Lines below this share of both errors are summed up in one row of the text."""


class ExplainError(ValueError):
    """A subject or case whose errors cannot be blamed on lines; the message says why."""


_Place = tuple[tuple[tuple[str, int], ...], str]
"""Frames and word of a share."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one place adds to the error of one output.

    frames: its source lines as (file, line), innermost first; word: what it is if it has none.
    rms: its share of the squared error of all elements, worst: of the worst element's error; the shares of an
    output add up to 1, and one that cancels others is negative. error: the part's root mean square, absolute.
    """

    frames: tuple[tuple[str, int], ...]
    word: str
    rms: float
    worst: float
    error: float


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The error of one output, by source line.

    rms, worst: absolute errors; index: of the worst element in canonical rows. shares: largest first.
    gap: the largest |error - sum of its parts| over all elements, absolute. left_out: elements not finite.
    """

    output: str
    rms: float
    worst: float
    index: tuple[int, ...]
    shares: tuple[Share, ...]
    gap: float
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Explained:
    """The errors of all outputs of one execution. lost: where the account has a hole, in words."""

    subject: str
    case: Case
    outputs: tuple[Explanation, ...]
    lost: str


WITHOUT_ROUNDING = "no rounding: the formula itself, or its constants and arguments in the kernel's format"


def reason_not(subject: Subject, dtype: str) -> str | None:
    """Return why errors of this subject cannot be blamed on lines, or None."""
    if subject.language == "torch":
        return (
            f"{subject.name} is made of torch operators, which are not compiled from its lines; "
            "explain takes Triton and CUDA C++ kernels"
        )
    if dtype not in subject.dtypes:
        return f"{subject.name} does not declare {dtype}; it has {', '.join(subject.dtypes)}"
    if dtype == "float64":
        return "explain gives floats float64 shadows, which says nothing of float64 kernels"
    place = backend("machine")
    refusal: str | None = place.refuses(subject, dtype)
    return refusal


def explain(subject: Subject, case: Case, *, runner: Runner) -> Explained:
    """Run a case on the machine and blame the error of every output and gradient on lines.

    Raises:
        ExplainError: the subject has no lines to blame, or did not run on the case.

    """
    reason = reason_not(subject, case.dtype)
    if reason:
        raise ExplainError(reason)
    backward = bool(op(case.op).differentiable) and subject.differentiable and "grad_output" in case.given
    seen = runner.run(subject, case, experiment="verifier.commands.explain:attribute", gradients=backward)
    if seen.status != "ok":
        raise ExplainError(f"{subject.name} did not run on this case: {seen.message}")
    if seen.unlaunched:
        raise ExplainError(f"{subject.name} has no lines to blame on this case: {seen.unlaunched}")
    truth = Truth(subject=subject, case=case, setting=backend("machine").setting(subject, case.dtype))
    names = [n for n in seen.outputs if "|" not in n and f"{n}|parts" in seen.outputs]
    outputs = tuple(found for n in names if (found := _explanation(truth, n, seen)) is not None)
    return Explained(subject=subject.name, case=case, outputs=outputs, lost=seen.found_as(Attributed).lost)


def attribute(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute twice, to find the lines that err and to give each a part; called in the child."""
    from verifier.machine.shadow.arithmetics.attribution import Attribution, ErringLines

    file = str(subject.path)
    erring_lines = ErringLines(file)
    seen, _ = run_with_arithmetic(
        subject, case, backend=backend, arithmetic=erring_lines, gradients=gradients
    )
    if seen.status != "ok":
        return seen
    arithmetic = Attribution(file, sorted(erring_lines.erring))
    seen, opened = run_with_arithmetic(
        subject, case, backend=backend, arithmetic=arithmetic, gradients=gradients
    )
    if seen.status != "ok":
        return seen
    assert opened.slots is not None
    outputs = dict(seen.outputs)
    for name, tensor in seen.outputs.items():
        if tensor is not None and tensor.is_floating_point() and tensor.numel():
            shadows = opened.slots.get(tensor)
            outputs[f"{name}|exact"] = torch.from_numpy(np.ascontiguousarray(shadows["exact"]))
            outputs[f"{name}|parts"] = torch.from_numpy(np.ascontiguousarray(shadows["parts"]))
    holes = [lost(opened.slots.counters)]
    if arithmetic.unknown:
        holes.append(f"operations without a rule: {', '.join(sorted(arithmetic.unknown))}")
    attributed = Attributed(
        places=tuple((p.frames, p.word) for p in arithmetic.places), lost="; ".join(h for h in holes if h)
    )
    return Observation(status="ok", outputs=outputs, found=attributed)


@dataclass(frozen=True, kw_only=True)
class Attributed:
    """The places that parts of the errors belong to, each as frames and a word.

    lost: where parts were lost, in words.
    """

    places: tuple[_Place, ...]
    lost: str


def _explanation(truth: Truth, name: str, seen: Observation) -> Explanation | None:
    """Split the error of one output; None where nothing can be compared."""
    actual, exact, parts = (seen.outputs[key] for key in (name, f"{name}|exact", f"{name}|parts"))
    assert actual is not None
    assert exact is not None
    assert parts is not None
    if name not in truth.exact or actual.numel() != math.prod(truth.shape_of(name)):
        return None

    def canonical(array: Array) -> Array:
        return np.asarray(truth.op.canonical(truth.case, name, array.reshape(tuple(actual.shape))))

    values, ideal = canonical(to_float64(actual)), canonical(exact.numpy())
    split = np.stack([canonical(parts.numpy()[..., k]) for k in range(parts.shape[-1])], axis=-1)
    certified = truth.exact[name]
    with np.errstate(all="ignore"):
        error = (values - certified.high) - certified.low
        formula = (ideal - certified.high) - certified.low
    split = np.concatenate([split, formula[..., None]], axis=-1)
    places = (*seen.found_as(Attributed).places, ((), WITHOUT_ROUNDING))
    return _shares(name, error, split, places)


def _shares(name: str, error: Array, split: Array, places: tuple[_Place, ...]) -> Explanation:
    usable = np.isfinite(error) & np.isfinite(split).all(axis=-1)
    left_out = int(np.sum(~usable))
    error = np.where(usable, error, 0.0)
    split = np.where(usable[..., None], split, 0.0)
    total = float(np.sum(error * error))
    at = np.unravel_index(int(np.argmax(np.abs(error))), error.shape)
    worst = float(error[at])
    count = max(int(np.sum(usable)), 1)
    shares = []
    for number, (frames, word) in enumerate(places):
        part = split[..., number]
        if np.any(part):
            rms = float(np.sum(part * error)) / total if total else 0.0
            share = float(part[at]) / worst if worst else 0.0
            size = math.sqrt(float(np.sum(part * part)) / count)
            shares.append(Share(frames=frames, word=word, rms=rms, worst=share, error=size))
    return Explanation(
        output=name,
        rms=math.sqrt(total / count),
        worst=abs(worst),
        index=tuple(int(i) for i in at),
        shares=tuple(sorted(shares, key=lambda s: -abs(s.rms))),
        gap=float(np.max(np.abs(error - split.sum(axis=-1)), initial=0.0)),
        left_out=left_out,
    )


# What to explain


def case_of(path: Path, kernel: Path | None = None) -> tuple[Subject, Case]:
    """Return the subject and the case of a saved case file.

    Raises:
        CaseError: the file is not a case, or does not say which subject it belongs to.
        SelectionError: there is no such subject.
        LoadError: the kernel file does not load.

    """
    saved = read_case(path, kernel)
    case, subject = saved.case, subject_of(saved.kernel, saved.subject)
    if subject.op != case.op:
        raise SelectionError(f"the case is one of {case.op}, but {subject.name} declares {subject.op}")
    return subject, with_own_default(op(case.op), subject, case)


def subject_of(path: Path, name: str | None) -> Subject:
    """Return the subject of a kernel file, by name if it has several.

    Raises:
        SelectionError: no such subject, or several and no name.
        LoadError: the file does not load.

    """
    try_out(path)
    found = {s.name: s for s in load_subjects(path)}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        problem = "declares several subjects; choose one with --subject:" if name is None else f"no {name!r};"
        raise SelectionError(f"{path}: {problem} {', '.join(found)}")
    return found[name]


def case_for(  # noqa: PLR0917 (what a user may choose)
    subject: Subject,
    dtype: str | None,
    rows: int,
    columns: int,
    kappa: float,
    seed: int,
    *,
    evaluation: bool = False,
    recorded: bool = False,
) -> Case:
    """Return a case with normally distributed rows about kappa standard deviations.

    evaluation: of a batch norm, with running statistics in the place of the batch's own. recorded: one whose
    expressions are recorded, so without a mask in memory.

    Raises:
        SelectionError: the subject or its op has no such case.

    """
    dtype = dtype or subject.dtypes[0]
    if dtype not in FORMATS:
        raise SelectionError(f"no dtype {dtype!r}; there are: {', '.join(FORMATS)}")
    values = Values(seed=seed)
    if kappa > 0:
        values = Values(hazard="cancellation", strength=min(max(round(math.log10(kappa)), 0), 15), seed=seed)
    known = op(subject.op)
    laid = [known.shapes(rows, columns, n) for n in range(known.variants if evaluation else 0)]
    evaluates = [n for n, one in enumerate(laid) if one and not one.scalars.get("training", True)]
    if evaluation and not evaluates:
        raise SelectionError(f"{subject.op} does not tell evaluation from training")
    recipe = recorded_recipe(known, subject, rows, columns, values)
    recipe = recipe if recorded else replace(recipe, variant=0, further=())
    parameters = Values(seed=seed)
    recipe = replace(recipe, weight=parameters, bias=parameters)
    recipe = replace(recipe, variant=evaluates[0]) if evaluation else recipe
    case = build(known, subject, dtype, recipe, gradients=True)
    if case is None:
        raise SelectionError(f"{subject.name} takes no case of {rows} x {columns}")
    return case


# Text


def lines_of(explained: Explained) -> Iterator[str]:
    """Yield the account as lines of text: for every output its lines with their shares, and the source."""
    case = explained.case
    every = (("parameters", PARAMETERS), ("a residual", ADDED))
    other = {word: {case.dtype_of(name) for name in names} - {None, case.dtype} for word, names in every}
    told = [f"{word} in {' and '.join(map(str, held))}" for word, held in other.items() if held]
    parameters = f" with {' and '.join(told)}" if told else ""
    yield (
        f"{explained.subject}  {case.op}  {case.dtype}{parameters}  {case.rows} x {case.columns}  "
        f"hazard {case.hazard}  kappa (|mean|/std) {case.kappa:.3g}"
    )
    yield "on the machine: compiled PTX, approximate instructions correctly rounded"
    for output in explained.outputs:
        yield ""
        yield from _output_lines(output)
    if explained.lost:
        yield ""
        yield f"note: the account has a hole, and what was lost counts as formula: {explained.lost}"


def _output_lines(output: Explanation) -> Iterator[str]:
    place = ", ".join(str(i) for i in output.index)
    yield f"{output.output}: error {output.rms:.3g} rms, {output.worst:.3g} worst, at [{place}]"
    left_out = f"{output.left_out} element(s) that are not finite are left out"
    if not output.rms:
        yield f"  {left_out}; the others are exact" if output.left_out else "  exact in every element"
        return
    yield f"  {'of rms':>8} {'of worst':>9} {'alone':>9}  line"
    shown = [s for s in output.shares if max(abs(s.rms), abs(s.worst)) >= SHOWN]
    for share in shown:
        yield f"  {_percent(share.rms)} {_percent(share.worst):>9} {share.error:9.2e}  {place_text(share)}"
    rest = [s for s in output.shares if s not in shown]
    if rest:
        sums = (sum(s.rms for s in rest), sum(s.worst for s in rest))
        yield f"  {_percent(sums[0])} {_percent(sums[1]):>9} {'':>9}  {len(rest)} other place(s)"
    sums = (sum(s.rms for s in output.shares), sum(s.worst for s in output.shares))
    gap = f"largest gap between an error and its parts: {output.gap:.1e} of {output.worst:.3g}"
    yield f"  {_percent(sums[0])} {_percent(sums[1]):>9} {'':>9}  together; {gap}"
    if output.left_out:
        yield f"  {left_out}"


def _percent(share: float) -> str:
    return f"{100 * share:7.1f}%"


def place_text(share: Share) -> str:
    """Return a place as `file:line  source text`, with the lines that call it."""
    if not share.frames:
        return f"({share.word})"
    (file, line), *callers = share.frames
    text = _source(file, line)
    via = ", ".join(f"{_unless_own(f, file)}{n}" for f, n in callers[:CALLERS]) + (
        ", ..." if callers[CALLERS:] else ""
    )
    return f"{Path(file).name}:{line}  {text}" + (f"   [called from line {via}]" if via else "")


def _source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip() or "(source not found)"


def _unless_own(file: str, own: str) -> str:
    return "" if file == own else f"{Path(file).name}:"


BRIEF = 3
"""Places that a summary names at most."""
ALONE = 0.99
"""Above this share one place has all of the error, and the summary also names the next."""


def brief(output: Explanation) -> str:
    """Return the places with most of the error in one line: `kernel.py:41 `mean = ...` 69 %, ...`."""
    if not output.rms:
        return "nothing finite to blame" if output.left_out else "exact in every element"
    first = output.shares[0]
    if first.rms < ALONE:
        shown = [s for s in output.shares[:BRIEF] if abs(s.rms) >= 0.01]
        return ", ".join(f"{_brief_place(s)} {100 * s.rms:.0f} %" for s in shown)
    rest = sum(s.error**2 for s in output.shares[1:])
    text = f"{_brief_place(first)} {100 * first.rms:.0f} %"
    if not rest:
        return text
    second = max(output.shares[1:], key=lambda s: s.error)
    return f"{text}; most of the rest ({second.error / first.error:.1e} of it): {_brief_place(second)}"


def _brief_place(share: Share) -> str:
    if not share.frames:
        return share.word
    file, line = share.frames[0]
    text = _source(file, line)
    shown = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
    callers = "".join(f" from {_unless_own(f, file)}{n}" for f, n in share.frames[1:2])
    return f"{Path(file).name}:{line} `{shown}`{callers}"


def document(explained: Explained) -> dict[str, object]:
    """Return the account as JSON data; every share of an output adds up to 1."""
    return {
        "subject": explained.subject,
        "dtype": explained.case.dtype,
        "rows": explained.case.rows,
        "columns": explained.case.columns,
        "kappa": explained.case.kappa,
        "lost": explained.lost,
        "outputs": [
            {
                "output": o.output,
                "rms_error": o.rms,
                "worst_error": o.worst,
                "worst_at": list(o.index),
                "gap": o.gap,
                "left_out": o.left_out,
                "lines": [
                    {
                        "frames": [{"file": f, "line": n} for f, n in s.frames],
                        "source": _source(*s.frames[0]) if s.frames else s.word,
                        "share_of_rms": s.rms,
                        "share_of_worst": s.worst,
                        "rms_alone": s.error,
                    }
                    for s in o.shares
                ],
            }
            for o in explained.outputs
        ],
    }

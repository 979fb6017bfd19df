"""The text of a finding: it must make sense to someone who has never opened this project."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path

from strategies.layouts import Layout
from verifier.audit.report.traceback_text import traceback_lines
from verifier.records.case import Case
from verifier.records.printable import block, shell_word
from verifier.records.verdict import Finding, Line, Verdict, Worst, numberless

PROMISED = (
    "the declared domain promises this case, and no theorem of the algorithm reaches it: "
    "promise less (Domain(max_kappa=..., max_abs=...)) or claim an algorithm that holds there"
)
REPLAYED = 5
"""Of findings of one cause, how many are named with their cases."""
MEANING = "kernel or declaration wrong: no rounding of the declared algorithm errs so much"


def failure_text(finding: Finding, alike: Sequence[Finding] = (), *, traceback: bool = False) -> str:
    """Return the report of a finding as lines of plain text; of those `alike` only their places are named.

    traceback: show all frames of what was raised, not those of the user's files alone.
    """
    return block("\n".join(_lines(finding, alike, traceback=traceback)))


def of_one_cause(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings in groups that seem to have one cause, in order: each is to be told once.

    They are of one subject and say the same up to numbers (names such as float32 are none). What needs an odd
    layout is not taken for what does not, nor a number that is not finite for one that is.
    """
    groups: dict[Hashable, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(cause(finding), []).append(finding)
    return list(groups.values())


def cause(finding: Finding) -> Hashable:
    """Return what findings that seem to have one cause share, see `of_one_cause`."""
    worst, message = finding.outcome.worst, finding.outcome.message
    if finding.outcome.output == "declaration":  # a backward pass only adds places of the same kind
        message = message.partition(" (")[0]
    return (
        finding.path,
        finding.subject,
        finding.verdict,
        numberless(message),
        bool(finding.case.layouts),
        worst is None or math.isfinite(worst.error),
    )


def also_in(alike: Iterable[Finding | Line]) -> str:
    """Return checks and dtypes in a few words: checks of the same dtypes together."""
    dtypes: dict[str, dict[str, None]] = {}
    for finding in alike:
        dtypes.setdefault(finding.check, {})[finding.dtype] = None
    checks: dict[str, list[str]] = {}
    for check, names in dtypes.items():
        checks.setdefault(", ".join(names), []).append(check)
    return "; ".join(f"{', '.join(names)} ({among})" for among, names in checks.items())


def _lines(finding: Finding, alike: Sequence[Finding], *, traceback: bool) -> Iterator[str]:
    case, outcome = finding.case, finding.outcome
    head = f"{finding.verdict}  {finding.subject}  {finding.check}  {finding.dtype}  on {finding.backend}"
    yield head + (f"  (known defect: {finding.reason})" if finding.expected else "")
    raised = list(traceback_lines(finding.detail, Path(finding.path)))
    more = f" {raised.pop().strip()}" if raised and outcome.message.endswith(":") else ""
    raised = finding.detail.strip().splitlines() if traceback else raised
    yield f"  {outcome.message or 'the check failed'}{more}"
    if finding.cause:
        yield f"  cause        {finding.cause}"
    if outcome.worst is not None:
        yield from _numbers(outcome.worst)
    yield f"  case         {case.op}, hazard {case.hazard}, {case.rows} x {case.columns}, {_kappa(case)}"
    scalars = ", ".join(f"{name}={value!r}" for name, value in case.scalars.items())
    yield f"  arguments    {scalars}"
    for name, tensor in case.tensors.items():
        yield f"  {name:<12} {_tensor(case, name) if tensor is not None else 'None'}"
    yield f"  declaration  {finding.declaration}"
    if finding.verdict is Verdict.FAIL and (meaning := _meaning(finding)):
        yield f"  meaning      {meaning}"
    if finding.verdict is Verdict.NO_THEOREM:
        yield f"  meaning      {PROMISED}"
    for index, text in enumerate(raised):
        yield ("  raised       " if index == 0 else "               ") + text
    if alike:
        yield f"  also in      {also_in(alike)}"
        for finding_alike in [f for f in alike if f.file][:REPLAYED]:
            yield f"               {replay_command(finding_alike)}"
    if finding.file or finding.unwritten:
        yield f"  replay       {replay_command(finding)}"


def _meaning(finding: Finding) -> str:
    """Return what a failure proves; of the formula only where no change of the case explains it."""
    outcome = finding.outcome
    if outcome.formula and not finding.cause:
        return outcome.formula
    bounded = outcome.worst is not None and not math.isnan(outcome.worst.bound)
    return (outcome.meaning or MEANING) if bounded else outcome.meaning


def replay_command(finding: Finding) -> str:
    """Return the command line that runs the saved case of a finding again, or why there is none."""
    if finding.unwritten:
        return f"not possible: the case could not be written: {finding.unwritten}"
    return f"norm-verifier replay {shell_word(finding.file)}"


def _numbers(worst: Worst) -> Iterator[str]:
    times = "" if math.isnan(worst.utilisation) else f" = {_short(worst.utilisation)} x the proved bound"
    place = ", ".join(str(i) for i in worst.index)
    ulp = f" ({_short(worst.ulp)} ulp)" if worst.expected else ""  # at 0 its unit is the smallest there is
    yield f"  worst error  {_short(worst.error)}{ulp}{times}, at {worst.output}[{place}]"
    yield f"  actual       {worst.actual!r}"
    yield f"  expected     {worst.expected!r}"
    if not math.isnan(worst.bound):
        yield f"  bound        {_short(worst.bound)} on |actual - expected|"


def _tensor(case: Case, name: str) -> str:
    tensor = case.given[name]
    layout = case.layouts.get(name, Layout())
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{dtype} {shape}, strides {layout.strides(shape)}, storage offset {layout.offset}"
    values = tensor.flatten().tolist()
    shown = ", ".join(f"{v:.9g}" for v in values[:6])
    return f"{text}: [{shown}{', ...' if len(values) > 6 else ''}]"


def _kappa(case: Case) -> str:
    return f"kappa (|mean|/std) {_short(case.kappa)}, |input| up to {_short(case.largest)}"


def _short(number: float) -> str:
    return f"{number:.3g}"

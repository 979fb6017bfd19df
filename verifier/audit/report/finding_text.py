"""The text of a finding: it must make sense to someone who has never opened this project."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from strategies.layouts import Layout
from verifier.audit.causes import UNWRITTEN
from verifier.audit.report.traceback_text import traceback_lines
from verifier.ops import ops
from verifier.records.case import Case
from verifier.records.printable import block, shell_word
from verifier.records.verdict import Finding, Line, Verdict, Worst, numberless

PROMISED = (
    "the declared domain promises this case, and no theorem of the algorithm reaches it: "
    "promise less (Domain(max_kappa=..., max_abs=...)) or claim an algorithm that holds there"
)
REPLAYED = 2
"""Of findings of one cause, how many are named with their cases besides the first."""
WIDTH = 160
"""Characters of what is said of a finding besides the first."""
SHOWN = 6
"""Of the values of a tensor, how many are shown."""
FEW = 4
"""Of values that differ from all others of a tensor, the most that are shown with their places."""
MEANING = "kernel or declaration wrong: no rounding of the declared algorithm errs so much"


def failure_text(finding: Finding, alike: Sequence[Finding] = (), *, traceback: bool = False) -> str:
    """Return the report of a finding as lines of plain text; of those `alike` only their places are named.

    traceback: show all frames of what was raised, not those of the user's files alone.
    """
    return block("\n".join(_lines(finding, alike, traceback=traceback)))


def of_one_cause(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings in groups that seem to have one cause: each is to be told once, by its first.

    Groups of a FAIL come before others, and in a group a FAIL, and what has a `Finding.cause`. Wrong numbers
    of which no cause is known join those of the same result that have one, if it is the only one.
    """
    groups: dict[Cause, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(cause(finding), []).append(finding)
    for key in [key for key in groups if key.kind == "numbers"]:
        known = [other for other in groups if other.kind in _SEEN and _same_numbers(key, groups[other])]
        if len(known) == 1:
            groups[known[0]] += groups.pop(key)
    ordered = [sorted(group, key=lambda f: (_rank(f), not f.cause)) for group in groups.values()]
    return sorted(ordered, key=lambda group: _rank(group[0]))


@dataclass(frozen=True, kw_only=True)
class Cause:
    """What findings that seem to have one cause share.

    kind: by what they were told apart: "memory" that nobody wrote, a "layout", a "place" in the sources, a
    result that is "none", a "change" that makes cases pass, wrong "numbers", or else the "message".
    """

    path: str
    subject: str
    kind: str
    what: Hashable


class _Numbers(NamedTuple):
    """Which numbers are wrong, and how."""

    verdict: Verdict
    output: str
    needs_layout: bool
    finite: bool


_SEEN = ("memory", "layout", "change")
"""Kinds of causes that were seen, not guessed from what is wrong."""
PLACE = re.compile(r"([^\s:,()'\"<>/]+\.(?:py|cu|cuh):\d+)\b")
"""A place in sources, as messages name it."""


def cause(finding: Finding) -> Cause:
    """Return what findings that seem to have one cause share, see `of_one_cause`.

    They are of one subject. What is known first counts: that memory was never written, which layout is not
    followed, the guilty line, that a result is None, what makes the case pass; then which result is wrong, or
    what is said of it up to numbers (names such as float32 are none). There, what needs an odd layout is not
    taken for what does not, nor a number that is not finite for one that is.
    """
    kind, what = next(_causes(finding))
    return Cause(path=finding.path, subject=finding.subject, kind=kind, what=what)


def _causes(finding: Finding) -> Iterator[tuple[str, Hashable]]:
    """Yield what a finding may share with others, the most telling first."""
    outcome, verdict = finding.outcome, finding.verdict
    worst, message = outcome.worst, outcome.message
    if outcome.output == "declaration":  # a backward pass only adds places of the same kind
        yield "message", (verdict, numberless(message.partition(" (")[0]))
    if any(v.shows == UNWRITTEN for v in finding.variants):
        yield "memory", None
    for variant in finding.variants:
        if variant.passes and variant.strides:
            inner = len(variant.strides) == 1 or variant.strides[-1] != 1
            yield "layout", (variant.tensor, inner)
    if (place := PLACE.search(message)) is not None:
        yield "place", place[1]
    if verdict is Verdict.FAIL and message.startswith(f"{outcome.output} is None"):
        yield "none", outcome.output
    if changes := frozenset(numberless(v.change) for v in finding.variants if v.passes):
        yield "change", (outcome.output, changes)
    finite = worst is None or math.isfinite(worst.error)
    if worst is not None and outcome.output:
        yield "numbers", _Numbers(verdict, outcome.output, _needs_layout(finding), finite)
    yield "message", (numberless(message), verdict, _needs_layout(finding), finite)


def _needs_layout(finding: Finding) -> bool:
    """Return whether a case has an odd layout, and was not seen to fail without."""
    freed = any(v.change.endswith("contiguous") and v.verdict is finding.verdict for v in finding.variants)
    return bool(finding.case.layouts) and not freed


def _same_numbers(key: Cause, group: Iterable[Finding]) -> bool:
    """Return whether a group has wrong numbers of the same result of the same subject."""
    return any(
        isinstance(key.what, _Numbers)
        and (f.path, f.subject, f.verdict) == (key.path, key.subject, key.what.verdict)
        and f.outcome.output == key.what.output
        and f.outcome.worst is not None
        for f in group
    )


def _rank(finding: Finding) -> int:
    return finding.verdict is not Verdict.FAIL


def elsewhere(first: Finding, alike: Iterable[Finding]) -> Iterator[str]:
    """Yield lines that say where else findings of one cause were met, and what else was said of it there."""
    said: dict[str, list[Finding]] = {numberless(first.outcome.message): []}
    for finding in alike:
        said.setdefault(numberless(finding.outcome.message), []).append(finding)
    same, *others = said.values()
    lines = [also_in(same)] if same else []
    told = (f"{also_in(group)}: {group[0].outcome.message}" for group in others)
    lines += [shorten(text, WIDTH, placeholder=" ...") for text in told]
    files = [group[0] for group in (same, *others) if group and group[0].file][:REPLAYED]
    for number, text in enumerate((*lines, *map(replay_command, files))):
        yield ("  also in      " if number == 0 else "               ") + text


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
    known = ops().get(case.op)
    unread = {"eps"} if known is not None and not known.has_eps else set()
    scalars = [f"{name}={value!r}" for name, value in case.scalars.items() if name not in unread]
    if scalars:
        yield f"  arguments    {', '.join(scalars)}"
    for name, tensor in case.tensors.items():
        yield f"  {name:<12} {tensor_text(case, name) if tensor is not None else 'None'}"
    if finding.multiprocessors:
        yield f"  device       {finding.multiprocessors} multiprocessors"
    yield f"  declaration  {finding.declaration}"
    if finding.verdict is Verdict.FAIL and (told := meaning(finding)):
        yield f"  meaning      {told}"
    if finding.verdict is Verdict.NO_THEOREM:
        yield f"  meaning      {PROMISED}"
    for index, text in enumerate(raised):
        yield ("  raised       " if index == 0 else "               ") + text
    yield from elsewhere(finding, alike)
    if finding.file or finding.unwritten:
        yield f"  replay       {replay_command(finding)}"


def meaning(finding: Finding) -> str:
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
    times = (
        "" if math.isnan(worst.utilisation) else f" = {_three_digits(worst.utilisation)} x the proved bound"
    )
    place = ", ".join(str(i) for i in worst.index)
    ulp = (
        f" ({_three_digits(worst.ulp)} ulp)" if worst.expected else ""
    )  # at 0 its unit is the smallest there is
    yield f"  worst error  {_three_digits(worst.error)}{ulp}{times}, at {worst.output}[{place}]"
    yield f"  actual       {worst.actual!r}"
    yield f"  expected     {worst.expected!r}"
    if not math.isnan(worst.bound):
        yield f"  bound        {_three_digits(worst.bound)} on |actual - expected|"


def tensor_text(case: Case, name: str) -> str:
    """Return dtype, shape, layout and values of a tensor of a case: the first, or those that differ."""
    tensor = case.given[name]
    layout = case.layouts.get(name, Layout())
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{dtype} {shape}, strides {layout.strides(shape)}, storage offset {layout.offset}"
    values = [f"{v:.9g}" for v in tensor.flatten().tolist()]
    return f"{text}: {_few(values, shape) or _first(values)}"


def _first(values: Sequence[str]) -> str:
    return f"[{', '.join(values[:SHOWN])}{', ...' if len(values) > SHOWN else ''}]"


def _few(values: Sequence[str], shape: tuple[int, ...]) -> str:
    """Return values that are all alike but for a few as those few and their places, else nothing."""
    if len(values) <= SHOWN:
        return ""
    usual = Counter(values).most_common(1)[0][0]
    odd = [i for i, value in enumerate(values) if value != usual]
    if len(odd) > FEW:
        return ""
    told = (f"{values[i]} at {[int(n) for n in np.unravel_index(i, shape)]}" for i in odd)
    return f"all {usual}" + (f" but {', '.join(told)}" if odd else "")


def _kappa(case: Case) -> str:
    return f"kappa (|mean|/std) {_three_digits(case.kappa)}, |input| up to {_three_digits(case.largest)}"


def _three_digits(number: float) -> str:
    return f"{number:.3g}"

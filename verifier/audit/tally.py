"""Counts judged cases into the line of an audit, and joins lines of several searches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from verifier.audit import rules
from verifier.records.case import Case
from verifier.records.reach import joined
from verifier.records.verdict import Line, Measured, Outcome, Verdict, Worst, numberless


def add(
    line: Line, case: Case, outcomes: Iterable[Outcome], *, outside: bool, detail: str = ""
) -> Verdict | None:
    """Count a case with all that was judged of it; detail: a traceback of what stopped it.

    Outside the domain a case is counted and has no other say. Returns the case's verdict, if it has one.
    """
    judged = list(outcomes)
    if outside:
        return _add_outside(line, judged, detail)
    line.measured.update(list(dict.fromkeys(o.measured for o in judged if o.measured is not None)))
    line.doubtful += rules.in_doubt(judged)
    judged = rules.deciding(judged)
    if not judged:
        return None
    verdict = rules.summed(o.verdict for o in judged)
    line.counts[verdict] += 1
    line.empty += verdict is Verdict.PASS and not all(t.numel() for t in case.given.values())
    _add_reasons(line, verdict, judged, detail)
    if any(o.decided for o in judged) and math.isfinite(case.kappa):
        line.kappa = (min(line.kappa[0], case.kappa), max(line.kappa[1], case.kappa))
    for outcome in judged:
        # Elements without a theorem have no say in the worst error, unless nothing is claimed at all.
        if outcome.decided or line.variance == "none":
            _add_worst(line, outcome.worst)
        if outcome.uncovered and not outcome.decided:
            _add_no_theorem(line, case)
    return verdict


def _add_outside(line: Line, outcomes: list[Outcome], detail: str) -> Verdict:
    verdict = rules.summed(o.verdict for o in outcomes)
    line.beyond[verdict] += 1
    if verdict is Verdict.ERROR:  # ours wherever it happens
        line.counts[verdict] += 1
        _add_reasons(line, verdict, outcomes, detail)
    return verdict


def _add_reasons(line: Line, verdict: Verdict, outcomes: Iterable[Outcome], detail: str) -> None:
    """Keep why a case was not decided, once for all messages that differ in numbers alone."""
    texts = dict.fromkeys(o.message for o in outcomes if o.verdict is verdict and o.message)
    if verdict is Verdict.UNDECIDED:
        known = {numberless(text): text for text in line.undecided}
        line.undecided.update(list(dict.fromkeys(known.get(numberless(text), text) for text in texts)))
    if verdict is Verdict.ERROR:
        for text in texts:
            line.errors.setdefault(text, detail)


def _add_worst(line: Line, worst: Worst | None) -> None:
    if worst is None:
        return
    line.worst_ulp = max(line.worst_ulp, worst.ulp)
    line.worst_row_ulp = max(line.worst_row_ulp, worst.row_ulp)
    line.nonzero_row_ulp = max(line.nonzero_row_ulp, worst.nonzero_row_ulp)
    seen = line.outputs.get(worst.output)
    if seen is None or worst.utilisation > seen.utilisation:
        line.outputs[worst.output] = worst


def _add_no_theorem(line: Line, case: Case) -> None:
    known = dict(line.no_theorem_from)
    known["kappa"] = min(known.get("kappa", math.inf), case.kappa)
    known["magnitude"] = min(known.get("magnitude", math.inf), case.largest)
    line.no_theorem_from = known


def measured_in_words(line: Line) -> list[str]:
    """Return what was measured and on how many cases; what is undemanded for one reason in one text."""
    grouped: dict[str, list[str]] = {}
    for one, n in sorted(line.measured.items(), key=_by_text):
        seen = f"{one.seen} on {n} case{'' if n == 1 else 's'}"
        grouped.setdefault(one.undemanded, []).append(seen)
    return [Measured(seen=", ".join(seen), undemanded=why).text for why, seen in grouped.items()]


def left_out_by(reason: str) -> str:
    """Return the note that says why a search had no case."""
    return f"left out of the search by a known defect: {reason}"


def _by_text(item: tuple[Measured, int]) -> str:
    return item[0].text


def merged(first: Line, second: Line) -> Line:
    """Return one line for two searches of the same job."""
    outputs = dict(first.outputs)
    for name, worst in second.outputs.items():
        if name not in outputs or worst.utilisation > outputs[name].utilisation:
            outputs[name] = worst
    return replace(
        first,
        counts=first.counts + second.counts,
        outputs=outputs,
        worst_ulp=max(first.worst_ulp, second.worst_ulp),
        worst_row_ulp=max(first.worst_row_ulp, second.worst_row_ulp),
        nonzero_row_ulp=max(first.nonzero_row_ulp, second.nonzero_row_ulp),
        kappa=(min(first.kappa[0], second.kappa[0]), max(first.kappa[1], second.kappa[1])),
        findings=[*first.findings, *second.findings],
        seconds=first.seconds + second.seconds,
        beyond=first.beyond + second.beyond,
        untried=[name for name in first.untried if name in second.untried],
        refused=list(dict.fromkeys([*first.refused, *second.refused])),
        listed=max(first.listed, second.listed),
        left_out=first.left_out + second.left_out,
        empty=first.empty + second.empty,
        doubtful=first.doubtful + second.doubtful,
        undecided=first.undecided + second.undecided,
        errors={**second.errors, **first.errors},
        reach=joined((first.reach, second.reach)),
    )

"""Says where an audit got worse than an earlier one: both as JSON data, compared exactly."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from verifier.audit.report.columns import three_digits
from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.audit.request import BUDGETS
from verifier.records.remark import Remark
from verifier.records.verdict import Verdict, numberless

_RANK = {
    Verdict.PASS: 0,
    Verdict.SKIPPED: 1,
    Verdict.UNDECIDED: 1,
    Verdict.NO_THEOREM: 2,
    Verdict.REFUSED: 2,
    Verdict.ERROR: 2,
    Verdict.FAIL: 3,
    Verdict.CRASH: 3,
    Verdict.TIMEOUT: 3,
}
"""How bad a verdict is; of two of one rank, none is worse."""
_GROWS = ("worst", "tail", "mean", "signed", "bits_lost", "bound")
"""Figures of an output that are worse when they grow in magnitude."""


class BaselineError(ValueError):
    """A baseline that cannot be read, or that an audit cannot be compared with."""


def read_baseline(path: Path) -> Document:
    """Return an earlier report.

    Raises:
        BaselineError: the file is none that `--json` has written of a whole audit.

    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BaselineError(f"{path}: cannot be read as a baseline: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != 1 or not isinstance(found.get("lines"), list):
        raise BaselineError(f"{path}: is not a report of an audit")
    if found.get("interrupted"):
        raise BaselineError(f"{path}: that audit was interrupted")
    return found


def must_draw_alike(old: Document, new: Document) -> None:
    """Reject a baseline of other cases, or of so many as the clock allowed.

    Raises:
        BaselineError: figures of the two cannot be compared.

    """
    for key in ("seed", "budget"):
        if old.get(key) != new[key]:
            raise BaselineError(f"the baseline has {key} {old.get(key)!r}, and this audit {new[key]!r}")
    if new["budget"] not in BUDGETS:
        raise BaselineError(
            f"a budget of {new['budget']!r} gives other figures each time; "
            f"for a baseline it is one of {', '.join(BUDGETS)}"
        )


def worse(old: Document, new: Document) -> list[Remark]:
    """Return what got worse, a sentence each; nothing where all is as good as it was.

    Raises:
        BaselineError: the two drew other cases, or the old one lacks what every report has.

    """
    must_draw_alike(old, new)
    questions = (_lines, _findings, _reach, _release, _certificates)
    try:
        told = [one for question in questions for one in question(old, new)]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BaselineError(f"the baseline is damaged: {type(error).__name__}: {error}") from error
    return list(dict.fromkeys(told))


_Key = tuple[str, ...]


def _pairs(
    old: Iterable[Document], new: Iterable[Document], key: Callable[[Document], _Key]
) -> Iterator[tuple[_Key, Document, Document | None]]:
    """Yield each old record with the new one of its key, None where there is none.

    Files may have subjects of one name: then one has several records, which are paired in their order.
    """
    now: dict[_Key, list[Document]] = {}
    for one in new:
        now.setdefault(key(one), []).append(one)
    for one in old:
        others = now.get(key(one))
        yield key(one), one, others.pop(0) if others else None


def _lines(old: Document, new: Document) -> Iterator[Remark]:
    for key, line, other in _pairs(parts(old, "lines"), parts(new, "lines"), _line_key):
        words = "  ".join(key)
        if other is None:
            yield Remark(key[0], f"{words}: no longer audited")
            continue
        before, after = Verdict(str(line["verdict"])), Verdict(str(other["verdict"]))
        if _RANK[after] > _RANK[before] or (other["unexpected"] and not line["unexpected"]):
            yield Remark(key[0], f"{words}: {before} became {after}")
        was, now = _passed(line), _passed(other)
        if now[0] * was[1] < was[0] * now[1]:
            told = f"{was[0]} of {was[1]} cases passed inside its domain, now {now[0]} of {now[1]}"
            yield Remark(key[0], f"{words}: {told}")
        if _number(other["worst_row_ulp"]) > _number(line["worst_row_ulp"]):
            change = _change(line["worst_row_ulp"], other["worst_row_ulp"])
            yield Remark(key[0], f"{words}: worst error {change} ulp at the row's scale")


def _passed(line: Document) -> tuple[int, int]:
    """Return how many cases inside the declared domain passed, of how many that were judged anywhere."""
    inside, outside = mapping(line["counts"]), mapping(line["outside"])
    every = [int(str(number)) for counts in (inside, outside) for number in counts.values()]
    return int(str(inside.get(str(Verdict.PASS), 0))), sum(every)


def _findings(old: Document, new: Document) -> Iterator[Remark]:
    known = {_finding_key(finding) for finding in parts(old, "findings")}
    for finding in parts(new, "findings"):
        if not finding["expected"] and _finding_key(finding) not in known:
            key = _line_key(finding)
            yield Remark(key[0], f"{'  '.join(key)}: a new finding: {finding['message']}")


def _reach(old: Document, new: Document) -> Iterator[Remark]:
    for _, one, found in _pairs(parts(old, "reach"), parts(new, "reach"), lambda one: (str(one["subject"]),)):
        other = found or {}
        for part in ("functions", "loops", "wrapper_lines", "blocks"):
            before, after = _ran(one.get(part)), _ran(other.get(part))
            if before is not None and (after is None or _fraction(after) < _fraction(before)):
                seen = "nothing known" if after is None else "{} of {}".format(*after)
                of = "{} of {}".format(*before)
                told = f"{one['subject']}: of its {part.replace('_', ' ')} ran {of}, now {seen}"
                yield Remark(str(one["subject"]), told)


def _release(old: Document, new: Document) -> Iterator[Remark]:
    before, after = (
        parts(mapping(document.get("release") or {"dtypes": []}), "dtypes") for document in (old, new)
    )
    for key, one, other in _pairs(before, after, _measured_key):
        words = "  ".join(key)
        if other is None or (other["refused"] and not one["refused"]):
            yield Remark(key[0], f"{words}: what it costs is no longer measured")
            continue
        if _number(other["overflow"], math.inf) < _number(one["overflow"], math.inf):
            change = _change(one["overflow"], other["overflow"])
            yield Remark(key[0], f"{words}: overflows from magnitude {change}")
        now = {figures["output"]: figures for figures in parts(other, "figures")}
        for figures in parts(one, "figures"):
            output = f"{words}  {figures['output']}"
            if figures["output"] not in now:
                yield Remark(key[0], f"{output}: no longer measured")
                continue
            others = now[figures["output"]]
            yield from (Remark(key[0], f"{output}: {text}") for text in _figures(figures, others))


def _certificates(old: Document, new: Document) -> Iterator[Remark]:
    before, after = (
        Counter(named for one in parts(d, "certificates", []) for named in _certified(one))
        for d in (old, new)
    )
    lost = {*(before - after)}
    for subject, words, output in sorted(lost):
        if not output or (subject, words, "") not in lost:
            yield Remark(subject, f"{words}: {output and f'{output} '}CERTIFIED before, and not now")


def _certified(one: Document) -> Iterator[tuple[str, str, str]]:
    """Yield what is certified of a subject in words, with no output and then with each that it covers."""
    calls = "with gradients" if one["gradients"] else "forward"
    words = f"{one['subject']}  {one['dtype']}  {one['rows']}x{one['columns']} {calls}"
    if one["verdict"] == "CERTIFIED":
        outputs = one.get("outputs", ())
        assert isinstance(outputs, list | tuple)
        yield from ((str(one["subject"]), words, str(output)) for output in ("", *outputs))


def _figures(old: Document, new: Document) -> Iterator[str]:
    for name in _GROWS:
        if abs(_number(new[name], math.inf)) > abs(_number(old[name], math.inf)):
            yield f"{name.replace('_', ' ')} {_change(old[name], new[name])}"
    limits = {trust["limit"]: trust for trust in parts(new, "trust")}
    for trust in parts(old, "trust"):
        for axis in ("kappa", "columns", "magnitude"):
            other = limits[trust["limit"]][axis]
            if _number(other, -math.inf) < _number(trust[axis], -math.inf):
                yield f"{axis} within {trust['limit']} ulp {_change(trust[axis], other)}"


def _measured_key(one: Document) -> _Key:
    return str(one["subject"]), str(one["dtype"]), str(one["backend"])


def _line_key(line: Document) -> tuple[str, ...]:
    return tuple(str(line[name]) for name in ("subject", "check", "dtype", "backend"))


def _finding_key(finding: Document) -> tuple[str, ...]:
    return (*_line_key(finding), str(finding["verdict"]), numberless(str(finding["message"])))


def _ran(value: object) -> tuple[int, int] | None:
    """Return how many of how many ran, or None where that is not known."""
    if value is None:
        return None
    pair = mapping(value)
    return int(str(pair["ran"])), int(str(pair["of"]))


def _fraction(pair: tuple[int, int]) -> Fraction:
    return Fraction(*pair) if pair[1] else Fraction(1)


def _number(value: object, missing: float = math.nan) -> float:
    """Return a number as JSON has it; an error that is NaN counts as infinite."""
    found = number(value, missing)
    return math.inf if math.isnan(found) else found


def _change(old: object, new: object) -> str:
    return f"was {_shown(old)}, is {_shown(new)}"


def _shown(value: object) -> str:
    return "none" if value is None else three_digits(float(str(value)))


def told(found: Sequence[Remark]) -> Iterator[str]:
    """Yield lines of text about what got worse."""
    yield f"worse than the baseline in {len(found)} place{'s' if len(found) != 1 else ''}:"
    yield from (f"  {one.text}" for one in found)

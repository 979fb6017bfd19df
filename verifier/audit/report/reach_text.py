"""What ran of each subject's sources, in words and as JSON data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from verifier.audit.compiled_reach import CodeReach, GuardReach
from verifier.audit.reach_of_subjects import Lacking, SubjectReach, TunedReach
from verifier.audit.rules import reached
from verifier.records.reach import READS_MULTIPROCESSORS, SourcePlace
from verifier.records.remark import Remark

NOT_RECORDED = "functions and loops not recorded here"
UNKNOWN = "functions and loops unknown: not all its sources can be followed"
_SHOWN = 12
"""Functions, loops and lines that are named at most of one subject; --json has all of them."""
_SHOWN_OF_MANY = 3
"""The same where the report is about many subjects."""
MANY_SUBJECTS = 5


def reach_lines(one: SubjectReach, subjects: int = 1) -> Iterator[str]:
    """Yield what of a subject ran, then what did not, and why; subjects: of how many the report is."""
    shown = _SHOWN if subjects < MANY_SUBJECTS else _SHOWN_OF_MANY
    yield f"reach  {one.subject}  {counts(one)}{_forms_in_words(one)}"
    lacking = list(one.lacking())
    parts = [part for part in lacking if part.kind != "line"]
    for part in parts[:shown]:
        yield f"  {'not run' if part.kind == 'function' else 'loop':<8} {part.place}: {part.why}"
    if len(parts) > shown:
        yield f"  and {len(parts) - shown} more"
    if one.known:
        yield from _compiled(one.code)
    for tuned in one.configurations:
        if tuned.untried:
            yield f"  tuned    {_untried(tuned)}"
    if text := _wrapper(one, [part for part in lacking if part.kind == "line"]):
        yield f"  wrapper  {text}"
    if one.multiprocessors:
        numbers = ", ".join(map(str, one.multiprocessors))
        yield f"  device   the wrapper reads the number of multiprocessors; not tried with {numbers}"
    if one.left_out:
        yield f"  shapes   left out: {_priced(one.left_out)}"
    for why in sorted(one.found.unswept):
        yield f"  shapes   not chosen by what they launch: {why}"


def _forms_in_words(one: SubjectReach) -> str:
    """Say in how many compiled forms its kernels were launched, where that is known."""
    count = len(one.code.forms) if one.known else 0
    return f", {count} compiled form{'s' * (count != 1)}" if count else ""


def _compiled(code: CodeReach) -> Iterator[str]:
    """Yield what of the compiled code ran in part: lines are those near which it stands."""
    ran, count = code.blocks
    if ran < count:
        places = zip(("in none", "in some not"), code.lines_not_run(), strict=True)
        lines = "".join(f"; {where}: near {_near(near)}" for where, near in places if near)
        yield f"  blocks   {ran} of {count} basic blocks of {len(code.forms)} compiled forms ran{lines}"
    guards = code.guards()
    lacking: dict[str, list[SourcePlace]] = {}
    for guard in guards:
        if guard.lacks:
            lacking.setdefault(guard.lacks, []).append(guard.place)
    if lacking:
        told = sum(guard.told_apart for guard in guards)
        parts = "; ".join(f"{why}: near {_near(places)}" for why, places in sorted(lacking.items()))
        yield f"  guards   {told} of {len(guards)} guarded lines with some lanes on and others off; {parts}"


def _near(places: Iterable[SourcePlace]) -> str:
    """Return the lines of places, by file."""
    by_file: dict[str, list[int]] = {}
    for place in places:
        by_file.setdefault(place.file, []).append(place.line)
    return ", ".join(f"{file} {_numbers(lines)}" for file, lines in by_file.items())


def counts(one: SubjectReach) -> str:
    """Return how much of a subject ran."""
    parts = [*_code(one), *map(_of_tuned, one.configurations)]
    if "lines" in one.found.recorded and one.lines[1]:
        parts.append("{}/{} wrapper lines".format(*one.lines))
    return ", ".join(parts)


def _of_tuned(one: TunedReach) -> str:
    return f"{len(one.ran)} of {one.count} configurations of {one.place.function}"


def _untried(one: TunedReach) -> str:
    """Return which configurations of a kernel did not run, by reason."""
    by_reason: dict[str, list[str]] = {}
    for words, why in one.untried:
        by_reason.setdefault(why, []).append(words)
    parts = []
    for why, every in by_reason.items():
        more = f" and {len(every) - _SHOWN_OF_MANY} more" if len(every) > _SHOWN_OF_MANY else ""
        parts.append(f"{' | '.join(every[:_SHOWN_OF_MANY])}{more}: {why}")
    return f"{one.place}: {'; '.join(parts)}"


def _code(one: SubjectReach) -> Iterator[str]:
    if one.sources.unread:
        yield f"{UNKNOWN} ({one.sources.unread})"
    elif one.found.unfollowed:
        yield f"{UNKNOWN} ({', '.join(sorted(one.found.unfollowed)[:_SHOWN_OF_MANY])} stands in none of them)"
    elif not one.known or "code" not in one.found.recorded:
        yield NOT_RECORDED
    else:
        yield "{}/{} functions".format(*one.functions)
        if one.loops[1]:
            yield "{}/{} loops more than once".format(*one.loops)


def _wrapper(one: SubjectReach, lacking: Iterable[Lacking]) -> str:
    """Return the lines that did not run, by file, and how many refusals were not met."""
    by_file: dict[str, list[int]] = {}
    for part in lacking:
        if part.why != "refuses":
            by_file.setdefault(part.place.file, []).append(part.place.line)
    parts = [f"not run: {file} {_numbers(lines)}" for file, lines in by_file.items()]
    ran, count = one.refusals
    if parts and (unaudited := [d for d in one.dtypes if d not in _audited(one)]):
        parts.append(f"not audited: {', '.join(unaudited)}")
    if count > ran:
        parts.append(f"{count - ran} of {count} lines that refuse not met")
    return "; ".join(parts)


def _priced(shapes: Sequence[tuple[str, float]]) -> str:
    """Return shapes that a budget had no room for, with their price."""
    named = [f"{shape}: about {math.ceil(seconds)} s" for shape, seconds in shapes[:_SHOWN_OF_MANY]]
    more = len(shapes) - len(named)
    return ", ".join(named) + (f", and {more} more" if more else "")


def _audited(one: SubjectReach) -> set[str]:
    return {which for what, which in one.found.given if what == "dtype of input"}


def _numbers(lines: Iterable[int]) -> str:
    """Return line numbers."""
    shown = sorted(set(lines))
    return ", ".join(map(str, shown[:_SHOWN])) + (
        f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    )


def what_ran(reaches: Iterable[SubjectReach]) -> str:
    """Return what a pass speaks of where something of a subject did not run, or nothing."""
    short = [one for one in reaches if not one.whole]
    texts = [f"{one.subject} {of_what_ran(one)}" for one in short[:3]]
    if not texts:
        return ""
    more = f"; {len(short) - 3} more" if len(short) > 3 else ""
    return f"PASS of what ran: {'; '.join(texts)}{more}"


def of_what_ran(one: SubjectReach) -> str:
    """Return how many of a subject's functions, loops and configurations ran, where some did not."""
    return ", ".join(_of(one))


def _of(one: SubjectReach) -> Iterator[str]:
    if one.known and one.functions[0] < one.functions[1]:
        yield "{} of {} functions".format(*one.functions)
    if one.known and one.loops[0] < one.loops[1]:
        yield "{} of {} loops more than once".format(*one.loops)
    yield from (_of_tuned(tuned) for tuned in one.configurations if not tuned.whole)


def unmet(one: SubjectReach, required: float) -> Remark:
    """Return by how much less of a subject ran than is required."""
    known = f"{reached(one.sources, one.found):.3g} of its functions and loops" if one.known else counts(one)
    return Remark(one.subject, f"{one.subject}: reach={required:g} is required; {known}")


def reach_document(one: SubjectReach) -> dict[str, object]:
    """Return what of a subject ran as JSON data; null where it was not recorded."""
    code = one.known and "code" in one.found.recorded
    return {
        "subject": one.subject,
        "recorded": sorted(one.found.recorded),
        "unread": one.sources.unread,
        "unfollowed": sorted(one.found.unfollowed),
        "functions": _pair(one.functions) if code else None,
        "loops": _pair(one.loops) if code else None,
        "wrapper_lines": _pair(one.lines) if "lines" in one.found.recorded else None,
        "refusals": _pair(one.refusals) if "lines" in one.found.recorded else None,
        "configurations": [_tuned_document(tuned) for tuned in one.configurations],
        "blocks": _pair(one.code.blocks) if code else None,
        "guards": [_guard(guard) for guard in one.code.guards()] if code else None,
        "forms": list(_forms(one.code)) if code else None,
        "turns": [{**place._asdict(), "turns": turned} for place, turned in sorted(one.found.loops)],
        "lacking": [_lacking(part) for part in one.lacking()],
        "left_out": [{"shape": shape, "seconds": seconds} for shape, seconds in one.left_out],
        "unswept": sorted(one.found.unswept),
        "untried": {"multiprocessors": list(one.multiprocessors), "modes": list(one.modes)},
        "given": _given(one),
    }


def _lacking(part: Lacking) -> dict[str, object]:
    return {
        "kind": part.kind,
        **part.place._asdict(),
        "why": part.why,
        "cause": part.cause,
        "shape": part.shape,
        "seconds": part.seconds,
        "dtypes": list(part.dtypes),
    }


def _forms(code: CodeReach) -> Iterator[dict[str, object]]:
    for form in code.forms:
        ran = code.ran(form)
        lacking = [(number, near) for number, near in form.blocks if number not in ran]
        yield {
            "kernel": form.kernel,
            "digest": form.digest,
            **_pair((len(ran), len(form.blocks))),
            "not_run": [{"block": n, "near": p and f"{p.file}:{p.line}"} for n, p in lacking],
            "guards": [_guard(guard) for guard in code.guards_of(form)],
        }


def _guard(one: GuardReach) -> dict[str, object]:
    near = f"{one.place.file}:{one.place.line}"
    return {"near": near, "by_lane": one.by_lane, "lanes": sorted(one.lanes)}


def _tuned_document(one: TunedReach) -> dict[str, object]:
    return {
        **one.place._asdict(),
        **_pair((len(one.ran), one.count)),
        "tried": list(one.ran),
        "untried": [{"configuration": words, "why": why} for words, why in one.untried],
    }


def _pair(numbers: tuple[int, int]) -> dict[str, int]:
    return {"ran": numbers[0], "of": numbers[1]}


def _given(one: SubjectReach) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for what, which in sorted(one.found.given - {READS_MULTIPROCESSORS}):
        found.setdefault(what, []).append(which)
    return found

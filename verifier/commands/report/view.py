"""What a report says of each subject, gathered from the report as JSON data for whatever shows it."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from verifier.audit.report.certified_text import CERTIFIED
from verifier.audit.report.columns import KNOWN
from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.audit.rules import how_bad
from verifier.records.verdict import Verdict

ANSWERS = {
    Verdict.PASS: "No unexpected finding",
    Verdict.FAIL: "The kernel or its declaration is wrong",
    Verdict.CRASH: "The kernel raised an error or died",
    Verdict.TIMEOUT: "The kernel did not answer",
    Verdict.REFUSED: "The kernel refuses what it declares to take",
    Verdict.NO_THEOREM: "More is promised than a theorem covers",
    Verdict.UNDECIDED: "Something is left undecided, which is no pass",
    Verdict.SKIPPED: "Nothing was run",
    Verdict.ERROR: "The verifier itself failed, which says nothing about the kernel",
}
CONTRADICTED = "It fails and is certified: one of the two is a mistake of the verifier"
NOT_MET = "NOT MET"
INTERRUPTED = "INTERRUPTED"
_OPEN = frozenset({Verdict.UNDECIDED, Verdict.SKIPPED, Verdict.ERROR, INTERRUPTED})


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What stands on top: a verdict, or NOT_MET or INTERRUPTED, and what it means in a few words.

    known: whether declared known defects alone have caused it.
    """

    word: str
    text: str
    known: bool = False

    @property
    def kind(self) -> str:
        """How it looks: good, bad or open."""
        if self.word == Verdict.PASS:
            return "good"
        return "open" if self.known or self.word in _OPEN else "bad"


@dataclass(frozen=True, kw_only=True)
class FindingGroup:
    """Findings of one cause, as it seems: the first is told, of the others only where they were met."""

    first: Document
    others: Sequence[Document]


@dataclass(frozen=True, kw_only=True)
class SubjectView:
    """All that a report says of one subject.

    slug: its name as a part of a file's name. measured: of a release, one record a dtype.
    """

    name: str
    slug: str
    about: Document
    lines: Sequence[Document]
    groups: Sequence[FindingGroup]
    known: Sequence[Document]
    reach: Sequence[Document]
    measured: Sequence[Document]
    certificates: Sequence[Document]
    unmet: Sequence[str]
    headline: Headline

    @property
    def findings(self) -> int:
        """How many unexpected findings there are."""
        return sum(1 + len(group.others) for group in self.groups)

    @property
    def dtypes(self) -> list[str]:
        """The dtypes that were audited, in their order."""
        return list(dict.fromkeys(str(line["dtype"]) for line in self.lines))

    def of_dtype(self, dtype: str) -> Headline:
        """Return the verdict of one dtype."""
        return _verdict([line for line in self.lines if line["dtype"] == dtype])

    def worst_error(self, dtype: str) -> float:
        """Return the worst error that any check met on a dtype, in ulp at the scale of the row; NaN: none.

        Of elements whose exact value is known not to be 0, as on a terminal.
        """
        lines = [line for line in self.lines if line["dtype"] == dtype and line["outputs"]]
        return max((number(line["nonzero_row_ulp"]) for line in lines), default=math.nan)

    def error(self, dtype: str) -> float:
        """Return the worst error on ordinary data of the first output; of any check if none was measured."""
        measured = self.measures(dtype)
        figures = parts(measured, "figures") if measured else []
        return number(figures[0]["worst"]) if figures else self.worst_error(dtype)

    def certified(self, dtype: str) -> str:
        """Return for how many of the shapes and calls that were asked for a dtype is certified."""
        own = [one for one in self.certificates if one["dtype"] == dtype]
        if not own:
            return "not asked for"
        given = sum(one["verdict"] == CERTIFIED for one in own)
        return f"{given} of {len(own)} given" if given else "refused"

    def measures(self, dtype: str) -> Document | None:
        """Return what was measured of one dtype, if anything was."""
        return next((one for one in self.measured if one["dtype"] == dtype), None)


def subject_views(document: Document) -> list[SubjectView]:
    """Return what a report says of each subject, in the order of its lines."""
    names = dict.fromkeys(str(line["subject"]) for line in parts(document, "lines"))
    names |= dict.fromkeys(str(one["subject"]) for one in parts(document, "subjects", []))
    return [_view(document, name) for name in names]


def headline(document: Document) -> Headline:
    """Return what stands on top of a whole report: its exit status in words."""
    found = parts(document, "lines")
    status = int(number(document["status"]))
    if document["interrupted"]:
        return Headline(word=INTERRUPTED, text="What was found until then is shown; the rest did not run")
    own = _verdict(found)
    if status == 4:
        return Headline(word=str(Verdict.ERROR), text=ANSWERS[Verdict.ERROR])
    if own.kind == "bad":
        return own
    if status == 1:
        return _not_met()
    if status == 2:
        return Headline(word="INCOMPLETE", text="A file or subject could not be used or written")
    return own


def _not_met() -> Headline:
    return Headline(
        word=NOT_MET, text="There is no unexpected finding, and something that is required is not so"
    )


def _view(document: Document, name: str) -> SubjectView:
    release = mapping(document.get("release") or {})
    lines = _of(parts(document, "lines"), name)
    unmet = [str(one["text"]) for one in _of(parts(document, "unmet"), name)]
    found, papers = _verdict(lines), _of(parts(document, "certificates", []), name)
    if any(one["contradicted"] for one in papers):
        found = Headline(word=str(Verdict.ERROR), text=CONTRADICTED)
    return SubjectView(
        name=name,
        slug=slug(name),
        about=next(iter(_of(parts(document, "subjects", []), name)), {}),
        lines=lines,
        groups=list(_groups(_of(parts(document, "findings"), name))),
        known=[one for one in _of(parts(document, "findings"), name) if one["expected"]],
        reach=_of(parts(document, "reach"), name),
        measured=_of(parts(release, "dtypes", []), name),
        certificates=papers,
        unmet=unmet,
        headline=_not_met() if unmet and found.kind != "bad" else found,
    )


def slug(name: str) -> str:
    """Return a name as a part of a file's name; what had to be changed is told apart by a digest."""
    kept = re.sub(r"[^A-Za-z0-9_.-]", "_", name).lstrip(".-")[:100]
    mark = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:6]
    return kept if kept == name else f"{kept}-{mark}"


def _of(found: Iterable[Document], name: str) -> list[Document]:
    return [one for one in found if one["subject"] == name]


def _groups(findings: Iterable[Document]) -> Iterator[FindingGroup]:
    """Yield unexpected findings by group, in order."""
    by_number: dict[object, list[Document]] = {}
    for finding in findings:
        if not finding["expected"]:
            by_number.setdefault(finding["group"], []).append(finding)
    for _, (first, *others) in sorted(by_number.items(), key=lambda one: str(one[0]).zfill(9)):
        yield FindingGroup(first=first, others=others)


def _verdict(lines: Sequence[Document]) -> Headline:
    """Return the verdict of several lines: that of the one that looks worst, as on a terminal."""
    if not lines:
        return Headline(word=str(Verdict.SKIPPED), text=ANSWERS[Verdict.SKIPPED])
    found = [(Verdict(str(line["verdict"])), bool(line["known"])) for line in lines]
    verdict, known = min(found, key=lambda one: how_bad(one[0], known=one[1]))
    if known:
        text = "Nothing was found but declared known defects"
        return Headline(word=f"{verdict}{KNOWN}", text=text, known=True)
    return Headline(word=str(verdict), text=ANSWERS[verdict])

"""The columns of a report's table, what each means and how a line fills it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from verifier.audit.rules import known_alone, line_verdict, no_case_left
from verifier.audit.tally import left_out_by
from verifier.records.verdict import Line, Verdict

KNOWN = " (known)"
"""Marks a verdict that declared known defects alone have caused."""


Entry = TypeVar("Entry")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Entry]):
    """One column: its name, what it means unless the name says it, a row's text, its width in characters."""

    name: str
    meaning: str
    text: Callable[[Entry], str]
    width: int
    right: bool = False

    def padded(self, text: str, width: int | None = None) -> str:
        """Return the text as wide as the column, or as wide as is asked for."""
        wide = self.width if width is None else width
        return text.rjust(wide) if self.right else text.ljust(wide)


STYLES = {Verdict.PASS: "green", Verdict.SKIPPED: "dim", Verdict.UNDECIDED: "yellow"}
"""Of verdicts on a terminal; the others are red."""


def verdict_style(line: Line) -> str:
    """Return how the verdict of a line looks on a terminal."""
    return "dim" if known_alone(line) else STYLES.get(line_verdict(line), "red")


def verdict_words(line: Line) -> str:
    """Return the verdict of a line, marked where declared known defects alone have caused it."""
    return f"{line_verdict(line)}{KNOWN if known_alone(line) else ''}"


def runs_nowhere(line: Line) -> bool:
    """Return whether no backend runs the subject here: for one reason, which holds for all of its lines."""
    return bool(line.skipped) and line.backend == "-"


def _numbers(name: str) -> Callable[[Line], str]:
    return lambda line: three_digits(getattr(line, name)) if line.outputs else "-"


def three_digits(value: float) -> str:
    """Return three digits of a number, or a dash for none."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def _bound(line: Line) -> str:
    return three_digits(line.worst.bound) if line.worst else "-"


def _utilisation(line: Line) -> str:
    return three_digits(line.worst.utilisation) if line.worst else "-"


def _canonical(line: Line) -> str:
    return three_digits(max((w.canonical for w in line.outputs.values()), default=math.nan))


def _kappa(line: Line) -> str:
    return kappa_in_words(*line.kappa)


def kappa_in_words(low: float, high: float) -> str:
    """Return the least and the largest kappa, or a dash where no row was decided."""
    return "-" if low > high else f"{low:.2g}..{high:.2g}"


_CASES = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.CRASH: "crashed",
    Verdict.TIMEOUT: "timed out",
    Verdict.REFUSED: "refused",
    Verdict.ERROR: "where the verifier itself failed",
    Verdict.UNDECIDED: "undecided",
    Verdict.NO_THEOREM: "no theorem",
    Verdict.SKIPPED: "not judged",
}
"""Words for cases, in the order in which they are told."""
_REASON_SHOWN = 80
"""Characters of a reason in a line; the notes have all of it."""


def _cases(line: Line) -> str:
    if no_case_left(line):
        return f"no case left, known defect: {cut('; '.join(line.excluded))}"
    if line.skipped:
        return "-"
    counts: Counter[Verdict] = line.counts
    texts = (f"{counts[v]} {word}{_why(line, v)}" for v, word in _CASES.items() if counts[v])
    return (", ".join(texts) or "none") + _outside(line) + _untried(line)


def _outside(line: Line) -> str:
    """Return how many cases lay outside the declared domain, and what became of those that were judged."""
    judged = ", ".join(f"{line.beyond[v]} {word}" for v, word in _CASES.items() if line.beyond[v])
    return f"; outside the domain: {judged}" if judged else ""


def _untried(line: Line) -> str:
    """Return what a pass does not speak of, although the check is there to vary it."""
    gaps = line.gaps if line_verdict(line) is Verdict.PASS else {}
    return "".join(f"; {why}: {cut(', '.join(names))}" for why, names in gaps.items())


def _why(line: Line, verdict: Verdict) -> str:
    """Return in brackets why cases were not decided: how many for each reason, if there are several."""
    if verdict is not Verdict.UNDECIDED or not line.undecided:
        return ""
    several = len(line.undecided) > 1
    return f" ({'; '.join(f'{n}: {cut(t)}' if several else cut(t) for t, n in line.undecided.most_common())})"


def left_out_in_line(line: Line) -> list[str]:
    """Return the reasons of undecided cases, and what was not tried, where the table's line is too short."""
    told = [f"undecided: {text}" for text in line.undecided if cut(text) != text]
    gaps = line.gaps if line_verdict(line) is Verdict.PASS else {}
    every = {why: ", ".join(names) for why, names in gaps.items()}
    return told + [f"{why}: {names}" for why, names in every.items() if cut(names) != names]


def notes_outside_table(line: Line) -> list[str]:
    """Return the notes of a line that do not stand in the table in full."""
    told = {left_out_by(reason) for reason in line.excluded if cut(reason) == reason}
    return [note for note in (*line.notes, *left_out_in_line(line)) if note not in told]


def cut(text: str) -> str:
    """Return the beginning of a reason that is too long for a line."""
    return text if len(text) <= _REASON_SHOWN else text[:_REASON_SHOWN].rsplit(" ", 1)[0] + " ..."


COLUMNS: tuple[Column[Line], ...] = (
    Column(name="subject", meaning="", text=lambda line: line.subject, width=20),
    Column(name="dtype", meaning="", text=lambda line: line.dtype, width=8),
    Column(
        name="check",
        meaning="what is demanded; `norm-verifier list` explains each",
        text=lambda line: line.check,
        width=16,
    ),
    Column(
        name="verdict",
        meaning="(known): due to known defects that the subject declares, and to nothing else",
        text=verdict_words,
        width=17,
    ),
    Column(
        name="worst ulp",
        meaning="largest error, in units in the last place of the exact value",
        text=_numbers("worst_ulp"),
        width=9,
        right=True,
    ),
    Column(
        name="row ulp",
        meaning="the same in units at the row's root mean square; 0.5 is correct rounding",
        text=_numbers("worst_row_ulp"),
        width=9,
        right=True,
    ),
    Column(
        name="bound",
        meaning="proved limit of the absolute error where error/bound is largest",
        text=_bound,
        width=9,
        right=True,
    ),
    Column(
        name="error/bound",
        meaning="above 1 proves that kernel or declaration is wrong",
        text=_utilisation,
        width=11,
        right=True,
    ),
    Column(
        name="error/two-pass",
        meaning="error in bounds of a float32 two-pass kernel with the same tree",
        text=_canonical,
        width=14,
        right=True,
    ),
    Column(
        name="kappa",
        meaning="least..largest |mean| / standard deviation of rows that were decided",
        text=_kappa,
        width=16,
    ),
    Column(
        name="variance",
        meaning="the algorithm that the subject claims",
        text=lambda line: line.variance or "-",
        width=10,
    ),
    Column(name="cases", meaning="how many inputs were tried, and what became of them", text=_cases, width=0),
)


def legend(columns: Iterable[Column[Entry]]) -> Iterator[str]:
    """Yield what each column means that does not speak for itself, a line each."""
    shown = [column for column in columns if column.meaning]
    wide = max(len(column.name) for column in shown) + 2
    for column in shown:
        yield f"  {column.name:<{wide}}{column.meaning}"


def widths(subjects: Iterable[str], variances: Iterable[str]) -> dict[str, int]:
    """Return the widths of the columns that depend on what is audited."""
    return {"subject": _widest("subject", subjects), "variance": _widest("variance", variances)}


def _widest(name: str, texts: Iterable[str]) -> int:
    return max(map(len, (name, *texts)))


def row(texts: Iterable[str], wide: Mapping[str, int]) -> str:
    """Return texts, one for each column, as one line of plain text."""
    return "  ".join(cells(COLUMNS, texts, wide)).rstrip()


def cells(columns: Iterable[Column[Entry]], texts: Iterable[str], wide: Mapping[str, int]) -> list[str]:
    """Return texts, one for each column, as wide as the columns are."""
    return [c.padded(text, wide.get(c.name)) for c, text in zip(columns, texts, strict=True)]

"""Which step of a norm a place in the sources belongs to, as far as its own words say.

A shadow run blames errors on places; a place is a source line with those that call it. What it says is read
here, and nothing else is known: a line that does two steps counts for the one that comes first below.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from verifier.commands.explain import SHOWN, WITHOUT_ROUNDING, Explanation, Share, place_text

INPUT, STATISTICS, RSTD, AFFINE = "input rounding", "statistics", "rstd", "affine step"
OUTPUT, SAVED, COLUMNS = "output rounding", "saved statistics", "column sums"
FORMULA, UNKNOWN = "formula or constants", "no known step"
STAGES = (INPUT, STATISTICS, RSTD, SAVED, AFFINE, COLUMNS, OUTPUT, FORMULA, UNKNOWN)
LINES = 12
"""Lines that are named of one output at most."""
_PARAMETERS = {"grad_alpha", "grad_weight", "grad_bias"}
_STORED = re.compile(r"\bstore\b|__float2|\w+\[[^\]]*\]\s*=[^=]")
_CAST = re.compile(r"\.to\(|\bcast\b")
_LOADED = re.compile(r"\bload\(.*?\)\.to\([^)]*\)")
"""What was loaded and widened: no rounding of an output, though it is cast."""
_ROOT = re.compile(r"\b\w*r?sqrt\w*\b|\brstd\s*=")
_SUM = re.compile(
    r"\w*(sum|mean|var|reduce|__shfl|atomic)\w*\(|\b(\w*mean|var\w*|m2|delta|cent(er|r)ed|\w*sum\w*)\s*[-+*/]?=",
    re.IGNORECASE,
)
_STATISTIC = re.compile(r"(?:\b|_)(mean|mu|rstd|inv\w*|stat\w*)(?:\b|_)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class StageShare:
    """What one step adds to the error of an output; place: the line that adds most of it.

    share: of the squared error of all elements; those of an output add up to 1, and one that cancels others
    is negative.
    """

    stage: str
    share: float
    place: str


@dataclass(frozen=True, kw_only=True)
class LineShare:
    """What one line adds to the error of an output: share as in `StageShare`, and the step it counts for."""

    place: str
    stage: str
    share: float


def line_shares(output: Explanation) -> tuple[LineShare, ...]:
    """Return the lines with the largest shares in an output's error."""
    return tuple(
        LineShare(place=place_text(one), stage=stage_of(one, output.output), share=one.rms)
        for one in output.shares[:LINES]
        if abs(one.rms) >= SHOWN
    )


def stage_shares(output: Explanation) -> tuple[StageShare, ...]:
    """Return the shares of the steps in an output's error, largest first; none where it is exact."""
    by_stage: dict[str, list[Share]] = {}
    for share in output.shares:
        by_stage.setdefault(stage_of(share, output.output), []).append(share)
    return tuple(sorted(_summed(by_stage.items()), key=lambda one: -abs(one.share)))


def _summed(groups: Iterable[tuple[str, list[Share]]]) -> Iterator[StageShare]:
    for stage, shares in groups:
        most = max(shares, key=lambda one: abs(one.rms))
        yield StageShare(stage=stage, share=sum(one.rms for one in shares), place=place_text(most))


def stage_of(share: Share, output: str) -> str:
    """Return the step that a place belongs to in the error of an output."""
    if not share.frames:
        return FORMULA if share.word == WITHOUT_ROUNDING or "constants" in share.word else UNKNOWN
    texts = [linecache.getline(file, line).strip() for file, line in share.frames]
    words = next((text for text in texts if text), "")
    if not words:
        return UNKNOWN
    if _STORED.search(words):
        kept = "store" in words and _STATISTIC.search(words.split("store", 1)[1].split(",", 1)[0])
        return SAVED if kept else OUTPUT
    if any(_ROOT.search(text) for text in texts):
        return RSTD
    if any(_SUM.search(text) for text in texts):
        return COLUMNS if output in _PARAMETERS else STATISTICS
    # A statistic that is rounded to half is none of the output, though it is cast.
    return OUTPUT if _CAST.search(_LOADED.sub("", words)) else AFFINE

"""The pages of a report: every text that is shown is escaped, and nothing is loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.commands.report.figures import error_against_kappa, errors_by_kappa_and_columns
from verifier.commands.report.view import Headline, SubjectView

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
INDEX = "index.html"
SUBJECTS = "subjects"
"""Folder of the pages of subjects, where there are several."""
_LEAST_SHARE = 5e-4
"""What is shown as 0.0 % is less."""


def subject_page(document: Document, view: SubjectView, *, home: str = "") -> str:
    """Return the page of one subject; home: where the index is, if there is one."""
    return _page("subject.html", document=document, view=view, home=home)


def index_page(document: Document, views: list[SubjectView], head: Headline) -> str:
    """Return the page that shows many subjects at a glance."""
    return _page("index.html", document=document, views=views, headline=head, folder=SUBJECTS)


def _page(name: str, **given: object) -> str:
    pages = _environment()
    script = (TEMPLATES / "script.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return pages.get_template(name).render(script=script, script_digest=digest, style=style, **given)


def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    pages = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update(
        digits=digits, lacking=lacking, main=main_steps, percent=percent, ran=ran, changes=changes
    )
    pages.globals.update(
        error_against_kappa=error_against_kappa, errors_by_kappa_and_columns=errors_by_kappa_and_columns
    )
    return pages


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """What did not run, for one reason: a function or a loop, or the lines of a file."""

    kind: str
    place: str
    why: str


def lacking(reach: Document) -> list[NotRun]:
    """Return what of a subject did not run, the lines of a file together."""
    found = [one for one in parts(reach, "lacking") if one["kind"] != "line"]
    shown = [
        NotRun(kind=str(o["kind"]), place=f"{o['file']}:{o['line']} {o['function']}", why=str(o["why"]))
        for o in found
    ]
    by_file: dict[tuple[str, str], dict[str, None]] = {}
    for one in parts(reach, "lacking"):
        if one["kind"] == "line":
            by_file.setdefault((str(one["file"]), str(one["why"])), {})[str(one["line"])] = None
    return shown + [
        NotRun(kind="lines" if len(lines) > 1 else "line", place=f"{file}:{', '.join(lines)}", why=why)
        for (file, why), lines in by_file.items()
    ]


def digits(value: object, missing: str = "–") -> str:
    """Return three digits of a number as JSON has it, all before the point of less than a million.

    missing: of null and NaN.
    """
    found = number(value)
    if math.isnan(found):
        return missing
    if 1e3 <= abs(found) < 1e6:
        return f"{found:.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{found:.3g}").replace("inf", "∞")


def percent(share: object) -> str:
    """Return a share as per cent."""
    return f"{100 * number(share):.1f} %"


def main_steps(lost: Document) -> list[Document]:
    """Return the steps that make an error, at most three: the first, and what is more than 0.0 per cent."""
    first, *others = parts(lost, "stages")
    return [first, *(one for one in others if abs(number(one["share"])) >= _LEAST_SHARE)][:3]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What would change proved bounds, as it can be read off three digits, and what would change none."""

    some: list[Document]
    none: list[str]


def changes(measured: Document) -> Changes:
    """Return what of a kernel could be changed, as far as theorems tell; measured: of one dtype."""
    every = parts(measured, "what_if")
    some = [one for one in every if digits(one["declared"]) != digits(one["changed"])]
    helping = {one["change"] for one in some}
    names = dict.fromkeys(str(one["change"]) for one in every if one["change"] not in helping)
    return Changes(some=some, none=list(names))


def ran(pair: object) -> str:
    """Return how much of what ran, or that it is not known."""
    if not isinstance(pair, Mapping):
        return "not known"
    found = mapping(pair)
    return f"{found['ran']} of {found['of']}"

"""Writes the files of a report into a folder: pages, Markdown, JSON, JUnit XML and SARIF."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from verifier.audit.report.json_parts import Document
from verifier.commands.report.html import INDEX, SUBJECTS, index_page, subject_page
from verifier.commands.report.junit import junit_xml
from verifier.commands.report.markdown import markdown
from verifier.commands.report.sarif import sarif
from verifier.commands.report.view import headline, subject_views
from verifier.records.files import reason, write_text

SCHEMA = Path(__file__).parent / "audit.schema.json"
"""The JSON Schema of reports."""


def write_report(document: Document, folder: Path) -> tuple[list[str], Path]:
    """Write a report; return what could not be written and why, and the file to open first."""
    unwritten: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in report_files(document, Path.cwd()):
            (folder / name).parent.mkdir(exist_ok=True)
            write_text(folder / name, text)
    except OSError as error:
        unwritten.append(f"{error.filename or folder}: {reason(error)}")
    return unwritten, folder / INDEX


def report_files(document: Document, root: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; root: the folder from which paths of sources count.

    `index.html` is the page of the subject, or of several an index of pages in a folder.
    """
    views, head = subject_views(document), headline(document)
    if len(views) == 1:
        yield INDEX, subject_page(document, views[0])
    else:
        yield INDEX, index_page(document, views, head)
        for view in views:
            yield f"{SUBJECTS}/{view.slug}.html", subject_page(document, view, home=f"../{INDEX}")
    yield "report.md", markdown(document)
    yield "report.json", json.dumps(document, indent=1) + "\n"
    yield "report.schema.json", SCHEMA.read_text(encoding="utf-8")
    yield "junit.xml", junit_xml(document)
    yield "findings.sarif", json.dumps(sarif(document, root), indent=1) + "\n"

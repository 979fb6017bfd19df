"""Tells a GitHub workflow of a report: its summary page, and annotations at source lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import typer

from verifier.audit.report.json_parts import Document, mapping, parts
from verifier.commands.report.markdown import markdown
from verifier.records.files import reason
from verifier.records.printable import line as printable_line

SUMMARY_BYTES = 1 << 20
"""Of a step's summary, at most. Source: GitHub Docs, "Workflow commands", limits of job summaries."""
ANNOTATIONS = 10
"""Of one kind and step, at most: more are not shown. Source: the same documentation of annotations."""


def in_github_actions() -> bool:
    """Return whether this process belongs to a GitHub workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def tell(document: Document, root: Path) -> list[str]:
    """Append the report to the step's summary and print annotations; return what could not be written."""
    for text in notices(document, root):
        typer.echo(text)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary:
        return []
    try:
        with Path(summary).open("a", encoding="utf-8") as file:
            there = file.tell()
            file.write(markdown(document, limit=SUMMARY_BYTES - there))
    except OSError as error:
        return [f"{summary}: {reason(error)}"]
    return []


def notices(document: Document, root: Path) -> Iterator[str]:
    """Yield a workflow command for each kind of unexpected finding and each unmet demand, as many as show."""
    told: set[object] = set()
    commands = []
    for finding in parts(document, "findings"):
        if not finding["expected"] and finding["group"] not in told:
            told.add(finding["group"])
            commands.append(_of_finding(finding, root.absolute()))
    unmet = [str(one["text"]) for one in parts(document, "unmet")]
    commands += [_command("error", text, title="norm-verifier: required") for text in unmet]
    yield from commands[:ANNOTATIONS]


def _of_finding(finding: Document, root: Path) -> str:
    source = mapping(finding["source"])
    path = Path(str(source["file"])).absolute()
    named = path.relative_to(root) if path.is_relative_to(root) else path
    title = f"{finding['verdict']} {finding['subject']} {finding['check']} {finding['dtype']}"
    text = str(finding["message"]) + (f"\n{finding['replay']}" if finding["replay"] else "")
    return _command("error", text, file=named.as_posix(), line=str(source["line"]), title=title)


def _command(kind: str, text: str, **properties: str) -> str:
    """Return a workflow command in which no part can end it or begin another."""
    given = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    lines = (printable_line(one) for one in text.splitlines())
    return f"::{kind} {given}::{_data(chr(10).join(lines))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable_line(text)).replace(":", "%3A").replace(",", "%2C")

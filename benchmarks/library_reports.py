"""Reports on installed libraries, kept beside the page that is made of them: a file for each release.

A page is made of all reports that are kept, so that an audit of a few norms replaces what is told of these
and of nothing else. Of what ran of a kernel only the counts are kept, and what is lacking.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from verifier.audit.report.json_parts import Document, parts

FOLDER = Path(__file__).parent / "results" / "libraries"
KEPT = ("versions", "subjects", "libraries", "lines", "findings", "commit")
OF_LINES = ("subject", "check", "dtype", "backend", "verdict", "unexpected", "known", "outputs", "skipped")
OF_REACH = ("subject", "functions", "loops")
PLACES = ("function", "loop")
"""What a report names as lacking, and a page tells."""


def read(path: Path) -> list[Document]:
    """Return the report of an audit, or the kept ones of a release; files of the repository from its root."""
    if path.suffix == ".xz":
        kept: list[Document] = json.loads(_here(lzma.decompress(path.read_bytes()).decode()))
        return kept
    return [json.loads(_here(path.read_text(encoding="utf-8")))]


def _here(text: str) -> str:
    """Return the text without where the checkout lay on the machine of an audit."""
    return re.sub(r"/[^'\"\s]*/(?=kernels/libraries/)", "", text)


def trimmed(report: Document, commit: str = "") -> Document:
    """Return what the page needs of a report; a commit that it names already stays.

    commit: of the verifier that made it.
    """
    reach = [
        {name: one[name] for name in OF_REACH if name in one}
        | {"lacking": [place for place in parts(one, "lacking") if place["kind"] in PLACES]}
        for one in parts(report, "reach")
    ]
    lines = [{name: one[name] for name in OF_LINES} for one in parts(report, "lines")]
    made = {name: report[name] for name in KEPT if name in report} | {"lines": lines, "reach": reach}
    return {"commit": commit} | made if commit else made


def joined(older: Sequence[Document], newer: Sequence[Document]) -> list[Document]:
    """Return all reports, the older ones without the norms and dtypes that a newer one is of.

    Of reports that are equally new the first that speaks of a norm and dtype counts.
    """
    told: set[tuple[object, object]] = set()
    kept = []
    for report in (*newer, *older):
        of = {(line["subject"], line["dtype"]) for line in parts(report, "lines")}
        if left := of - told:
            kept.append(_of(report, left))
        told |= of
    return kept


def _of(report: Document, met: Iterable[tuple[object, object]]) -> Document:
    """Return the part of a report that is of these norms in these dtypes."""
    pairs = set(met)
    norms = {subject for subject, _ in pairs}
    chosen: dict[str, object] = {
        name: [one for one in parts(report, name) if (one["subject"], one["dtype"]) in pairs]
        for name in ("lines", "findings")
    }
    chosen |= {
        name: [o for o in parts(report, name) if o["subject"] in norms] for name in ("subjects", "reach")
    }
    return {**report, **chosen}


def by_release(reports: Iterable[Document]) -> Iterator[tuple[str, list[Document]]]:
    """Yield each release, `DISTRIBUTION VERSION`, and the reports on it."""
    found: dict[str, list[Document]] = {}
    for report in reports:
        for library in parts(report, "libraries"):
            found.setdefault(f"{library['distribution']} {library['version']}", []).append(report)
    yield from found.items()


def updated(
    reports: Sequence[Document], commits: Mapping[str, str], folder: Path
) -> dict[Path, list[Document]]:
    """Return what is to be kept in each file of a folder, new reports and what was kept of other norms.

    commits: of the verifier that made the new ones, by `DISTRIBUTION` or `DISTRIBUTION VERSION`.
    """
    found = {path: read(path) for path in sorted(folder.glob("*.json.xz"))}
    for name, new in by_release(reports):
        path = folder / f"{name.replace(' ', '-')}.json.xz"
        commit = commits.get(name, commits.get(name.split()[0], ""))
        found[path] = joined(found.get(path, []), [trimmed(one, commit) for one in new])
    return found


def write(kept: Mapping[Path, Sequence[Document]]) -> None:
    """Write what is kept, each file in its folder."""
    for path, reports in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(json.dumps(reports).encode(), preset=9))

"""The record of a release as JSON data."""

from __future__ import annotations

from dataclasses import asdict

from verifier.audit.report.json_document import plain
from verifier.commands.release.record import Release


def release_document(release: Release) -> dict[str, object]:
    """Return a release as plain JSON data; infinities and NaN become strings."""
    found = plain(asdict(release))
    assert isinstance(found, dict)
    return found

"""What the subjects of an audit are, as JSON data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from verifier.records.printable import block
from verifier.records.subject import Subject


def subject_documents(subjects: Iterable[Subject]) -> list[dict[str, object]]:
    """Return what each subject is; sha256: of its file."""
    return [
        {
            "subject": one.name,
            "path": str(one.path),
            "sha256": hashlib.sha256(one.path.read_bytes()).hexdigest() if one.path.is_file() else "",
            "op": block(one.op),
            "language": one.language,
            "variance": block(one.claim.variance or "none"),
            "dtypes": list(one.dtypes),
        }
        for one in subjects
    ]

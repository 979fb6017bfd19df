"""Witnesses: the cases that show what is known to be wrong with a subject, all of them in one file.

`witnesses/<subject>.json` beside the kernel has a case for each defect, check and dtype, and says how it
fails. A case there names its tensors; those that several cases share stand in the file once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verifier.records.case import SCHEMA, Case, CaseError, Document, from_document, read_document
from verifier.records.case import load as load_case
from verifier.records.files import write_text
from verifier.records.printable import said
from verifier.records.subject import KnownDefect, Subject

_MARK = "#"
"""Between the name of a subject's file of witnesses and the name of one of them."""
_SHARED = ("tensors", "versions")
"""What stands in the file once and is named by the cases."""


def file_of(subject: Subject) -> Path:
    """Return where the witnesses of a subject stand, whether the file exists or not."""
    return subject.path.parent / "witnesses" / f"{subject.name}.json"


def name_of(defect: KnownDefect, dtype: str) -> str:
    """Return the name of the witness of a defect for a dtype, in the subject's file."""
    return f"{defect.id}.{defect.check}.{dtype}"


def stored(subject: Subject, defect: KnownDefect, dtype: str) -> Path | None:
    """Return the path of the witness of a defect, None if there is none: a case file, or `FILE#NAME`.

    Raises:
        CaseError: the subject's file of witnesses cannot be read.

    """
    if defect.witness is not None:
        path = subject.path.parent / defect.witness.format(dtype=dtype)
        return path if path.is_file() else None
    file, name = file_of(subject), name_of(defect, dtype)
    if not defect.id or not file.is_file() or name not in read(file):
        return None
    return file.with_name(f"{file.name}{_MARK}{name}")


def load(path: Path) -> tuple[Case, Document]:
    """Read a case file, or the witness that `FILE#NAME` names; also return its whole document.

    Raises:
        CaseError: there is no such file or witness, or it is not a case.

    """
    file, mark, name = path.name.partition(_MARK)
    if not mark or path.is_file():
        return load_case(path)
    documents = read(path.with_name(file))
    if name not in documents:
        raise CaseError(f"{path}: no such witness; there are {', '.join(documents) or 'none'}")
    return from_document(documents[name], document_path=path), documents[name]


def read(file: Path) -> dict[str, Document]:
    """Return the documents of all cases of a subject's file by name, each as a case file of its own has it.

    Raises:
        CaseError: the file cannot be read, or is no file of witnesses.

    """
    whole = read_document(file)
    try:
        return {name: _complete(whole, document) for name, document in whole["witnesses"].items()}
    except (LookupError, TypeError, AttributeError) as error:
        raise CaseError(f"{file}: not a file of witnesses: {said(error)}") from error


def write(file: Path, documents: Mapping[str, Mapping[str, object]]) -> None:
    """Write the documents of a subject's witnesses, of which all belong to the same subject.

    Raises:
        OSError: the file cannot be written.

    """
    shared: dict[str, Document] = {name: {} for name in _SHARED}
    cases = {name: _in_short(document, shared) for name, document in documents.items()}
    subject = next(iter(documents.values()))["subject"]
    whole = {"schema": SCHEMA, "subject": subject, "witnesses": cases, **shared}
    file.parent.mkdir(exist_ok=True)
    write_text(file, json.dumps(whole, indent=1) + "\n")


def _complete(whole: Mapping[str, Any], document: Mapping[str, Any]) -> Document:
    tensors = {
        name: None if key is None else whole["tensors"][key] for name, key in document["tensors"].items()
    }
    own = {"tensors": tensors, "versions": whole["versions"][document["versions"]]}
    return {"schema": whole["schema"], "subject": whole["subject"], **document, **own}


def _in_short(document: Mapping[str, Any], shared: dict[str, Document]) -> Document:
    own = {name: value for name, value in document.items() if name not in {"schema", "subject"}}
    own["versions"] = _share(shared["versions"], document["versions"])
    own["tensors"] = {
        name: None if tensor is None else _share(shared["tensors"], tensor)
        for name, tensor in document["tensors"].items()
    }
    return own


def _share(values: dict[str, object], value: Mapping[str, object]) -> str:
    """Keep a value under the hash of its text, and return that."""
    key = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
    values[key] = value
    return key

"""What a child process is told when it is forked, and what it is asked for later: plain data for a pipe."""

from __future__ import annotations

from typing import TypedDict

from verifier.records.case import CaseDocument
from verifier.records.subject import Language


class ChildSettings(TypedDict):
    """What every child is told: environment, module search path and folder of the verifier's process.

    A worker of an audit is also told its function, pickled, and the backends that it will run subjects on;
    other children find nothing there.
    """

    environment: dict[str, str]
    path: list[str]
    folder: str
    function: bytes
    backends: tuple[str, ...]


class ChildRequest(TypedDict):
    """One execution: an experiment, "module:function", on the subject `name` of a file, and on a case.

    kind: op, language and dtypes, for a function without a declaration.
    """

    experiment: str
    path: str
    name: str
    kind: tuple[str, Language, tuple[str, ...]]
    case: CaseDocument
    options: dict[str, object]
    case_seconds: float

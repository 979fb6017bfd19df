"""What was seen when a subject ran on a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import torch

from verifier.records.compiled_code import CompiledCode
from verifier.records.printable import block, line
from verifier.records.reach import NOTHING, Reach

Status = Literal["ok", "refused", "crashed", "timeout", "unusable", "undecided", "error"]


class Deviation(NamedTuple):
    """What is not as demanded: about which tensor, or which memory, and what, in a sentence of its own."""

    about: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """What an error left behind: whether the process is of no further use, and what the machine found.

    not_imported: a package that the call imports is not installed here, or is of another version.
    """

    died: bool = False
    machine_finding: str = ""
    not_imported: bool = False


Record = TypeVar("Record")
"""What an experiment finds: a record of its own."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The outcome of one execution.

    status: "ok"; "refused" (a clear error before the first launch); "crashed" (any other error, or the
        process died); "timeout"; "unusable" (the declaration does not fit the function, see `message`);
        "undecided" (nothing can be said about the subject, `message` says why: the machine lacks an
        instruction, ...); "error" (the verifier itself failed).
    outputs: what the subject returned and the gradients, by name; None where it returned None.
    message: what went wrong, in one line; `detail` is the traceback or the last lines of stderr.
    damage: stray writes and changed inputs.
    unlaunched: why nothing that was right is right of a kernel. lacking: what there was no room for, so that
        nothing was computed.
    compiled: what is known of the code that was executed; None if that of any is unknown.
    reach: what of the subject's sources ran that no answer of its process had said before.
    settings: what the call left changed of the process, in words, by name.
    aftermath: what an error left behind.
    found: what an experiment looked for, in a record of its own or in texts; see `found_as`.

    The texts are the subject's own, hence made printable and shortened here, where they come in.
    """

    status: Status
    outputs: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    message: str = ""
    detail: str = ""
    damage: tuple[Deviation, ...] = ()
    unlaunched: str = ""
    lacking: str = ""
    compiled: CompiledCode | None = None
    reach: Reach = NOTHING
    settings: Mapping[str, str] = field(default_factory=dict)
    aftermath: Aftermath = Aftermath()
    found: object = None

    def found_as(self, kind: type[Record]) -> Record:
        """Return what the experiment found, which is to be a record of this kind.

        Raises:
            TypeError: it is none; the experiment and who asks for it do not fit each other.

        """
        if not isinstance(self.found, kind):
            raise TypeError(f"the experiment found {type(self.found).__name__}, not {kind.__name__}")
        return self.found

    def __post_init__(self) -> None:
        """Keep what a subject says from steering a terminal or filling a disk."""
        object.__setattr__(self, "message", line(self.message))
        object.__setattr__(self, "detail", block(self.detail))
        printable = (Deviation(line(one.about), line(one.text)) for one in self.damage)
        object.__setattr__(self, "damage", tuple(printable))

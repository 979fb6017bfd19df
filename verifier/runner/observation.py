"""What was seen when a subject ran on a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from verifier.printable import block, line

Status = Literal["ok", "refused", "crashed", "timeout", "unusable", "undecided", "error"]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The outcome of one execution.

    status: "ok"; "refused" (a clear error before the first launch); "crashed" (any other error, or the
        process died); "timeout"; "unusable" (the declaration does not fit the function, see `message`);
        "undecided" (nothing can be said about the subject, `message` says why: the machine lacks an
        instruction, ...); "error" (the verifier itself failed).
    outputs: what the subject returned and the gradients, by name; None where it returned None.
    message: what went wrong, in one line; `detail` is the traceback or the last lines of stderr.
    damage: stray writes and changed inputs, one sentence each, by check word ("memory", "inputs").
    facts: further facts of an experiment or a backend (launches, machine findings, ...); "unlaunched" says
        why nothing that was right is right of a kernel.

    The texts are the subject's own, hence made printable and shortened here, where they come in.
    """

    status: Status
    outputs: Mapping[str, torch.Tensor | None] = field(default_factory=dict)
    message: str = ""
    detail: str = ""
    damage: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep what a subject says from steering a terminal or filling a disk."""
        object.__setattr__(self, "message", line(self.message))
        object.__setattr__(self, "detail", block(self.detail))
        object.__setattr__(self, "damage", tuple(map(line, self.damage)))

"""The same case with every other argument small: a domain speaks of the input alone."""

from __future__ import annotations

from dataclasses import replace

from verifier.checks.support.session import Session

ORDINARY = 16.0
"""|weight|, |gate|, |gradient| that every kernel has to stand: beyond, an overflow may be their doing."""


def tamed(session: Session) -> Session:
    """Return the session of the same input where no other tensor is larger than `ORDINARY`."""
    case = session.case
    tensors = {
        n: t if t is None or n == "input" else t.clamp(-ORDINARY, ORDINARY) for n, t in case.tensors.items()
    }
    return replace(session, case=replace(case, tensors=tensors))

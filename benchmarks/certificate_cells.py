"""A cell of the table of certificates: a kernel, a dtype, a number of columns, with gradients or without."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import torch
import triton

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.execution.process_tree import use
from verifier.records.certificate import OWN_FAILURE, Certificate, Refusal
from verifier.subjects.load_file import load_subject

ROWS = 2


class OutOfTimeError(Exception):
    """A cell took longer than its limit."""


def cell(  # noqa: PLR0917 (a task, as workers take it)
    path: str, name: str, dtype: str, columns: int, gradients: bool, limit: float
) -> dict[str, object]:
    """Return what certifying gives; `refused` begins with "error" where that is the verifier's own failure.

    limit: seconds by the clock. seconds: processor time, of the children too; wall_seconds: by the clock.
    """
    torch.set_num_threads(1)
    before, began = use(os.getpid()).seconds, time.monotonic()
    with Runner("machine", case_seconds=limit) as runner:
        try:
            with _limited(limit):
                subject = load_subject(path, name)
                case = case_for(subject, dtype, ROWS, columns, 0.0, 0, recorded=True)
                told = _told(certified(subject, case, runner=runner, gradients=gradients))
        except OutOfTimeError:
            told = {"refused": f"error: not known within {limit:g} seconds"}
        except Exception as error:  # a cell that breaks is one cell of the table
            told = {"refused": f"error: {type(error).__name__}: {error}"}
        seconds = use(os.getpid()).seconds - before
    return {
        "seconds": round(seconds, 1),
        "wall_seconds": round(time.monotonic() - began, 1),
        "refused": "",
        "claims": "",
        **told,
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }


def _told(found: Certificate | Refusal) -> dict[str, object]:
    if isinstance(found, Refusal):
        error = "error: " if found.stage == OWN_FAILURE else ""
        return {"refused": f"{error}{found.stage}: {found.why}"}
    return {
        "claims": max((one.claims for one in found.proofs), key=len),
        "depths": sorted({(one.terms, one.depth, one.declared or 0) for p in found.proofs for one in p.sums}),
        "nodes": max(one.nodes for one in found.proofs),
        "finite_to": [one.finite_to for one in found.proofs],
    }


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTimeError` after so many seconds; in the main thread alone."""

    def ended(_signal: int, _frame: FrameType | None) -> NoReturn:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

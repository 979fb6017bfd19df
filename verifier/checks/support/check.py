"""What a module of verifier/checks has to define to be a check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from verifier.cases.plan import Plan
from verifier.checks.support.session import Session
from verifier.execution.backend import Backend
from verifier.execution.ways_of_calling import CallingWay
from verifier.ops import Op
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome


class Check(Protocol):
    """One demand on a subject, as a module that defines these names; `OPTIONAL` says which it may leave out.

    DEMANDS: one sentence. WHY: the bugs that slip through without it. CATCHES: stems of the faulty kernels
    in tests/faulty_kernels that it catches. ORDER: checks run in the order of these numbers, then by name.
    JUDGES_NUMBERS: its failures are about numbers even where no worst element is named: no finding where the
    numbers of the case lie outside the promised domain. ONLY_INSIDE: outside the declared domain it finds
    nothing but what later calls meet too (`Outcome.kept`).
    NEEDS_A_NORM: why it does not apply to a specification of the subject's own, if it does not.
    EVERY_DTYPE, IN_FLOAT64: on which dtypes it runs where most checks run on one.

    A check whose demand is one that subjects promise defines GUARANTEE too: what a subject promises that
    lists the check's name, which is then the file's name, among its guarantees.
    """

    NAME: str
    DEMANDS: str
    WHY: str
    CATCHES: tuple[str, ...]
    ORDER: int
    JUDGES_NUMBERS: bool
    ONLY_INSIDE: bool
    NEEDS_A_NORM: str
    EVERY_DTYPE: bool
    IN_FLOAT64: bool
    __name__: str

    def plan(self, subject: Subject, op: Op, /) -> Plan:
        """Return which cases it wants."""

    def skips(self, subject: Subject, op: Op, dtype: str, backend: str, /) -> str | None:
        """Return why it does not apply, or None."""

    def check(self, session: Session, /) -> list[Outcome]:
        """Judge one case."""

    def must_be_tried(self, subject: Subject, /) -> list[str]:
        """Return what a PASS needs besides what the layouts and `must` of the plan say.

        An outcome names what of it was tried in `Outcome.tried`.
        """

    def dry_ways(self, subject: Subject, backend: Backend, /) -> Mapping[str, CallingWay]:
        """Return the ways of calling that a dry run is to make, by name.

        Shapes come first at which a way differs from plain calls as at none of the check's plan.
        """


def _applies(_subject: Subject, _op: Op, _dtype: str, _backend: str) -> None:
    return None


def _nothing_more(_subject: Subject) -> list[str]:
    return []


def no_ways(_subject: Subject, _backend: Backend) -> Mapping[str, CallingWay]:
    """Return no ways: the check calls subjects plainly, or in ways that no dry run makes."""
    return {}


OPTIONAL = {
    "ORDER": 100,
    "JUDGES_NUMBERS": False,
    "ONLY_INSIDE": False,
    "NEEDS_A_NORM": "",
    "EVERY_DTYPE": False,
    "IN_FLOAT64": False,
    "dry_ways": no_ways,
    "skips": _applies,
    "must_be_tried": _nothing_more,
}
"""What a check may leave unsaid, and what that means."""


def completed(module: object) -> Check:
    """Return a module as a check: what it leaves out of `OPTIONAL` has its default from now on."""
    for name, default in OPTIONAL.items():
        vars(module).setdefault(name, default)
    return cast("Check", module)

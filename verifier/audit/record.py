"""The record of a whole audit: all that it found, and the exit status that this comes to."""

from __future__ import annotations

from dataclasses import dataclass, field

from verifier.audit import rules
from verifier.audit.reach_of_subjects import SubjectReach
from verifier.records.certificate import AskedCertificate
from verifier.records.remark import Remark
from verifier.records.verdict import Finding, Line
from verifier.subjects.libraries import LibraryFound


@dataclass(kw_only=True)
class Report:
    """Everything an audit found; required_reach: the fraction of each subject's functions and loops.

    unreached: lines that were not run. stopped: because of a finding before them. unmet: other requirements.
    certificates: of all that were asked for, given or refused. libraries: whose norms the subjects are.
    """

    lines: list[Line] = field(default_factory=list)
    seed: int = 0
    budget: str = "quick"
    errors: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    interrupted: bool = False
    unreached: list[str] = field(default_factory=list)
    stopped: bool = False
    seconds: float = 0.0
    reach: list[SubjectReach] = field(default_factory=list)
    required_reach: float | None = None
    unmet: list[Remark] = field(default_factory=list)
    certificates: list[AskedCertificate] = field(default_factory=list)
    libraries: list[LibraryFound] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings, in order."""
        return [finding for line in self.lines for finding in line.findings]

    @property
    def status(self) -> int:
        """The exit status, see `rules.exit_status`."""
        return rules.exit_status(
            self.lines,
            errors=(*self.errors, *filter(None, (one.own_failure for one in self.certificates))),
            unusable=self.unusable,
            interrupted=self.interrupted,
            unmet=bool(self.short_of_reach or self.unmet),
            contradicted=any(one.contradicted for one in self.certificates),
        )

    @property
    def short_of_reach(self) -> list[SubjectReach]:
        """The subjects of which less ran than is required."""
        if self.required_reach is None:
            return []
        return [
            one for one in self.reach if not rules.reach_suffices(one.sources, one.found, self.required_reach)
        ]

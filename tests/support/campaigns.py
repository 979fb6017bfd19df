"""Runs campaigns of fuzzing in this process and keeps what was said of them."""

from dataclasses import dataclass, field

from verifier.audit.fuzzing.campaign import Wishes, fuzz
from verifier.audit.fuzzing.workers import HereAlone
from verifier.audit.run_audit import select


@dataclass
class Listening:
    """Keeps what it is told; stops the campaign where `stops` says so of a status."""

    said: list = field(default_factory=list)
    told: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    stops: object = None

    def say(self, text):
        self.said.append(text)

    def tell(self, finding):
        self.told.append(finding)

    def show(self, status):
        self.shown.append(status)
        if self.stops and self.stops(status):
            raise KeyboardInterrupt


def campaign(
    file, out, *subjects, checks=("forward_error",), stops=None, open_workers=HereAlone, jobs=None, **wishes
):
    """Return the report of a campaign, and what was told of it."""
    chosen = jobs or select([file], check_names=checks, subjects=subjects)
    listening = Listening(stops=stops)
    wanted = Wishes(**{"budget": "quick", "seed": 0, "out": out, "findings": out / "findings", **wishes})
    return fuzz(chosen, wanted, open_workers=open_workers, watcher=listening), listening


def counted(report):
    """Return what the lines of a report say, but for how long it took."""
    return [
        (
            line.subject,
            line.check,
            line.dtype,
            dict(line.counts),
            dict(line.beyond),
            line.outputs,
            line.listed,
            line.kappa,
            [(f.outcome.message, f.case.rows, f.case.columns) for f in line.findings],
        )
        for line in report.lines
    ]

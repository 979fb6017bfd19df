"""Says of what is required where nothing at all is known: a demand that was never put is not met."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from verifier.records.remark import Remark

if TYPE_CHECKING:
    from verifier.audit.record import Report
    from verifier.audit.request import Requirements
    from verifier.audit.run_audit import Job
    from verifier.commands.release.record import DtypeRecord


def never_measured(
    jobs: Iterable[Job], report: Report, measured: Iterable[DtypeRecord], required: Requirements
) -> Iterator[Remark]:
    """Yield what is required of a subject, or of one of its dtypes, of which nothing was found out.

    Such a subject may have no backend here, no shape that was asked for, or ended its process.
    """
    why: dict[tuple[str, str], str] = {}
    dtypes: dict[tuple[str, str, str], None] = {}
    for job in jobs:
        of_one = job.path, job.subject
        dtypes[*of_one, job.dtype] = None
        if not why.get(of_one):
            why[of_one] = job.missing if job.backend is None else ""
    if required.reach:
        known = {(one.path, one.subject) for one in report.reach}
        for path, name in (one for one in why if one not in known):
            demand = f"reach={required.reach:g} is required, and nothing is known of it"
            yield _said(name, "", demand, why[path, name])
    if required.ulp is not None:
        seen = {(one.path, one.subject, one.dtype) for one in measured}
        for path, name, dtype in (one for one in dtypes if one not in seen):
            demand = f"ulp={required.ulp:g} is required, and nothing was measured"
            yield _said(name, dtype, demand, why[path, name])
    if required.certificate:
        asked = {(one.path, one.subject, one.dtype) for one in report.certificates}
        for path, name, dtype in (one for one in dtypes if one not in asked):
            demand = "a certificate is required, and none could be asked for"
            yield _said(name, dtype, demand, why[path, name] or "it has no such shape")


def _said(subject: str, dtype: str, demand: str, why: str) -> Remark:
    named = f"{subject}  {dtype}" if dtype else subject
    return Remark(subject, f"{named}: {demand}" + (f": {why}" if why else ""))

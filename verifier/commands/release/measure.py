"""Measures what the release record holds: the sweep of `--costs` with a grid, summed up."""

from __future__ import annotations

import hashlib
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path

from verifier.audit.report.json_frame import versions
from verifier.commands.cost_of_dtype import (
    COLUMNS,
    LIMITS,
    Account,
    Cost,
    bits_lost,
    furthest,
    overflows_from,
)
from verifier.commands.release.alternatives import alternatives
from verifier.commands.release.record import (
    DtypeRecord,
    Environment,
    Figures,
    LostAt,
    RanCode,
    Trust,
    WhatIf,
)
from verifier.commands.release.rounded_inputs import input_rounding
from verifier.commands.release.stages import line_shares, stage_shares
from verifier.records.compiled_code import CompiledCode
from verifier.records.subject import Subject

ASKED = (0.0, 10.0, 100.0, 1000.0)
"""Values of kappa at which it is said what another way would give."""


def environment() -> Environment:
    """Return what a result depends on besides the kernel."""
    return Environment(system=platform.platform(), processor=platform.machine(), versions=versions())


def record(subject: Subject, found: Cost) -> DtypeRecord:
    """Sum up what a sweep has measured."""
    account = found.account
    holes = [e.lost for e in found.explained if e.lost]
    refused = account.refused
    if not refused and not account.plain:
        refused = "the subject ran on none of the inputs"
    return DtypeRecord(
        subject=subject.name,
        path=str(subject.path),
        source=hashlib.sha256(Path(subject.path).read_bytes()).hexdigest(),
        op=subject.op,
        variance=subject.claim.variance or "none",
        dtype=account.dtype,
        backend=account.backend,
        refused=refused,
        figures=() if refused else tuple(_figures(found)),
        what_if=tuple(_what_if(subject, account)),
        overflow=overflows_from(account),
        unexplained="; ".join(dict.fromkeys([found.unexplained, *holes])).strip("; "),
        missing=account.missing,
        code=None if account.compiled is None else _code(account.compiled),
        points=account.points,
        input_rounding=()
        if refused
        else tuple(
            one for one in input_rounding(subject, account.dtype) if one.output in account.plain[0].outputs
        ),
    )


def _figures(found: Cost) -> Iterator[Figures]:
    account = found.account
    plain = account.plain
    for name in plain[0].outputs:
        errors = [p.outputs[name] for p in plain if name in p.outputs]
        worst = max(errors, key=lambda e: e.worst)
        yield Figures(
            output=name,
            worst=worst.worst,
            tail=max(e.tail for e in errors),
            mean=max(e.mean for e in errors),
            signed=_largest([e.signed for e in errors]),
            rounded=max(e.rounded for e in errors),
            bits_lost=bits_lost(worst.worst, max(e.rounded for e in errors)),
            bound=_known(_largest([e.bound for e in errors])),
            trust=tuple(
                Trust(
                    limit=limit,
                    kappa=furthest(account, name, limit, "kappa"),
                    columns=furthest(account, name, limit, "columns"),
                    magnitude=furthest(account, name, limit, "magnitude"),
                )
                for limit in LIMITS
            ),
            lost=tuple(
                LostAt(kappa=explained.case.kappa, stages=stage_shares(one), lines=line_shares(one))
                for explained in found.explained
                for one in explained.outputs
                if one.output == name and one.shares
            ),
        )


def _largest(numbers: Sequence[float]) -> float:
    """Return the number of largest magnitude; NaN, which says that one is not known, where any is."""
    return next((one for one in numbers if math.isnan(one)), max(numbers, key=abs))


def _what_if(subject: Subject, account: Account) -> Iterator[WhatIf]:
    asked = [one.name for one in alternatives(subject) if not one.algorithm]
    for point in account.points:
        if point.kappa not in ASKED or (point.magnitude, point.columns) != (1.0, COLUMNS):
            continue
        for change in asked if point.alternatives else ():
            for output, bound in point.alternatives[change].items():
                yield WhatIf(
                    change=change,
                    output=output,
                    kappa=point.kappa,
                    declared=_known(point.outputs[output].bound),
                    changed=_known(bound),
                )


def _known(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None


def _code(found: CompiledCode) -> RanCode:
    return RanCode(
        kernels=found.kernels,
        digests=tuple(sorted(found.texts)),
        approximate=tuple(sorted(found.approximate)),
        flushes=found.flushes,
        fuses=found.fuses,
        half_sums=found.half_sums,
        atomics=found.atomics,
        host=tuple(sorted(found.host)),
        contents=tuple(sorted(found.contents, key=lambda one: (one.kernel, one.digest))),
    )

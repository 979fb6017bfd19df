"""What is required of a release, judged on its record: exact comparisons with what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from verifier.audit.request import Requirements
from verifier.commands.cost_of_dtype import COLUMNS
from verifier.commands.release.record import DtypeRecord
from verifier.records.remark import Remark


def unmet(records: Iterable[DtypeRecord], required: Requirements) -> list[Remark]:
    """Return what is required of errors and was not seen, a sentence for each output and dtype."""
    if required.ulp is None:
        return []
    kappa = _measured(required.kappa or 0.0)
    return [Remark(one.subject, text) for one in records for text in _unmet(one, required.ulp, kappa)]


def _measured(kappa: float) -> float:
    """Return the least kappa of the sweep, 0 or a power of ten, that is not below a required one."""
    return next((k for k in (0.0, *(10.0**power for power in range(39))) if k >= kappa), kappa)


def _unmet(one: DtypeRecord, ulp: float, kappa: float) -> Iterator[str]:
    named = f"{one.subject}  {one.dtype}"
    wanted = f"ulp={ulp:g}" + (f",kappa={kappa:g}" if kappa else "")
    if one.refused:
        yield f"{named}: {wanted} is required, and nothing was measured: {one.refused}"
        return
    open_ = sorted(k for k, magnitude, columns in one.missing if _asked(k, magnitude, columns, kappa))
    if open_:
        yield f"{named}: {wanted} is required, and there is no result at kappa {open_[0]:g}"
    points = [p for p in one.points if _asked(p.kappa, p.magnitude, p.columns, kappa)]
    if not any(p.outputs for p in points):
        yield f"{named}: {wanted} is required, and no output was measured"
    for output in dict.fromkeys(name for p in points for name in p.outputs):
        errors = [(p.outputs[output].worst if output in p.outputs else math.inf, p.kappa) for p in points]
        beyond = [(error, at) for error, at in errors if not error <= ulp]
        if beyond:
            error, at = max(beyond)
            yield f"{named}  {output}: {wanted} is required; its error is {error:.3g} ulp at kappa {at:g}"


def _asked(point: float, magnitude: float, columns: int, kappa: float) -> bool:
    return point <= kappa and (magnitude, columns) == (1.0, COLUMNS)

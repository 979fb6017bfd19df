"""Asks a subject's process what it does in each way of calling, and keeps shapes where only that matters.

The answer is kept like that of a sweep, and made when a check that calls so is to begin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from verifier.audit.budget import STEERED_SECONDS
from verifier.audit.sweep import (
    BATCH_SECONDS,
    PLACE,
    Sweep,
    hash_of,
    is_allowed,
    key_of,
    like_of,
    listed,
    shapes_of,
    sweep,
)
from verifier.cases import unlike_shapes
from verifier.cases.priced_shape import Reaching
from verifier.cases.steering import steering, without_many
from verifier.checks import checks
from verifier.checks.support.check import Check, no_ways
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.preloaded import StartError
from verifier.execution.ways_of_calling import CallingWay
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.files import cache_folder, keep
from verifier.records.planned_launches import ShapePoint, Unlike, WaysRun
from verifier.records.subject import Subject
from verifier.subjects.source_integers import compared_sizes, wrapper_sizes

EXPERIMENT = "verifier.execution.dry_ways:plan_ways"
MOST_COPIES = 8
"""Points at which first calls are looked at, each in a copy of the process: a copy costs as ten calls."""
CalledApart = Mapping[str, tuple[Reaching, ...]]
"""By check, shapes where one of its ways of calling differs as at none that it tries anyway."""

_known: dict[str, CalledApart] = {}


def checks_with_ways() -> list[Check]:
    """Return the checks that call subjects in ways which a dry run can make."""
    return [one for one in checks().values() if one.dry_ways is not no_ways]


def called_apart(
    subject: Subject, dtype: str, place: str, options: Mapping[str, object] | None = None
) -> CalledApart:
    """Return shapes for each check; none where a sweep says why it chose no shapes, or there is none."""
    found = sweep(subject, dtype, place, options)
    if found.why or not found.whole:
        return {}
    played = dict(options or {}) if place == PLACE else {}
    key = hashlib.sha256(f"{key_of(subject, dtype, played)}{_own_sources()}".encode()).hexdigest()
    if key not in _known:
        file = cache_folder("sweeps") / f"{key}.json"
        kept = _read(file)
        if kept is None:
            kept, sources = _made(subject, dtype, found, played)
            keep(file, _document(kept, sources))
        _known[key] = kept
    return _known[key]


def _made(
    subject: Subject, dtype: str, found: Sweep, played: Mapping[str, object]
) -> tuple[CalledApart, frozenset[str]]:
    """Make the dry runs; also return the sources that had a part in them."""
    the_op = op(subject.op)
    like = like_of(the_op, subject, dtype)
    assert like is not None  # or there was no sweep
    numbers = sorted({*wrapper_sizes(subject), *compared_sizes(subject)})
    points = unlike_shapes.points_for_ways(found.ends, found.whole, numbers)
    asked = []
    for check in checks_with_ways():
        if not check.skips(subject, the_op, dtype, PLACE):
            ways: Mapping[str, CallingWay] = check.dry_ways(subject, backend(PLACE))
            asked.append((check, any(way.history for way in ways.values())))
    made: dict[str, tuple[Reaching, ...]] = {}
    files: set[str] = set()
    with Runner(PLACE, options=played, case_seconds=BATCH_SECONDS) as runner:
        for check, alone in sorted(asked, key=lambda one: not one[1]):  # first calls are to be first
            look = _Look(runner=runner, subject=subject, case=like, check=check)
            made[check.NAME] = unlike_shapes.unlike_shapes(
                look,
                points[:MOST_COPIES] if alone else points,
                _tried(check, subject, found, first_calls=alone),
                found.features,
                lambda point: is_allowed(subject, the_op, point),
            )
            files |= look.files
    return {name: shapes for name, shapes in made.items() if shapes}, frozenset(files)


def _tried(check: Check, subject: Subject, found: Sweep, *, first_calls: bool) -> list[ShapePoint]:
    """Return what a check tries anyway: the shapes of its plan, and those that reach most.

    first_calls: whether it makes first calls, which it does in the first of its small shapes alone.
    """
    plan = check.plan(subject, op(subject.op))
    reaching = (found.whole if plan.gradients else found.forward) if plan.reaching else ()
    most = steering(
        (),
        without_many(reaching),
        cases=plan.most_reaching or 0,
        seconds=STEERED_SECONDS["quick"],
    )
    small = (plan.shapes or ())[: 1 if first_calls else None]
    points = [(rows, columns, 0) for rows, columns in small]
    points += [(shape.rows, shape.columns, shape.variant) for shape in most.shapes]
    return [*dict.fromkeys(points)]


@dataclass(kw_only=True)
class _Look:
    """Asks a child; what it does not answer stays unknown."""

    runner: Runner
    subject: Subject
    case: Case
    check: Check
    files: set[str] = field(default_factory=set)
    ended: bool = False

    def __call__(
        self, points: Sequence[ShapePoint], ways: Collection[str]
    ) -> Mapping[str, Mapping[ShapePoint, Unlike]]:
        """Return what differs at the points, nothing after a failure."""
        if self.ended:
            return {}
        try:
            seen = self.runner.run(
                self.subject,
                self.case,
                experiment=EXPERIMENT,
                points=points,
                gradients=bool(op(self.subject.op).differentiable) and self.subject.differentiable,
                of=f"{self.check.__name__}:dry_ways",
                only=tuple(sorted(ways)),
            )
        except StartError:  # the search itself will meet it
            self.ended = True
            return {}
        if seen.status != "ok":
            self.ended = True
            return {}
        answer = seen.found_as(WaysRun)
        self.files.update(answer.files)
        self.ended = bool(answer.ended)
        return answer.ways


# What is kept


@cache
def _own_sources() -> str:
    """Return a hash of the code that makes these dry runs and chooses shapes, beside that of sweeps."""
    execution = Path(__file__).parents[1] / "execution"
    own = (
        __file__,
        str(unlike_shapes.__file__),
        *(str(vars(check)["__file__"]) for check in checks_with_ways()),
        str(execution / "dry_ways.py"),
        str(execution / "ways_of_calling.py"),
    )
    return "".join(map(hash_of, own))


def _document(made: CalledApart, sources: Iterable[str]) -> str:
    record = {
        "sources": {file: hash_of(file) for file in sorted(sources)},
        "apart": {check: listed(shapes) for check, shapes in made.items()},
    }
    return json.dumps(record)


def _read(file: Path) -> CalledApart | None:
    """Return what is kept, unless it is damaged or one of its sources has changed."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if any(hash_of(source) != known for source, known in record["sources"].items()):
            return None
        return {str(check): shapes_of(shapes) for check, shapes in record["apart"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None

"""Asks a subject's process what it does in each way of calling, and keeps shapes where only that matters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from verifier.audit.search import STEERED_SECONDS
from verifier.cases.reaching_shapes import Reaching
from verifier.cases.steering import steering
from verifier.cases.unlike_shapes import Tried, points_for_ways, unlike_shapes
from verifier.checks import checks
from verifier.checks.support.check import Check, no_ways
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.preloaded import StartError
from verifier.execution.ways_of_calling import CallingWay
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.planned_launches import Planned, ShapePoint, Unlike, WaysRun
from verifier.records.subject import Subject
from verifier.subjects.source_integers import compared_sizes, wrapper_sizes

EXPERIMENT = "verifier.execution.dry_ways:plan_ways"
MOST_COPIES = 10
"""Points at which first calls are looked at, each in a copy of the process: a copy costs as ten calls."""
CalledApart = Mapping[str, tuple[Reaching, ...]]
"""By check, shapes where one of its ways of calling differs as at none that it tries anyway."""


def checks_with_ways() -> list[Check]:
    """Return the checks that call subjects in ways which a dry run can make."""
    return [one for one in checks().values() if one.dry_ways is not no_ways]


def called_apart(  # noqa: PLR0917 (what the plain calls have shown)
    runner: Runner,
    subject: Subject,
    dtype: str,
    like: Case,
    known: Mapping[ShapePoint, Planned],
    whole: Sequence[Reaching],
    forward: Sequence[Reaching],
    allowed: Callable[[ShapePoint], bool],
) -> tuple[CalledApart, frozenset[str]]:
    """Return shapes for each check, and the sources that had a part in them.

    like: a case that tells dtypes and scalars. known: what plain calls showed. whole, forward: the shapes
    that are chosen because of it.
    """
    the_op = op(subject.op)
    numbers = sorted({*wrapper_sizes(subject), *compared_sizes(subject)})
    points = points_for_ways(known, whole, numbers)
    plain = frozenset[str]().union(*(seen.features for seen in known.values()))
    gradients = bool(the_op.differentiable) and subject.differentiable
    asked = []
    for check in checks_with_ways():
        if not check.skips(subject, the_op, dtype, runner.backend):
            ways: Mapping[str, CallingWay] = check.dry_ways(subject, backend(runner.backend))
            asked.append((check, any(way.history for way in ways.values())))
    runner.renew()  # first calls are to be first
    found: dict[str, tuple[Reaching, ...]] = {}
    files: set[str] = set()
    for check, alone in sorted(asked, key=lambda one: not one[1]):
        look = _Look(runner=runner, subject=subject, case=like, gradients=gradients, check=check)
        tried = _tried(check, subject, known, whole, forward)
        few = points[:MOST_COPIES] if alone else points
        found[check.NAME] = unlike_shapes(look, few, tried, plain, allowed)
        files |= look.files
    return {name: shapes for name, shapes in found.items() if shapes}, frozenset(files)


def _tried(
    check: Check,
    subject: Subject,
    known: Mapping[ShapePoint, Planned],
    whole: Iterable[Reaching],
    forward: Iterable[Reaching],
) -> Tried:
    """Return what a check tries anyway: the shapes of its plan, and those that reach most."""
    plan = check.plan(subject, op(subject.op))
    reaching = [*(whole if plan.gradients else forward)] if plan.reaching else []
    most = steering((), reaching, cases=plan.most_reaching or 0, seconds=STEERED_SECONDS["quick"])
    points = [(rows, columns, 0) for rows, columns in plan.shapes or ()]
    points += [(shape.rows, shape.columns, shape.variant) for shape in most.shapes]
    compiled = (known[point].compiled for point in points if point in known)
    return Tried(points=tuple(dict.fromkeys(points)), compiled=frozenset[tuple[str, int]]().union(*compiled))


@dataclass(kw_only=True)
class _Look:
    """Asks a child; what it does not answer stays unknown."""

    runner: Runner
    subject: Subject
    case: Case
    gradients: bool
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
                gradients=self.gradients,
                of=f"{self.check.__name__}:dry_ways",
                only=tuple(sorted(ways)),
            )
        except StartError:  # the search itself will meet it
            self.ended = True
            return {}
        if seen.status != "ok":
            self.ended = True
            return {}
        answer: WaysRun = seen.found
        self.files.update(answer.files)
        self.ended = bool(answer.ended)
        return answer.ways

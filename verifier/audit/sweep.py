"""Asks a subject's process what it would launch at many extents, and keeps the shapes that reach it all.

The answer follows from sources alone: it is kept in memory and in the user's cache folder, by their hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path

from verifier.cases.covering_shapes import cover, launched_at, too_dear
from verifier.cases.launched_for_many import launched_for_many
from verifier.cases.priced_shape import CASE_SECONDS, Reaching, price
from verifier.cases.reaching_shapes import PLAIN, failing, seen_around, too_wide
from verifier.cases.recipe import Recipe, build, has_room
from verifier.cases.unlike_shapes import ends_of
from verifier.cases.unseen_by_launches import lengths_in_tables, long_diagonals
from verifier.execution import Runner
from verifier.execution.backend import Power
from verifier.execution.backends import backend as backend_of
from verifier.execution.backends import can
from verifier.execution.preloaded import StartError
from verifier.machine.model import Machine
from verifier.ops import Op, op
from verifier.records.case import Case
from verifier.records.files import cache_folder, keep
from verifier.records.planned_launches import DryRun, Planned, ShapePoint
from verifier.records.subject import Subject
from verifier.subjects.source_integers import compared_sizes, literals, tabled_sizes

EXPERIMENT = "verifier.execution.dry_run:plan_launches"
PLACE = "machine"
"""The backend whose children make dry runs, wherever the shapes are run later."""
POINTS_AT_ONCE = 300
"""Points that a child is asked for at once: less than a second of them."""
BATCH_SECONDS = 20.0
"""Limit of such a question; calls that hang are ended one by one before."""
_SIZE = (4, 8)
"""Extents of the case that tells dtypes and scalars; most ops have others, which `_LIKE` tries."""
_LIKE = (_SIZE, (1, 8), (8, 16), (2, 2), (1, 1))


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Shapes that reach what a subject can launch, the most worth for its price first.

    Last come those that are too dear to be run. forward: for checks that run the forward pass alone.
    why: why they are a plain list, or not all, in words. launched: kernels that any shape launches. loops: by
    file and line, whether one of theirs may turn more than once at a shape: True, False, or both. features:
    all that any shape shows. ends: as of `ends_of`. for_many: as of `launched_for_many`. refused: the
    smallest shape that the wrapper refuses in words of its own, and these, if there is one.
    """

    whole: tuple[Reaching, ...] = ()
    forward: tuple[Reaching, ...] = ()
    why: str = ""
    launched: frozenset[str] = frozenset()
    loops: frozenset[tuple[str, int, bool]] = frozenset()
    features: frozenset[str] = frozenset()
    ends: tuple[ShapePoint, ...] = ()
    for_many: tuple[Reaching, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


_known: dict[str, Sweep] = {}


def sweep(subject: Subject, dtype: str, backend: str, options: Mapping[str, object] | None = None) -> Sweep:
    """Return the shapes for a subject and a dtype; none where no code is compiled for a device.

    A wrapper that raises, hangs or launches nothing without numbers to read has those of a plain list.
    """
    if subject.language == "torch" or not can(backend, Power.READS_CODE):
        return Sweep()
    if subject.language not in backend_of(PLACE).languages:
        # A call of it there would compile for no device, and might keep that for the calls that count.
        plain = tuple(_plain(subject, op(subject.op)))
        return Sweep(whole=plain, forward=plain, why=f"the {PLACE} runs no kernels in {subject.language}")
    played = dict(options or {}) if backend == PLACE else {}
    key = key_of(subject, dtype, played)
    if key not in _known:
        file = cache_folder("sweeps") / f"{key}.json"
        kept = _read(file)
        if kept is None:
            first = subject.dtypes[0]
            like = sweep(subject, first, backend, options).whole if dtype != first else ()
            like = tuple(shape for shape in like if shape.seconds <= CASE_SECONDS)
            kept, sources = _made(subject, dtype, like, played)
            keep(file, _document(kept, sources))
        _known[key] = kept
    return _known[key]


def _made(
    subject: Subject, dtype: str, reached: Sequence[Reaching], played: Mapping[str, object]
) -> tuple[Sweep, tuple[str, ...]]:
    """Make the dry runs; also return the sources that had a part in them.

    reached: the shapes of another dtype, if they are known.
    """
    the_op = op(subject.op)
    like = like_of(the_op, subject, dtype)
    if like is None:
        return Sweep(why="no case tells its dtypes"), ()
    with Runner(PLACE, options=played, case_seconds=BATCH_SECONDS) as runner:
        asking = _Asking(runner=runner, subject=subject, case=like, gradients=_backward(subject, the_op))
        known = seen_around(
            asking,
            lambda point: is_allowed(subject, the_op, point),
            the_op.variants,
            lambda: literals(asking.files),
            reached,
            compared_sizes(subject),
            the_op.at_integers,
            {**lengths_in_tables(tabled_sizes(subject)), **long_diagonals(the_op.diagonals)},
        )
        whole, forward = _shown(known), _shown({p: seen.forward or seen for p, seen in known.items()})
        refusals = [seen.refused for seen in known.values() if seen.refused]
        why = asking.ended or ("" if whole else next(iter(refusals), "it launches no kernel"))
    if not whole and why:
        whole = forward = _plain(subject, the_op)
    launched, loops = _in_any(known.values()) if whole and not why else (frozenset(), frozenset())
    found = Sweep(
        whole=tuple(whole),
        forward=tuple(forward),
        why=why,
        launched=launched,
        loops=loops,
        features=frozenset[str]().union(*(seen.features for seen in known.values())),
        ends=ends_of(known),
        for_many=launched_for_many(known),
        refused=_refused(known),
    )
    return found, tuple(sorted(asking.files))


def _in_any(planned: Iterable[Planned]) -> tuple[frozenset[str], frozenset[tuple[str, int, bool]]]:
    """Return the kernels that are launched anywhere, and what is known of their loops."""
    every = list(planned)
    launched = frozenset[str]().union(*map(launched_at, every))
    return launched, frozenset().union(*(seen.loops for seen in every))


def _refused(known: Mapping[ShapePoint, Planned]) -> tuple[tuple[str, str], ...]:
    points = [p for p, seen in known.items() if seen.refused and not seen.fails]
    smallest = sorted(points, key=lambda p: (p[0] * p[1], p))[:1]
    return tuple((f"{p[0]} x {p[1]}", known[p].refused) for p in smallest)


def _shown(known: Mapping[ShapePoint, Planned]) -> list[Reaching]:
    chosen = cover(known)
    ending = [*too_wide(known), *(failing(known) if chosen else ())]
    return [*ending, *(shape for shape in (*chosen, *too_dear(known, chosen)) if shape not in ending)]


def _plain(subject: Subject, the_op: Op) -> list[Reaching]:
    """Return the shapes to run where no dry run says what is launched."""
    return [
        Reaching(rows=rows, columns=columns, seconds=round(price(rows, columns), 2))
        for rows, columns in PLAIN
        if is_allowed(subject, the_op, (rows, columns, 0))
    ]


def _backward(subject: Subject, the_op: Op) -> bool:
    return bool(the_op.differentiable) and subject.differentiable


def like_of(the_op: Op, subject: Subject, dtype: str) -> Case | None:
    """Return a small case with everything given."""
    made = (
        build(the_op, subject, dtype, Recipe(rows=rows, columns=columns, variant=variant), gradients=True)
        for rows, columns in _LIKE
        for variant in range(the_op.variants)
    )
    return next((case for case in made if case is not None), None)


def is_allowed(subject: Subject, the_op: Op, point: ShapePoint) -> bool:
    """Return whether the op and the subject have such a case, inside the promised extents."""
    shapes = the_op.shapes(*point)
    if shapes is None or not has_room(the_op, subject, shapes):
        return False
    if subject.domain is None:
        return True
    return not any(subject.domain.exceeded(*point[:2], rank=len(shapes.tensors["input"])))


@dataclass(kw_only=True)
class _Asking:
    """Asks a child, some points at a time; the first failure ends it."""

    runner: Runner
    subject: Subject
    case: Case
    gradients: bool
    files: set[str] = field(default_factory=set)
    ended: str = ""

    def __call__(self, points: Sequence[ShapePoint]) -> list[Planned]:
        """Return the plans of the points, or of the first of them."""
        found: list[Planned] = []
        for start in range(0, len(points), POINTS_AT_ONCE):
            part = points[start : start + POINTS_AT_ONCE]
            answer = None if self.ended else self._answer(part)
            if answer is None:
                break
            found += answer.planned
            self.files.update(answer.files)
            self.ended = answer.ended
        return found

    def _answer(self, points: Sequence[ShapePoint]) -> DryRun | None:
        try:
            seen = self.runner.run(
                self.subject, self.case, experiment=EXPERIMENT, points=points, gradients=self.gradients
            )
        except StartError as error:  # the search itself will meet it
            self.ended = str(error)
            return None
        if seen.status != "ok":
            self.ended = seen.message
            return None
        return seen.found_as(DryRun)


# What is kept


def key_of(subject: Subject, dtype: str, played: Mapping[str, object]) -> str:
    """Return a hash of what the answer follows from, but for sources that only the dry run names.

    The machine's architecture and its number of multiprocessors are a part: wrappers ask for both.
    played: fields of `Machine` that are not the usual ones.
    """
    parts = [str(subject.path), subject.name, subject.op, dtype, repr(subject.domain), _own_sources()]
    parts += [
        repr(Machine()),
        repr(sorted(played.items())),
        hash_of(str(subject.path)),
        *map(_version, ("torch", "triton", "norm-verifier")),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


@cache
def _own_sources() -> str:
    """Return a hash of the code that makes dry runs and chooses shapes."""
    root = Path(__file__).parents[1]
    own = (
        Path(__file__),
        *sorted((root / "cases").glob("*.py")),
        root / "execution" / "dry_run.py",
        root / "execution" / "loops_of_source.py",
        root / "execution" / "turns_of_loops.py",
        root / "execution" / "wrapper_lines.py",
        root / "subjects" / "source_map.py",
        root / "subjects" / "source_integers.py",
        root / "subjects" / "source_numbers.py",
        root / "subjects" / "used_functions.py",
        *sorted((root / "machine" / "device").glob("*.py")),
        root / "machine" / "model.py",
    )
    return hashlib.sha256("".join(map(hash_of, map(str, own))).encode()).hexdigest()


def hash_of(file: str) -> str:
    """Return a hash of what a file holds."""
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return "unreadable"


def listed(shapes: Iterable[Reaching]) -> list[list[object]]:
    """Return shapes as plain data."""
    return [
        [s.rows, s.columns, s.variant, s.seconds, s.opens, s.shows, sorted(s.launches), sorted(s.turns)]
        for s in shapes
    ]


def _document(made: Sweep, sources: Iterable[str]) -> str:
    record = {
        "sources": {file: hash_of(file) for file in sources},
        "whole": listed(made.whole),
        "forward": listed(made.forward),
        "why": made.why,
        "launched": sorted(made.launched),
        "loops": sorted(made.loops),
        "features": sorted(made.features),
        "ends": made.ends,
        "for_many": listed(made.for_many),
        "refused": made.refused,
    }
    return json.dumps(record)


def _read(file: Path) -> Sweep | None:
    """Return what is kept, unless it is damaged or one of its sources has changed."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        if any(hash_of(source) != known for source, known in record["sources"].items()):
            return None
        whole, forward = shapes_of(record["whole"]), shapes_of(record["forward"])
        ends = tuple((int(rows), int(columns), int(variant)) for rows, columns, variant in record["ends"])
        loops = frozenset((str(path), int(line), bool(again)) for path, line, again in record["loops"])
        launched = frozenset(map(str, record["launched"]))
        return Sweep(
            whole=whole,
            forward=forward,
            why=str(record["why"]),
            launched=launched,
            loops=loops,
            features=frozenset(map(str, record["features"])),
            ends=ends,
            for_many=shapes_of(record["for_many"]),
            refused=tuple((str(shape), str(words)) for shape, words in record["refused"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def shapes_of(
    several: Iterable[tuple[int, int, int, float, bool, bool, Sequence[str], Sequence[tuple[str, int]]]],
) -> tuple[Reaching, ...]:
    """Return the shapes of which `listed` made plain data."""
    return tuple(
        Reaching(
            rows=int(rows),
            columns=int(columns),
            variant=int(variant),
            seconds=float(seconds),
            opens=bool(opens),
            shows=bool(shows),
            launches=frozenset(map(str, launches)),
            turns=frozenset((str(file), int(line)) for file, line in turns),
        )
        for rows, columns, variant, seconds, opens, shows, launches, turns in several
    )

"""Which calls a function refuses: the domain that it keeps to, as far as extents, ranks and layouts go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from strategies.layouts import Layout
from verifier.cases.recipe import Recipe, build, has_room
from verifier.commands.describing.launched_language import DRY_RUN, PLACE
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.records.planned_launches import DryRun
from verifier.records.subject import Subject

LAYOUTS = {
    "transposed": Layout(order="transposed"),
    "sliced": Layout(column_step=2),
    "padded_rows": Layout(row_padding=3),
    "expanded": Layout(expanded="rows"),
    "storage_offset": Layout(storage_offset=4),
    "misaligned": Layout(misaligned=True),
}
"""Layouts of the input that are tried, one of each kind that a 2-D tensor has."""
OF_WEIGHT = ("sliced", "expanded")
"""Those that are tried of weight."""
DIM = "dim"
"""The argument that names the dimension of a softmax."""
COLUMNS = (2, 4, 8, 16, 32)
"""Extents that are tried until one is accepted."""
ODD = 257
"""Columns of which no vector and no block is a divisor."""
WIDEST = 1 << 20
"""Columns up to which a largest extent is looked for."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a domain is to say, as the words of `Domain`, and what was refused with which words."""

    words: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def limits(trial: Subject, runner: Runner, dtype: str, runner_of: type[Runner]) -> Limits:
    """Return the limits of what a function accepts.

    Only clear refusals count: what crashes or goes wrong is left to the audit.
    """
    with ExitStack() as stack:
        compiled = trial.language != "torch" and backend(PLACE).unavailable() is None
        dry = stack.enter_context(runner_of(PLACE)) if compiled else None
        probe = _Probe(trial=trial, runner=runner, dtype=dtype, dry=dry)
        found = [*_extents(probe), *_rank(probe), *_layouts(probe), *_widest(probe)]
    words = tuple(word for word, _ in found if word)
    return Limits(words=words, remarks=tuple(f"domain: {why}" for _, why in found))


def refused_dimension(trial: Subject, runner: Runner, dtype: str) -> str:
    """Return the words in which a function refuses all dimensions but the last; nothing if it takes one."""
    the_op, probe = op(trial.op), _Probe(trial=trial, runner=runner, dtype=dtype, dry=None)
    found: dict[bool, list[str]] = {True: [], False: []}
    for variant in range(the_op.variants):
        shapes = the_op.shapes(4, 256, variant)
        if shapes is not None and DIM in shapes.scalars and has_room(the_op, trial, shapes):
            last = shapes.scalars[DIM] in {-1, len(shapes.tensors["input"]) - 1}
            found[last].append(probe.refusal(4, 256, variant=variant))
    taken = bool(found[True]) and not any(found[True])
    return found[False][0] if taken and found[False] and all(found[False]) else ""


@dataclass(frozen=True, kw_only=True)
class _Probe:
    """A function that is called to see whether it refuses. dry: makes dry runs of it, which are cheap."""

    trial: Subject
    runner: Runner
    dtype: str
    dry: Runner | None

    def refusal(self, rows: int, columns: int, *, variant: int = 0) -> str:
        """Return the words in which a call is refused, or nothing."""
        if self.dry is not None and not self._dry_refusal(rows, columns, variant):
            return ""
        return self.called(Recipe(rows=rows, columns=columns, variant=variant))

    def called(self, recipe: Recipe) -> str:
        """Return the same of a case, by a call."""
        case = build(op(self.trial.op), self.trial, self.dtype, recipe, gradients=False)
        if case is None:
            return ""
        seen = self.runner.run(self.trial, case, gradients=False)
        return seen.message if seen.status == "refused" else ""

    def _dry_refusal(self, rows: int, columns: int, variant: int) -> bool:
        """Return whether a dry run raises something; one that cannot be made tells nothing."""
        like = Recipe(rows=4, columns=256, variant=variant)
        case = build(op(self.trial.op), self.trial, self.dtype, like, gradients=False)
        if case is None or self.dry is None:
            return False
        points = ((rows, columns, variant),)
        seen = self.dry.run(self.trial, case, experiment=DRY_RUN, points=points, gradients=False)
        if seen.status != "ok":
            return True
        found = seen.found_as(DryRun)
        return not found.planned or bool(found.planned[0].refused)


def _extents(probe: _Probe) -> Iterator[tuple[str, str]]:
    """Yield the least rows and columns; a word of `Domain` is empty where it has none for what is refused."""
    if why := probe.refusal(1, 1) or probe.refusal(4, 1):
        least = next((c for c in COLUMNS if not probe.refusal(1, c)), None)
        yield "" if least is None else f"min_columns={least}", f"one column is refused ({why})"
    elif why := probe.refusal(2, ODD):
        yield "", f"{ODD} columns are refused ({why}), which no domain says: an audit will report it"
    line = next((v for v, rank in _ranks(probe, rows=1) if rank == 1), None)
    if line is not None and (why := probe.refusal(1, 256, variant=line)):
        yield "min_rows=2", f"one dimension is refused ({why}), and so one row is not promised"
    elif why := probe.refusal(0, 256):
        yield "min_rows=1", f"an input without rows is refused ({why})"


def _rank(probe: _Probe) -> Iterator[tuple[str, str]]:
    """Yield the largest rank, if inputs of all higher ones are refused."""
    usual = next((rank for v, rank in _ranks(probe) if v == 0), 0)
    seen = [(rank, probe.refusal(4, 256, variant=v)) for v, rank in _ranks(probe) if rank > usual]
    refused = [(rank, why) for rank, why in seen if why]
    if refused and all(why for rank, why in seen if rank >= min(refused)[0]):
        least, why = min(refused)
        yield f"max_rank={least - 1}", f"{least} dimensions are refused ({why})"


def _ranks(probe: _Probe, *, rows: int = 4) -> Iterator[tuple[int, int]]:
    """Yield the variants that the function has room for, with the rank of their inputs."""
    the_op = op(probe.trial.op)
    for variant in range(the_op.variants):
        shapes = the_op.shapes(rows, 256, variant)
        if shapes is not None and has_room(the_op, probe.trial, shapes):
            yield variant, len(shapes.tensors["input"])


def _layouts(probe: _Probe) -> Iterator[tuple[str, str]]:
    tried = [("input", name) for name in LAYOUTS]
    tried += [("weight", name) for name in OF_WEIGHT if "weight" in probe.trial.signature]
    refused: dict[str, str] = {}
    for tensor, name in tried:
        told = probe.called(Recipe(rows=4, columns=256, layouts=((tensor, LAYOUTS[name]),)))
        if told:
            refused.setdefault(name, f"{tensor}: {told}")
    if not refused:
        return
    kept = ["contiguous", *(name for name in LAYOUTS if name not in refused)]
    names = ", ".join(f'"{name}"' for name in kept) + ("," if len(kept) == 1 else "")
    name, why = next(iter(refused.items()))
    yield f"layouts=({names})", f"tensors that are {' or '.join(refused)} are refused ({name} {why})"


def _widest(probe: _Probe) -> Iterator[tuple[str, str]]:
    """Yield the largest number of columns that is accepted."""
    if not probe.refusal(1, WIDEST):
        return
    low, refused = 256, WIDEST
    while refused - low > 1:
        middle = (low + refused) // 2
        if probe.refusal(1, middle):
            refused = middle
        else:
            low = middle
    yield f"max_columns={low}", f"{refused} columns are refused ({probe.refusal(1, refused)})"

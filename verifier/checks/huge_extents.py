"""Contiguous tensors of more than 2^31 elements give right rows where 32-bit offsets no longer reach."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from strategies.layouts import Layout
from strategies.placement import Placed
from verifier.cases.plan import Plan
from verifier.checks.support.bits import differing
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.machine.device.lazy_tensors import LazyTensors
from verifier.machine.device.tensor_places import put
from verifier.machine.model import ChosenRows
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "huge_extents"
ORDER = 165
HEAVY = True
"""Maps many gigabytes, though it touches few: such cases run one at a time."""
NEEDS_A_NORM = f"{NO_BOUND}, however many rows there are"
DEMANDS = (
    "first, last and middle rows of contiguous tensors of more than 2^31 elements are within their bounds,"
    " where blocks of other rows can be left out without changing them"
)
WHY = (
    "a row number times a row length is a 32-bit product in most kernels, and a wrapper that makes its input"
    " contiguous hides that from large strides: batches of two million tokens overwrite each other"
)
CATCHES = ("rows_in_32_bits_triton",)

COLUMNS = 1024
ROWS = (0, 2**20 - 1, 2**20, 2**21 - 1, 2**21, 2**21 + 7)
"""Rows that are looked at: the first, the last, and those about 2^30 and 2^31 elements."""
EXTENT = ROWS[-1] + 1
FEW_ROWS = (0, 1, 65, 66, 129, 130)
FEW = FEW_ROWS[-1] + 1
"""Rows of a small tensor, on which leaving blocks out has to change nothing; a prime number, so that few
grids have as many blocks by chance."""
MOST_CASES = 4
_PROOFS = frozenset({"out_of_bounds", "misaligned"})
"""What the machine finds of a wrong offset. Whatever else ends a call may be due to blocks that were left
out, or be a refusal of so many rows, which is safe."""


_NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.13 on: no promise of memory for what is never touched."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for as many rows as are looked at."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        shapes=((len(ROWS), COLUMNS),),
        eps=(1e-5,),
        max_rank=2,
        most=MOST_CASES,
    )


def skips(subject: Subject, op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where blocks can be left out, unless the domain ends before."""
    shapes = op.shapes(len(ROWS), COLUMNS, 0)
    if shapes is None or tuple(shapes.tensors["input"]) != (len(ROWS), COLUMNS):
        return "its rows are not those of a matrix, of which some could be chosen"
    if not can(backend, Power.CHOOSES_ROWS):
        return "it needs a backend that runs chosen blocks alone (machine)"
    limit = None if subject.domain is None else subject.domain.max_rows
    if limit is not None and limit < EXTENT:
        return f"the declared domain ends at {limit} rows"
    return None


def check(session: Session) -> list[Outcome]:
    """Judge the chosen rows of a huge tensor, if a small one shows that the others may be left out."""
    if session.case.input_shape != (len(ROWS), COLUMNS) or session.case.rows != len(ROWS):
        return []
    backward = bool(session.op.differentiable) and session.subject.differentiable
    left_out = []
    for gradients in (True, False) if backward else (False,):
        known, reason = _independent(session, gradients)
        if reason:
            left_out.append(_not_judged("gradients" if gradients else "rows", reason))
            continue
        seen = _run(session, gradients=gradients, extent=EXTENT, rows=ROWS, alone=True)
        if why := _untold(seen, known):
            left_out.append(_not_judged("gradients" if gradients else "rows", why))
            continue
        session.accept(seen)
        return [*left_out, *_judged(session, seen)]
    return left_out[-1:]


def _judged(session: Session, seen: Observation) -> list[Outcome]:
    names = ("output", *gradient_names(session.subject, session.op))
    damage = [Outcome(verdict=Verdict.FAIL, output=m.split(":")[0], message=m) for m in seen.damage]
    outcomes = [*damage, *judge(session.truth, seen, names)]
    return outcomes or [_not_judged("rows", "no result has as many rows as the input")]


def _untold(seen: Observation, known: object) -> str:
    """Say why an execution on a huge tensor tells nothing, if so."""
    if seen.status == "ok":
        other = "grids follow the rows in another way than those of a small tensor"
        return "" if seen.found == known else other
    return "" if seen.aftermath.machine_finding in _PROOFS else seen.message


def _not_judged(what: str, reason: str) -> Outcome:
    text = f"{what} of huge tensors are not judged: {reason}"
    return Outcome(verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text))


def _independent(session: Session, gradients: bool) -> tuple[object, str]:
    """Return how the grids of a small tensor follow its rows, and why chosen rows do not run alone, if so."""
    settings = {"gradients": gradients, "extent": FEW, "rows": FEW_ROWS}
    alone = _run(session, **settings, alone=True)
    if alone.status != "ok":
        return (), f"blocks of a small tensor's rows do not run alone: {alone.message}"
    if not alone.found:
        return (), "no kernel was launched"
    whole = _run(session, **settings, alone=False)
    if whole.status != "ok":
        return (), f"a small tensor is not computed: {whole.message}"
    words = "with all blocks of a small tensor and with those of some rows"
    texts = [t for name in whole.outputs if (t := differing(name, whole.outputs, alone.outputs, words))]
    return alone.found, f"blocks depend on each other ({texts[0]})" if texts else ""


def _run(session: Session, **settings: object) -> Observation:
    return session.run(
        session.subject, session.case, experiment="verifier.checks.huge_extents:experiment", **settings
    )


def experiment(
    subject: Subject,
    case: Case,
    *,
    place: Backend,
    gradients: bool,
    extent: int,
    rows: tuple[int, ...],
    alone: bool,
) -> Observation:
    """Execute on a tensor of `extent` rows that has the case's at `rows`; runs in the child.

    alone: run the blocks of these rows alone; the others hold zeros then, and other values otherwise, so
    that a row on which they have an influence differs. Finds how grids followed the rows. Of the results,
    those that have rows are returned, with these rows alone.
    """
    placer = _Placer(extent=extent, rows=rows, filled=not alone)
    chosen = ChosenRows(extent=extent, rows=rows) if alone else None
    with place.varied(chosen_rows=chosen), LazyTensors():  # type: ignore[no-untyped-call]
        seen = execute(subject, case, place=place, gradients=gradients, placer=placer)
    return replace(seen, outputs=_rows_of(seen.outputs, extent, rows), found=place.followed())


def _rows_of(
    outputs: Mapping[str, torch.Tensor | None], extent: int, rows: tuple[int, ...]
) -> dict[str, torch.Tensor | None]:
    at = list(rows)
    return {
        name: torch.stack([t[row] for row in at])
        for name, t in outputs.items()
        if t is not None and t.dim() and t.shape[0] == extent
    }


@dataclass(frozen=True, kw_only=True)
class RowsPlaced:
    """A tensor of many rows, of which some have the values of a case."""

    tensor: torch.Tensor
    values: torch.Tensor
    rows: tuple[int, ...]

    def damage(self) -> Iterator[str]:
        """Watch no other rows: looking would commit them all."""
        yield from ()

    def value_damage(self) -> Iterator[str]:
        """Say whether the values were written."""
        now = torch.stack([self.tensor.detach()[row] for row in self.rows])
        if not torch.equal(now, self.values):
            yield "its values changed"


@dataclass(frozen=True, kw_only=True)
class _Placer:
    """Puts tensors with rows into memory that is committed on touch, all others where they usually are."""

    extent: int
    rows: tuple[int, ...]
    filled: bool

    def __call__(
        self, _name: str, layout: Layout, values: torch.Tensor, *, guard_elements: int, poison: str
    ) -> Placed | RowsPlaced:
        """Return the tensor with its values in place."""
        if values.dim() == 0 or values.shape[0] != len(self.rows):
            return layout.place(values, guard_elements=guard_elements, poison=poison)
        tensor = _pages(self.extent, values)
        if self.filled:
            generator = torch.Generator().manual_seed(0)
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        for row, value in zip(self.rows, values, strict=True):
            tensor[row] = value
        return RowsPlaced(tensor=tensor, values=values.clone(), rows=self.rows)


def _pages(extent: int, values: torch.Tensor) -> torch.Tensor:
    """Return zeros of `extent` rows, of which pages exist once they are written."""
    shape = (extent, *values.shape[1:])
    octets = torch.Size(shape).numel() * values.dtype.itemsize
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
    pages = mmap.mmap(-1, octets, flags=kind)
    return put(torch.frombuffer(pages, dtype=values.dtype), values.device).view(shape)

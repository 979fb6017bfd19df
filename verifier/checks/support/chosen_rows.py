"""An execution on a tensor of many rows of which a few have numbers: those of a case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from strategies.layouts import Layout
from strategies.placement import Placed
from verifier.checks.support.untouched_pages import untouched_pages
from verifier.execution.backend import Backend
from verifier.execution.call_subject import execute
from verifier.machine.device.lazy_tensors import LazyTensors
from verifier.machine.device.tensor_places import put
from verifier.machine.model import ChosenRows
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import PARAMETERS, Subject


@dataclass(frozen=True, kw_only=True)
class SeenOfChosen:
    """How grids followed the rows, and which results have as many rows."""

    followed: tuple[object, ...]
    with_rows: tuple[str, ...]


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    extent: int,
    rows: tuple[int, ...],
    axis: int,
    each: int,
    alone: bool,
    filled: bool | None = None,
    as_before: tuple[object, ...] | None = None,
) -> Observation:
    """Execute on a tensor of `extent` rows that has the case's at `rows`; runs in the child.

    axis: of the input, along which its rows lie. each: how many rows a place of it has. alone: run the
    blocks of these rows alone, where grids follow the rows. filled: whether the others hold numbers, so that
    a row on which they have an influence differs, or zeros; as the blocks that run, unless it is said.
    as_before: how grids have to follow the rows. Of the results, those that have rows are returned with these
    rows alone, and others as they are.
    """
    placer = _Placer(extent=extent, rows=rows, axis=axis, filled=not alone if filled is None else filled)
    every = tuple(row * each + number for row in rows for number in range(each))
    chosen = ChosenRows(extent=extent * each, rows=every, as_before=as_before) if alone else None
    with backend.varied(chosen_rows=chosen), LazyTensors():  # type: ignore[no-untyped-call]
        seen = execute(subject, case, backend=backend, gradients=gradients, placer=placer)
    along = {n: axis_of(t.shape, extent, axis) for n, t in seen.outputs.items() if t is not None}
    outputs = {name: _at(t, rows, along.get(name)) for name, t in seen.outputs.items()}
    for name, t in seen.outputs.items():  # a statistic of each row of a sample
        if t is not None and each > 1 and t.shape == (extent * each,):
            outputs[name], along[name] = _at(t, every, 0), 0
    with_rows = tuple(name for name, a in along.items() if a is not None)
    found = SeenOfChosen(followed=backend.followed(), with_rows=with_rows)
    return replace(seen, outputs=outputs, found=found)


def axis_of(shape: Sequence[int], rows: int, axis: int) -> int | None:
    """Return along which axis a tensor has rows if those of the input lie along `axis`; None if it has none.

    Where rows are channels, a tensor of one axis has one number of each.
    """
    of_this = 0 if len(shape) == 1 else axis
    return of_this if len(shape) > of_this and shape[of_this] == rows else None


def _at(tensor: torch.Tensor | None, rows: Sequence[int], axis: int | None) -> torch.Tensor | None:
    """Return these rows of a tensor, or all of it if it has none."""
    if tensor is None or axis is None:
        return tensor
    return torch.stack([tensor.select(axis, row) for row in rows], dim=axis)


@dataclass(frozen=True, kw_only=True)
class RowsPlaced:
    """A tensor of many rows, of which some have the values of a case."""

    tensor: torch.Tensor
    values: torch.Tensor
    rows: tuple[int, ...]
    axis: int

    def damage(self) -> Iterator[str]:
        """Watch no other rows: looking would commit them all."""
        yield from ()

    def value_damage(self) -> Iterator[str]:
        """Say whether the values were written."""
        now = _at(self.tensor.detach(), self.rows, self.axis)
        assert now is not None
        if not torch.equal(now, self.values):
            yield "its values changed"


@dataclass(frozen=True, kw_only=True)
class _Placer:
    """Puts tensors with rows into memory that is committed on touch, all others where they usually are."""

    extent: int
    rows: tuple[int, ...]
    axis: int
    filled: bool

    def __call__(
        self, name: str, layout: Layout, values: torch.Tensor, *, guard_elements: int, poison: str
    ) -> Placed | RowsPlaced:
        """Return the tensor with its values in place."""
        axis = axis_of(values.shape, len(self.rows), self.axis)
        if axis is None or (name in PARAMETERS and self.axis == 0):
            return layout.place(values, guard_elements=guard_elements, poison=poison)
        tensor = _pages(self.extent, values, axis)
        if self.filled:
            generator = torch.Generator().manual_seed(0)
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
        for row, value in zip(self.rows, values.unbind(axis), strict=True):
            tensor.select(axis, row).copy_(value)
        return RowsPlaced(tensor=tensor, values=values.clone(), rows=self.rows, axis=axis)


def _pages(extent: int, values: torch.Tensor, axis: int) -> torch.Tensor:
    """Return zeros of `extent` rows, of which pages exist once they are written."""
    shape = (*values.shape[:axis], extent, *values.shape[axis + 1 :])
    octets = torch.Size(shape).numel() * values.dtype.itemsize
    return put(torch.frombuffer(untouched_pages(octets), dtype=values.dtype), values.device).view(shape)

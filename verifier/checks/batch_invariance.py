"""The bits of a row do not depend on how many rows there are, where it stands, or its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from verifier.cases.plan import Plan
from verifier.checks.support.bits import BitNumbers, Results, bit_numbers, comparable, demanded
from verifier.checks.support.session import Session, gradient_names
from verifier.ops import Op
from verifier.records.case import Case
from verifier.records.observation import Deviation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome

NAME = "batch_invariance"
GUARANTEE = "the bits of a row do not depend on the other rows, their number or its place"
ORDER = 80
DEMANDS = (
    "where batch invariance is guaranteed, the bits of a row do not depend on the number of rows, on its "
    "position or on its neighbours"
)
WHY = (
    "a wrapper that chooses its launch by the number of rows sums in another order for another batch: the "
    "same prompt gets another answer"
)
CATCHES = (
    "sums_by_number_of_rows",
    "other_tile_for_many_rows_triton",
    "stride_of_nought_aligned_triton",
)

# Rows around which wrappers change their launch: warps, blocks, and the multiprocessors of
# common devices (8 and 132 among them), with their neighbours.
THRESHOLDS = (1, 2, 4, 8, 16, 32, 64, 108, 128, 132, 160, 256, 512, 1024)
COUNTS = tuple(sorted({n + d for n in THRESHOLDS for d in (-1, 0, 1)} - {0}))
SWEPT = 3
"""Numbers of rows tried for one case: the cases together sweep them all."""
MAX_ELEMENTS, FEW_ROWS = 32768, 4
"""Elements of another number of rows, at most, unless it is one of so few."""
MANY = 7
"""Of a batch so many times as large, or more, rows come from all over; of a smaller one, every seventh."""
FOR_MANY = 8
"""Shapes of a quick budget with as many rows as are launched otherwise than fewer."""

RowPlaces = Sequence[tuple[str, int]]


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for a few rows whose sums depend on their order, and for as many as change what is launched."""
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary", "lognormal", "one_outlier"),
        joint=False,
        max_elements=4800,
        max_rows=300,
        min_rows=1,
        min_columns=1,
        eps=(1e-5,),
        reaching=NAME in subject.guarantees,
        for_many=FOR_MANY,
    )


def check(session: Session) -> list[Outcome]:
    """Run the case's rows in other numbers and other places, and compare the bits of each row."""
    case = session.case
    places = row_places(session.op, case)
    if places is None:
        return []
    backward = bool(session.op.differentiable) and session.subject.differentiable
    names = [n for n in ("output",) if n in session.op.outputs]
    if backward or not session.op.differentiable:
        names += [n for n in gradient_names(session.subject, session.op) if n == "grad_input"]
    base = session.execute(gradients=backward)
    if wrong := session.shape_outcomes(base, tuple(names)):
        return wrong
    found: dict[str, Deviation] = {}
    counts: set[int] = set()
    for taken in _arrangements(session.op, case, places):
        other = case
        for axes, index in taken:
            other = arranged(session.op, other, axes, index)
        if session.subject.domain is not None and session.subject.domain.excludes(other):
            continue
        elsewhere = replace(session, case=other)
        seen = elsewhere.execute(gradients=backward)
        if wrong := elsewhere.shape_outcomes(seen, tuple(names)):
            return wrong
        counts.add(other.rows)
        before, after = _row_numbers(session.op, case), _row_numbers(session.op, other, case, taken)
        for name in base.outputs:
            unlike = _compare(session.op, name, (case, base.outputs, before), (other, seen.outputs, after))
            if unlike is not None:
                found.setdefault(name, unlike)
    if not counts:
        return []
    words = {"holds": "bits of a row equal in every batch", "broken": "bits of a row depend on the batch"}
    varied = tuple(_words(count) for count in sorted(counts))
    outcomes = demanded(session.subject, NAME, found.values(), **words)
    return [replace(o, tried=varied) for o in outcomes]


def must_be_tried(subject: Subject) -> list[str]:
    """Return the numbers of rows that a guarantee needs to be seen with, as far as the domain has them."""
    most = None if subject.domain is None else subject.domain.max_rows
    return [_words(count) for count in COUNTS if most is None or count <= most]


def _words(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _extent(case: Case, places: RowPlaces) -> int:
    """Return how much of the axis of rows a case has."""
    return case.given["input"].shape[next(axis for name, axis in places if name == "input")]


def row_places(op: Op, case: Case) -> RowPlaces | None:
    """Return axes that shrink together and hold whole rows, or None if there are none.

    Of several, as batch and sequence, the seed picks one; one that is longer than 1 where there is one.
    """
    found = every_row_places(op, case)
    found = [places for places in found if _extent(case, places) > 1] or found
    return found[case.seed % len(found)] if found else None


def every_row_places(op: Op, case: Case) -> list[RowPlaces]:
    """Return all axes that hold whole rows, each with those that shrink with it.

    An axis holds whole rows if twice as much of it is twice as many rows, of the same columns.
    """
    found: list[RowPlaces] = []
    if case.elements == 0:
        return found
    for places in op.unordered(case).values():
        axes = [axis for name, axis in places if name == "input"]
        if not axes:
            continue
        extent = case.given["input"].shape[axes[0]]
        twice = arranged(op, case, places, [*range(extent), *range(extent)])
        if (twice.rows, twice.columns) == (2 * case.rows, case.columns):
            found.append(places)
    return found


def arranged(op: Op, case: Case, places: RowPlaces, index: Sequence[int]) -> Case:
    """Return the case with these places of linked axes, in this order and with repetitions."""
    tensors = dict(case.tensors)
    for name, axis in places:
        tensor = tensors[name]
        assert tensor is not None
        tensors[name] = tensor.index_select(axis, torch.tensor(index, dtype=torch.int64)).contiguous()
    rows, columns, scalars = op.extents(tensors, case.scalars)
    return replace(case, tensors=tensors, scalars=scalars, rows=rows, columns=columns, layouts={})


Taken = Sequence[tuple[RowPlaces, Sequence[int]]]
"""What is taken of a case, axis by axis: the axes that shrink together, and places in their new order."""


def _arrangements(op: Op, case: Case, places: RowPlaces) -> Iterator[Taken]:
    """Yield other orders of the row axis: backwards, then one row and other numbers, which the seed picks.

    Of many rows a few are taken from all over, the last among them, and the order stays: that takes long.
    """
    extent = _extent(case, places)
    beside, start = case.rows // extent, SWEPT * case.seed  # the fixed list counts its seeds
    if extent > 1 and case.elements <= MAX_ELEMENTS:
        yield [(places, range(extent)[::-1])]
    if case.rows > 1:  # of arguments that are 1, and of strides of such axes, compilers make other code
        every = [(axes, _extent(case, axes)) for axes in every_row_places(op, case)]
        yield [(axes, [case.seed % n]) for axes, n in every]
    turned = [COUNTS[(start + step) % len(COUNTS)] for step in range(len(COUNTS))]
    # Where other axes hold rows too, those numbers come first that come out even.
    even = [n // beside for n in turned if n % beside == 0]
    most = max(MAX_ELEMENTS // (beside * case.columns), FEW_ROWS)
    fitting = [n for n in (*even, *turned) if n <= most and n != extent and n * beside > 1]
    largest = max(fitting, default=extent)  # the more rows, the sooner one shows that sums are others
    for count in dict.fromkeys((*fitting[:SWEPT], *([largest] if largest < extent else []))):
        if extent < MANY * count:
            yield [(places, [(MANY * place + start) % extent for place in range(count)])]
        else:
            yield [(places, [extent - 1 - place * (extent // count) for place in range(count)])]


def _row_numbers(op: Op, case: Case, base: Case | None = None, taken: Taken = ()) -> BitNumbers:
    """Return, for each canonical row, the number of an element of it in the case before it was arranged.

    base: that case; taken: what was taken of it.
    """
    shape = case.given["input"].shape
    before = (base or case).given["input"].shape
    numbers = np.arange(int(np.prod(before))).reshape(before)
    for places, index in taken:
        axis = next(axis for name, axis in places if name == "input")
        numbers = np.take(numbers, index, axis=axis)
    return numbers.reshape(-1)[op.flat_index(case, "input", tuple(shape))[:, 0]]


RowSide = tuple[Case, Results, BitNumbers]


def _compare(op: Op, name: str, base: RowSide, other: RowSide) -> Deviation | None:
    """Say which row of a result has other bits in the other batch, or return None."""
    if op.sums_rows(name) or not (comparable(base[1].get(name)) and comparable(other[1].get(name))):
        return None
    first, second = (_rows_of(op, name, side) for side in (base, other))
    if first is None or second is None or first.shape[1:] != second.shape[1:]:
        return None
    home: Mapping[int, int] = {int(n): row for row, n in enumerate(base[2])}
    rows = np.array([home[int(n)] for n in other[2]])
    unequal = second != first[rows]
    if not unequal.any():
        return None
    row = int(np.nonzero(unequal.reshape(len(rows), -1).any(axis=1))[0][0])
    text = (
        f"{name}: row {int(rows[row])} of {base[0].rows} rows has other bits than as row {row} of "
        f"{other[0].rows} rows ({int(unequal[row].sum())} of its {unequal[row].size} elements)"
    )
    return Deviation(name, text)


def _rows_of(op: Op, name: str, side: RowSide) -> BitNumbers | None:
    """Return the bits of a result by canonical row, or None if it has none for each row."""
    case, results, numbers = side
    tensor = results[name]
    assert tensor is not None
    if tensor.numel() not in case.sizes_by_rows:
        return None
    # Where a row is one element, the shape tells a result for each element from one for each row.
    whole = tensor.numel() == case.elements and (
        case.columns > 1 or tensor.shape == case.given["input"].shape
    )
    kind = "input" if whole and name not in {"mean", "rstd", "output"} else name
    found = bit_numbers(tensor).reshape(-1)[op.flat_index(case, kind, tuple(tensor.shape))]
    return np.asarray(found.reshape(len(numbers), -1))

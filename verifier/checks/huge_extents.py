"""Contiguous tensors of more than 2^31 elements give right rows where 32-bit offsets no longer reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from verifier.arithmetic.trees.tree import any_order
from verifier.cases.plan import Plan
from verifier.cases.recipe import has_room
from verifier.checks.support.bits import differing
from verifier.checks.support.chosen_rows import SeenOfChosen
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, gradient_names, result_names
from verifier.execution.backend import Power
from verifier.execution.backends import can
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
    " and so are sums over these rows and zeros, where blocks of other rows can be left out without changing"
    " them; where a grid is bounded, those of a tensor whose blocks have several rows each"
)
WHY = (
    "a row number times a row length is a 32-bit product in most kernels, and a wrapper that makes its input"
    " contiguous hides that from large strides: batches of two million tokens overwrite each other"
)
CATCHES = (
    "rows_in_32_bits_triton",
    "long_rows_in_32_bits_triton",
    "samples_in_32_bits_triton",
    "channels_in_32_bits_triton",
)

COLUMNS = 1024
"""Elements of a row, where nothing says that other kernels are launched for other rows."""
CHANNELS, SPACE = 7, 143
COLUMNS_IN_CHANNELS = CHANNELS * SPACE
"""The same of a row that has channels: of fewer, each would have more than 2^30 elements, which kernels that
count them in 32 bits refuse. Where each channel of a sample is a row, a sample has as many; of such samples
that many are looked at, too."""
MOST_REACHING = 3
"""Lengths of rows for which the subject launches other kernels that are tried besides."""
LOOKED_AT = 6
"""Rows that are looked at: the first, the last, and those on both sides of 2^30 and of 2^31 elements."""
PRIMES = (37, 131, 1031, 4099)
"""Rows of a small tensor, on which leaving blocks out has to change nothing; prime numbers, so that few grids
have as many blocks by chance."""
SMALL = 2**17
"""Elements of it, at most, where that leaves as many rows as the least of these numbers."""
TALL = 2**22 + 2**17
"""Elements, at most, of a tensor in which blocks of a bounded grid have several rows each: of rows of 32769,
the first that a kernel with tiles of 64 KB of halves takes in two, 131 are as many."""
TALL_PRIMES = (*PRIMES[:2], 263, 521, 1031, 2053, 4099)
"""Rows of such a tensor: a little more than a grid may be bounded by."""
MOST_CASES = 4
_PROOFS = frozenset({"out_of_bounds", "misaligned"})
"""What the machine finds of a wrong offset. Whatever else ends a call may be due to blocks that were left
out, or be a refusal of so many rows, which is safe."""


@dataclass(frozen=True, kw_only=True)
class ChosenExtents:
    """How many rows a tensor has, or samples of several, and which of them are looked at."""

    extent: int
    rows: tuple[int, ...]

    @classmethod
    def huge(cls, columns: int, places: int = LOOKED_AT) -> ChosenExtents:
        """Return those of a tensor of more than 2^31 elements, if a row has so many of them."""
        first, second = (-(-(2**power) // columns) for power in (30, 31))
        further = tuple(range(1, places - LOOKED_AT + 1))
        rows = (0, *further, first - 1, first, second - 1, second, second + 7)
        return cls(extent=second + 8, rows=rows)

    @classmethod
    def few(cls, columns: int, places: int = LOOKED_AT) -> ChosenExtents:
        """Return those of a small tensor."""
        return cls._at_most(SMALL + 2**12, PRIMES, columns, places)

    @classmethod
    def tall(cls, columns: int, places: int = LOOKED_AT) -> ChosenExtents:
        """Return those of a tensor in which blocks of a bounded grid have several rows each."""
        return cls._at_most(TALL, TALL_PRIMES, columns, places)

    @classmethod
    def _at_most(cls, elements: int, extents: Sequence[int], columns: int, places: int) -> ChosenExtents:
        """Return those of the largest tensor of no more elements, or of the smallest."""
        extent = next((n for n in reversed(extents) if n * columns <= elements), extents[0])
        further = tuple(range(2, places - LOOKED_AT + 2))
        return cls(extent=extent, rows=(0, 1, *further, extent // 2, extent // 2 + 1, extent - 2, extent - 1))


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for as many rows as are looked at, and for few lengths of rows for which other kernels run."""
    forms = _forms(subject, op)
    rows, columns = (forms.rows, forms.columns) if forms is not None else (LOOKED_AT, COLUMNS)
    return Plan(
        gradients=subject.differentiable or not op.differentiable,
        hazards=("ordinary",),
        joint=False,
        shapes=((rows, columns),),
        eps=(1e-5,),
        variants=None if forms is None else forms.variants,  # of none, nothing is run
        most=MOST_CASES,
        reaching=True,
        most_reaching=MOST_REACHING,
        reaching_rows=rows,
    )


def skips(subject: Subject, op: Op, _dtype: str, backend: str) -> str | None:
    """Apply where blocks can be left out, unless the domain ends before."""
    forms = _forms(subject, op)
    if forms is None:
        return "no axis goes by rows, of which some could be chosen"
    if not can(backend, Power.CHOOSES_ROWS):
        return "it needs a backend that runs chosen blocks alone (machine)"
    limit = _most_rows(subject)
    few = limit < ChosenExtents.huge(forms.columns).extent
    return f"the declared domain ends at {limit} rows" if few else None


@dataclass(frozen=True, kw_only=True)
class _Forms:
    """The op's forms of shapes of which an axis goes by rows, and the extents of a case."""

    rows: int
    columns: int
    variants: tuple[int, ...]


def row_axis(shape: Sequence[int], rows: int, columns: int) -> int | None:
    """Return the axis of an input along which places are chosen; None if there is none.

    It is the first, of which each place has a row, or a sample of several rows, or that of channels that each
    are a row. Of these, samples are wanted besides: among them a 32-bit offset ends.
    """
    first = (shape[0], rows) in {(LOOKED_AT, LOOKED_AT), (CHANNELS, CHANNELS**2)}
    if first and math.prod(shape) == rows * columns:
        return 0
    each = len(shape) > 2 and shape[0] > 1 and (shape[1], shape[0] * math.prod(shape[2:])) == (rows, columns)
    return 1 if each and rows == LOOKED_AT else None


def _forms(subject: Subject, op: Op) -> _Forms | None:
    """Return the forms of an op that have such an axis, those of the fewest dimensions.

    Of those whose first axis has, if there are any; samples of several rows where there are no others.
    """
    most = math.inf if subject.domain is None or subject.domain.max_rank is None else subject.domain.max_rank
    for rows, columns in ((LOOKED_AT, COLUMNS), (CHANNELS**2, SPACE)):
        ranks: dict[int, tuple[int, int]] = {}
        for variant in range(op.variants):
            shapes = op.shapes(rows, columns, variant)
            if shapes is not None and has_room(op, subject, shapes):
                shape = shapes.tensors["input"]
                axis = row_axis(shape, rows, columns)
                if axis is not None and len(shape) <= most:
                    ranks[variant] = axis, len(shape)
        if ranks:
            axis, rank = least = min(ranks.values())
            variants = tuple(variant for variant, one in ranks.items() if one == least)
            in_channels = axis == 0 and rows == LOOKED_AT and rank > 2
            length = COLUMNS_IN_CHANNELS if in_channels else columns
            return _Forms(rows=rows, columns=length, variants=variants)
    return None


def _most_rows(subject: Subject) -> float:
    limit = None if subject.domain is None else subject.domain.max_rows
    return math.inf if limit is None else limit


def check(session: Session) -> list[Outcome]:
    """Judge the chosen rows of a huge tensor, if a small one shows that the others may be left out."""
    shape, rows, columns = session.case.input_shape, session.case.rows, session.case.columns
    axis = row_axis(shape, rows, columns)
    if axis is None:
        return []
    places = shape[axis]
    huge = ChosenExtents.huge(_offset_of_last(shape, axis), places)
    if _most_rows(session.subject) < huge.extent * (rows // places):
        return []
    backward = bool(session.op.differentiable) and session.subject.differentiable
    left_out: list[Outcome] = []
    tall: list[Outcome] = []
    for gradients in (True, False) if backward else (False,):
        what = "gradients" if gradients else "rows"
        small, reason = _small(session, gradients)
        if small is None:
            left_out.append(_not_judged(what, reason))
            continue
        seen = _run(session, huge, gradients=gradients, alone=True, as_before=small.followed)
        if why := _untold(seen, small.followed) or _dependent(session, gradients, small):
            left_out.append(_not_judged(what, why))
            if not tall and _is_bounded(seen, small):
                tall = _tall_judged(session, small, gradients)
            continue
        session.accept(_told_where(seen, session, huge))
        judged = [*_judged(session, seen), *_sums_judged(session, seen, small)]
        return [*left_out, *tall, *_with_place(judged, session, huge)]
    # What passes in tall tensors alone says nothing of huge ones.
    return [*(o for o in tall if o.verdict is Verdict.FAIL), *left_out[-1:]]


def _where(session: Session, extents: ChosenExtents) -> str:
    columns = session.case.elements // _places(session.case)
    return f"in chosen rows of a tensor of {extents.extent} x {columns}"


def _told_where(seen: Observation, session: Session, extents: ChosenExtents) -> Observation:
    """Add to what ended an execution in which tensor it was."""
    if seen.status == "ok":
        return seen
    return replace(seen, message=f"{seen.message}; {_where(session, extents)}")


def _with_place(judged: Sequence[Outcome], session: Session, extents: ChosenExtents) -> list[Outcome]:
    """Add to failures in which tensor they are."""
    where = _where(session, extents)
    return [replace(o, message=f"{o.message}, {where}") if o.verdict is Verdict.FAIL else o for o in judged]


def _offset_of_last(shape: Sequence[int], axis: int) -> int:
    """Return how many elements a row has, or a channel in all samples but the last."""
    return math.prod(shape[1:]) if axis == 0 else (shape[0] - 1) * math.prod(shape[2:])


def _judged(session: Session, seen: Observation) -> list[Outcome]:
    names = result_names(session.subject, session.op)
    damage = [Outcome(verdict=Verdict.FAIL, output=d.about, message=d.text) for d in seen.damage]
    outcomes = [*damage, *judge(session.truth, replace(seen, outputs=_rows_of(seen)), names)]
    return outcomes or [_not_judged("rows", "no result has as many rows as the input")]


def _sums_judged(session: Session, seen: Observation, small: _Small) -> list[Outcome]:
    """Judge sums over rows: of all terms but those of the chosen rows it is known that they are zeros.

    To add a zero rounds nothing, so that they are sums of a few numbers; in which order these are added among
    so many rows is not known, and the bound is that for any order.
    """
    if not small.sums:
        return []
    reason = _sums_dependent(session, small)
    return [_not_judged("sums of columns", reason)] if reason else _in_any_order(session, seen, small.sums)


def _sums_dependent(session: Session, small: _Small) -> str:
    """Say why sums over chosen rows of a small tensor are not those over all rows, of zeros but for these."""
    zeros = _run(session, _few(session), gradients=True, alone=False, filled=False)
    if zeros.status != "ok":
        return f"a small tensor is not computed: {zeros.message}"
    words = "with all blocks of a small tensor and with those of its rows that are not zero"
    texts = [t for n in small.sums if (t := differing(n, zeros.outputs, small.outputs, words))]
    return f"blocks depend on each other ({texts[0]})" if texts else ""


def _in_any_order(session: Session, seen: Observation, names: tuple[str, ...]) -> list[Outcome]:
    trees = replace(session.subject.claim.trees, columns=any_order())
    in_any_order = replace(session, subject=session.subject.differing(trees=trees))
    in_any_order.accept(seen)
    return judge(in_any_order.truth, seen, names)


def _is_bounded(seen: Observation, small: _Small) -> bool:
    """Whether a grid of a huge tensor is another one, or follows rows in another way, than a small one's."""
    before = seen.found.followed if isinstance(seen.found, SeenOfChosen) else small.followed
    return seen.status == "undecided" and before == small.followed[: len(before)] != small.followed


def _tall_judged(session: Session, small: _Small, gradients: bool) -> list[Outcome]:
    """Judge chosen rows of a tensor whose grids are not those of a small one either, if there is any.

    Its blocks have several rows each, over which their loops turn again. Whether such blocks may be left out
    no smaller tensor has shown: what fails has to fail with all of them, too. What passes says nothing where
    even those of a small tensor may not.
    """
    places = _places(session.case)
    tall = ChosenExtents.tall(session.case.elements // places, places)
    if tall == _few(session) or _most_rows(session.subject) < tall.extent * (session.case.rows // places):
        return []
    seen = _run(session, tall, gradients=gradients, alone=True)
    if seen.status == "ok":
        if seen.found_as(SeenOfChosen).followed == small.followed:
            return []
    elif seen.aftermath.machine_finding not in _PROOFS:
        return []
    judged = _tall_outcomes(session, seen, tall, small)
    if any(o.verdict is Verdict.FAIL for o in judged):
        seen = _run(session, tall, gradients=gradients, alone=False, filled=False)
        whole = seen.status == "ok" and not (gradients and small.sums and _sums_dependent(session, small))
        judged = _tall_outcomes(session, seen, tall, small) if whole else []
        return [o for o in judged if o.verdict in {Verdict.PASS, Verdict.FAIL}]
    passed = [o for o in judged if o.verdict is Verdict.PASS]
    return [] if passed and _dependent(session, gradients, small) else passed


def _tall_outcomes(session: Session, seen: Observation, tall: ChosenExtents, small: _Small) -> list[Outcome]:
    session.accept(_told_where(seen, session, tall))
    sums = _in_any_order(session, seen, small.sums) if small.sums else []
    return _with_place([*_judged(session, seen), *sums], session, tall)


def _untold(seen: Observation, known: object) -> str:
    """Say why an execution on a huge tensor tells nothing, if so."""
    if seen.status == "ok":
        other = "grids follow the rows in another way than those of a small tensor"
        return "" if seen.found_as(SeenOfChosen).followed == known else other
    return "" if seen.aftermath.machine_finding in _PROOFS else seen.message


def _not_judged(what: str, reason: str) -> Outcome:
    text = f"{what} of huge tensors are not judged: {reason}"
    return Outcome(verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text))


@dataclass(frozen=True, kw_only=True)
class _Small:
    """What the blocks of some rows of a small tensor gave; sums: results without rows."""

    followed: tuple[object, ...]
    outputs: Mapping[str, torch.Tensor | None]
    with_rows: tuple[str, ...]
    sums: tuple[str, ...]


def _small(session: Session, gradients: bool) -> tuple[_Small | None, str]:
    """Run some rows of a small tensor alone; return what came of it, or why nothing did."""
    alone = _run(session, _few(session), gradients=gradients, alone=True)
    if alone.status != "ok":
        return None, f"blocks of a small tensor's rows do not run alone: {alone.message}"
    found = alone.found_as(SeenOfChosen)
    if not found.followed:
        return None, "no kernel was launched"
    names = gradient_names(session.subject, session.op)
    sums = tuple(n for n in names if alone.outputs.get(n) is not None and n not in found.with_rows)
    return _Small(followed=found.followed, outputs=alone.outputs, with_rows=found.with_rows, sums=sums), ""


def _dependent(session: Session, gradients: bool, small: _Small) -> str:
    """Say why chosen rows of a small tensor are not what they are among others, if so."""
    whole = _run(session, _few(session), gradients=gradients, alone=False)
    if whole.status != "ok":
        return f"a small tensor is not computed: {whole.message}"
    words = "with all blocks of a small tensor and with those of some rows"
    names = dict.fromkeys((*whole.found_as(SeenOfChosen).with_rows, *small.with_rows))
    texts = [t for name in names if (t := differing(name, whole.outputs, small.outputs, words))]
    return f"blocks depend on each other ({texts[0]})" if texts else ""


def _few(session: Session) -> ChosenExtents:
    places = _places(session.case)
    return ChosenExtents.few(session.case.elements // places, places)


def _places(case: Case) -> int:
    """Return how many places are looked at along the axis of rows, each of one row or several."""
    axis = row_axis(case.input_shape, case.rows, case.columns)
    return case.rows if axis is None else case.input_shape[axis]


def _run(session: Session, extents: ChosenExtents, **settings: object) -> Observation:
    return session.run(
        session.subject,
        session.case,
        experiment="verifier.checks.support.chosen_rows:experiment",
        extent=extents.extent,
        rows=extents.rows,
        axis=row_axis(session.case.input_shape, session.case.rows, session.case.columns),
        each=session.case.rows // _places(session.case),
        **settings,
    )


def _rows_of(seen: Observation) -> dict[str, torch.Tensor | None]:
    """Return the results that have rows; what else comes of an execution that found something is none."""
    names = seen.found.with_rows if isinstance(seen.found, SeenOfChosen) else ()
    return {name: seen.outputs[name] for name in names}

"""Which extents and which layouts the fixed list has, the most telling first."""

from __future__ import annotations

from strategies.layouts import Layout
from verifier.cases.plan import Plan
from verifier.cases.recipe import with_derived
from verifier.ops import op as named_op
from verifier.records.case import FEATURES
from verifier.records.subject import Subject


def cover_shapes(plan: Plan) -> list[tuple[int, int]]:
    """Return rows and columns that fit a plan, or else the least that do."""
    wanted = (
        *((4, 33), (2, 1000), (3, 128), (1, 1), (7, 2), (16, 64), (1, 1024), (1000, 4), (64, 48), (2, 1025)),
        *((33, 3), (3, 769), (129, 16), (1, 4097), (0, 16), (5, 257), (2, 31), (1, 8192), (5, 4), (300, 8)),
    )
    fitting = [shape for shape in plan.shapes or wanted if plan.fits(*shape)]
    edge = (max(plan.min_rows, 1), max(plan.min_columns, 1))
    return fitting or ([edge] if plan.fits(*edge) else [])


CUT = Layout(order="transposed", row_padding=3)
"""Of one row: it was a column of a matrix of four."""
LEADING = (Layout(order="leading_reversed"), Layout(leading_step=2))
"""Of tensors of rows alone: batch and sequence exchanged, or cut out of a longer sequence."""

REVERSED = Layout(order="reversed")
"""All axes exchanged: the first of several that lead is innermost."""

PADDED = Layout(row_padding=3)
"""Rows of a wider matrix, of which not each begins where a vector may."""

PATTERNS: tuple[Layout, ...] = (
    Layout(column_step=2),
    PADDED,
    Layout(order="transposed"),
    *LEADING,
    Layout(expanded="rows"),
    Layout(expanded="all"),  # behind rows: both strides of a row are 0, and of the columns one alone
    Layout(misaligned=True),
    Layout(expanded="columns"),  # as sum(-1) gives a gradient
    Layout(storage_offset=16),
    Layout(row_step=2),
    Layout(order="channels_last"),
)
"""One of each kind of layout, and two where a tensor has two axes for it, the most telling first."""


def cover_layouts(plan: Plan, subject: Subject) -> list[tuple[tuple[str, Layout], ...]]:
    """Return layouts by tensor: of all parameters at once, of the others, then of one tensor alone.

    Those at once show every tensor in every kind within few cases; a failure is shrunk to one tensor.
    """
    if plan.placements:
        return list(plan.placements)
    patterns = [layout for layout in PATTERNS if {*layout.kinds} <= {*plan.layouts}]
    plain: list[tuple[tuple[str, Layout], ...]] = [()]
    if not patterns:
        return plain
    op = named_op(subject.op)
    names = plan.laid_out(op, subject)
    plainly_shaped = op.shapes(2, 12, 0)
    assert plainly_shaped is not None
    shapes = with_derived(op, subject, plainly_shaped)
    # A matrix, and what is as wide as its product, have rows and columns too, if others than the input.
    matrices = {n for n in names if FEATURES in shapes.scalars and len(shapes.tensors.get(n, ())) == 2}
    like = [n for n in names if n in matrices or shapes.tensors.get(n, ()) == shapes.tensors["input"]]
    vectors = [n for n in names if n not in like]
    flat = {
        n: shapes.tensors[n] for n in matrices if n in op.parameters
    }  # of two dimensions in every variant
    # Columns far apart, or padded rows, come second: where rows can be read as vectors, not with 33 columns.
    by_row = sorted(patterns, key=lambda layout: layout.order != "transposed")
    together: list[tuple[tuple[str, Layout], ...]] = []
    for number, layout in enumerate(patterns):
        # Of other kinds each, so that a stride taken from another tensor is a wrong one.
        chosen = [(n, by_row[(number + k) % len(patterns)]) for k, n in enumerate(like)]
        turned = tuple((n, p) for n, p in chosen if n not in flat or p.applies_to(flat[n]))
        together += [() if layout in LEADING else tuple((n, layout) for n in vectors), turned]
    alone = [
        ((n, layout),)
        for layout in patterns
        for n in (like if layout in LEADING else names)
        if n not in flat or layout.applies_to(flat[n])
    ]
    # What is changed in place, or follows from others, cannot be expanded: its elements would share memory.
    apart = {*subject.mutates, *op.derived}
    shown = [
        tuple((n, p) for n, p in level if n not in apart or p.expanded == "none")
        for level in (*together, *alone)
    ]
    return [
        *dict.fromkeys(level for level in shown if level),
        *(plain if "contiguous" in plan.layouts else []),
    ]

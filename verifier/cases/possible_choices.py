"""Which choices of levels a subject can be given: what the fixed list may put together."""

from __future__ import annotations

from typing import NamedTuple

from strategies.layouts import Layout
from verifier.cases.extents_and_layouts import cover_shapes
from verifier.cases.hazards import joint_hazards
from verifier.cases.pairwise import Choice
from verifier.cases.plan import Plan
from verifier.cases.recipe import has_room, with_derived
from verifier.ops import Op, Shapes
from verifier.records.subject import Subject

STRENGTHS = (0, 3, 1, 5, 2, 4, 6, 7)
"""Of hazards, in the order in which the fixed list takes them: mild, harder, and all that lies between."""
FEW_COLUMNS = 2
"""In so many columns, or fewer, ordinary numbers may be alike."""


class Aimed(NamedTuple):
    """Which tensor carries the hazard, and how strong it is."""

    tensor: str
    strength: int


MILDEST = Aimed("input", STRENGTHS[0])
"""Ordinary numbers, and the mildest of what is none."""


class Possible:
    """Whether the op and the subject have a case of some levels, as far as shapes tell."""

    def __init__(self, op: Op, subject: Subject, plan: Plan) -> None:
        self.op, self.subject, self.plan = op, subject, plan
        self.known: dict[tuple[int, int, int], Shapes | None] = {}
        self.fits: dict[object, bool] = {}
        self.given = {name for name, levels in plan.parameters_of(op, subject).items() if True in levels}
        self.dtypes = plan.parameter_dtypes_of(op, subject)
        self.mixed = plan.mixed_dtypes_of(op, subject)

    def __call__(self, choice: Choice) -> bool:
        """Whether the levels of a choice go together, as far as it says them."""
        joint, layout = choice.get("joint"), choice.get("layout", ())
        needs = {*joint_hazards()[joint].NEEDS} if joint else set()
        carrier = {choice["strength"].tensor} if "strength" in choice else set()
        absent = {name for name in ("weight", "bias", *self.op.varied) if choice.get(name) is False}
        # A joint hazard, or one that is carried, replaces the gradient that a recipe would draw.
        replaced = "grad_output" in needs | carrier and choice.get("gradient", "ordinary") != "ordinary"
        # Where each strength must be shown, one is enough for what shows none: an empty input.
        aimed = choice.get("strength", MILDEST) != MILDEST and "strength" in self.plan.must
        if aimed and 0 in choice.get("shape", ()):
            return False
        if choice.get("eps") == 0 and not _spread(choice):
            return False
        if replaced or absent & (needs | carrier | {name for name, _ in layout}):
            return False
        if choice.get("parameter_dtype") in self.dtypes[1:] and not self.given - absent:
            return False
        if isinstance(choice.get("parameter_dtype"), tuple) and {"weight", "bias"} & absent:
            return False
        key = (choice.get("shape"), choice.get("variant"), layout)
        if key not in self.fits:
            extents = cover_shapes(self.plan) if key[0] is None else [key[0]]
            variants = self.plan.variants_of(self.op) if key[1] is None else [key[1]]
            laid = (self.shapes(rows, columns, variant) for rows, columns in extents for variant in variants)
            self.fits[key] = any(s is not None and all(shows(s, n, p) for n, p in layout) for s in laid)
        return self.fits[key]

    def shapes(self, rows: int, columns: int, variant: int) -> Shapes | None:
        """Return the shapes of a variant that the subject takes within the plan, or None."""
        key = (rows, columns, variant)
        if key not in self.known:
            found = self.op.shapes(rows, columns, variant)
            taken = found is not None and has_room(self.op, self.subject, found)
            deep = (
                self.plan.max_rank is not None and found and len(found.tensors["input"]) > self.plan.max_rank
            )
            wanted = found if taken and not deep else None
            self.known[key] = wanted and with_derived(self.op, self.subject, wanted)
        return self.known[key]


def _spread(choice: Choice) -> bool:
    """Return whether every row has a variance: a case whose eps is zero has no value without one."""
    ordinary = choice.get("hazard", "ordinary") == "ordinary" and choice.get("joint") is None
    return (
        ordinary
        and not any(layout.expanded != "none" for _, layout in choice.get("layout", ()))
        and ("shape" not in choice or choice["shape"][1] > FEW_COLUMNS)
    )


def shows(shapes: Shapes, name: str, layout: Layout) -> bool:
    """Return whether a tensor is there and can lie so, otherwise than contiguous."""
    shape = shapes.tensors.get(name)
    return shape is not None and layout.applies_to(shape) and layout.differs(shape)

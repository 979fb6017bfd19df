"""Plans: what kind of cases a check needs, within what a subject promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategies.layouts import Layout
from verifier.ops import Op
from verifier.records.subject import INPUT, Domain, Subject

LONGEST = (1, 4097)
FEW_SHAPES = ((4, 33), (2, 1000), (3, 128), (1, 1), (16, 64), LONGEST, (300, 16), (0, 16))
"""Few compilations: a tail, a long row, full blocks, one element, a longer row, many rows, none."""

EPS_CHOICES = (1e-5, 1e-6, 1e-12, 1e-3, 0.5)
"""1e-5 and 1e-6 are the usual defaults; 1e-12 underflows in fp16; 0.5 makes a misplaced eps obvious."""

EDGE_EPS = (0.0, 1e-20, None)
"""Zero, below what half precision holds, and left to the kernel: for checks that judge numbers by bounds."""

EVERY_EPS = (EPS_CHOICES[0], *EDGE_EPS, *EPS_CHOICES[1:])
"""Zero comes second: ordinary numbers do, and only with them it has a meaning in every row."""

GRADIENT_HAZARDS = (
    "ordinary",
    "one_outlier",
    "alternating_signs",
    "lognormal",
    "small_integers",
    "single_nonzero",
)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What kind of cases a check needs.

    layouts: kinds of layouts to draw; hazards: of the input (None: every finite one).
    reaching: whether the search begins with shapes that reach what a wrapper launches, beyond the limits;
    most_reaching: how many of them at most, with the first dtype that is asked for alone.
    reaching_hazards: of the input in them; the first inside the domain is taken. reaching_rows: how many rows
    they have, where the check has its own rows and wants to know lengths alone. for_many: how many a quick
    budget has of those where other code is launched than for fewer rows, in every dtype; no others. apart:
    elements from the first row of such a shape to its last, in input and grad_output (0: rows lie together).
    literals: whether it tries elements that the kernels' sources name, too, and large ones.
    gradients: whether grad_output is part of the case. Extents that are drawn stay within the limits.
    shapes: draw (rows, columns) from these alone, where every new shape is a compilation.
    parameters: whether weight and bias occur where they may be left out. placements: layouts by tensor to
    choose from, in the place of what `layouts` would draw. must: factors of the fixed list, besides
    layouts, of which every level must be tried for a PASS. leads: the factor whose levels come in turn, where
    it is not the layouts, nor the hazards because there are many. most: cases after which more would tell
    nothing new, whatever the budget is. share: how much of the cases of a budget it takes, less than all
    where numbers hardly matter to the answer. carriers: tensors besides the input that have the hazard in its
    place, one in a case. parameter_dtypes: whether weight and bias come in every dtype that is promised, not
    in the first alone; residual_dtypes: those of a residual beside an input of a known dtype,
    which `for_inputs_of` names in such a plan. variants: which
    of the op's forms of shapes cases have, by number (None: all).
    eps_unsaid:
    whether a case after the fixed list says no number as eps, where the signature's default means one.
    """

    gradients: bool = False
    layouts: tuple[str, ...] = ("contiguous",)
    hazards: tuple[str, ...] | None = None
    joint: bool = True
    reaching: bool = False
    literals: bool = False
    most_reaching: int | None = None
    reaching_hazards: tuple[str, ...] = ("ordinary", "alternating_signs")
    reaching_rows: int | None = None
    for_many: int | None = None
    apart: int = 0
    max_elements: int = 16384
    max_rows: int = 4096
    max_columns: int = 8193
    min_rows: int = 0
    min_columns: int = 0
    eps: tuple[float | None, ...] = EPS_CHOICES
    shapes: tuple[tuple[int, int], ...] | None = None
    parameters: bool = True
    placements: tuple[tuple[tuple[str, Layout], ...], ...] = ()
    max_rank: int | None = None
    must: tuple[str, ...] = ()
    leads: str | None = None
    most: int | None = None
    share: float = 1.0
    carriers: tuple[str, ...] = ()
    parameter_dtypes: bool = False
    residual_dtypes: tuple[str, ...] = ()
    variants: tuple[int, ...] | None = None
    eps_unsaid: bool = False

    def within(self, domain: Domain | None) -> Plan:
        """Return the plan restricted to what a domain accepts, as far as that is known without numbers."""
        if domain is None:
            return self
        accepted = {*self.layouts} if domain.layouts is None else {*domain.layouts, "contiguous"}
        inside = replace(
            self,
            min_rows=max(self.min_rows, domain.min_rows),
            min_columns=max(self.min_columns, domain.min_columns),
            max_rows=_least(self.max_rows, domain.max_rows),
            max_columns=_least(self.max_columns, domain.max_columns),
            max_rank=domain.max_rank,
            layouts=tuple(kind for kind in self.layouts if kind in accepted) or ("contiguous",),
            placements=tuple(
                level
                for level in self.placements
                if domain.layouts is None or {k for _, layout in level for k in layout.kinds} <= accepted
            ),
        )
        fitting = self.shapes and tuple(shape for shape in self.shapes if inside.fits(*shape))
        return replace(inside, shapes=fitting or None)

    def cases_of(self, budget: int, *, least: int = 1) -> int:
        """Return how many of the cases of a budget the check takes."""
        taken = max(math.ceil(self.share * budget), least)
        return taken if self.most is None else min(taken, self.most)

    @property
    def empty(self) -> bool:
        """Whether no extents fit."""
        return not self.fits(self.min_rows, self.min_columns)

    def few_shapes(self, *, long: bool = True) -> Plan:
        """Return the plan restricted to the few shapes that fit it, unless it names its own.

        long: with the longest row, which is needed only where nothing else chooses long ones.
        """
        if self.shapes:
            return self
        few = tuple(s for s in FEW_SHAPES if self.fits(*s) and (long or s != LONGEST))
        return replace(self, shapes=few or None)

    def fits(self, rows: int, columns: int) -> bool:
        """Return whether extents lie within the limits."""
        return (
            rows * columns <= self.max_elements
            and self.min_rows <= rows <= self.max_rows
            and self.min_columns <= columns <= self.max_columns
        )

    def variants_of(self, op: Op) -> Sequence[int]:
        """Return the numbers of the op's forms of shapes that cases have."""
        return range(op.variants) if self.variants is None else self.variants

    def _given(self, op: Op, subject: Subject, name: str) -> tuple[bool, ...]:
        if name not in op.tensors or name not in subject.signature:
            return (False,)
        if name in subject.always_given or name not in op.optional:
            return (True,)
        return (True, False) if self.parameters else (False,)

    def parameters_of(self, op: Op, subject: Subject) -> dict[str, tuple[bool, ...]]:
        """Return of each parameter of a recipe whether it is given, left out, or both in turn."""
        return {name: self._given(op, subject, name) for name in ("weight", "bias", *op.varied)}

    def for_inputs_of(self, dtype: str, subject: Subject) -> Plan:
        """Return the plan for inputs of a dtype: what takes no other dtype is not varied."""
        varied = self.parameter_dtypes or bool(self.residual_dtypes)

        def several(promised: tuple[str, ...]) -> bool:
            return len({dtype if name == INPUT else name for name in promised}) > 1

        of_residuals = subject.residual_dtypes_beside(dtype)
        return replace(
            self,
            parameter_dtypes=self.parameter_dtypes and several(subject.parameter_dtypes),
            residual_dtypes=of_residuals if varied and several(of_residuals) else (),
        )

    def parameter_dtypes_of(self, op: Op, subject: Subject) -> tuple[str, ...]:
        """Return the dtypes of parameters that cases have, if the subject takes any parameters."""
        taken = any(True in levels for levels in self.parameters_of(op, subject).values())
        return subject.parameter_dtypes if self.parameter_dtypes and taken else subject.parameter_dtypes[:1]

    def residual_dtypes_of(self, op: Op) -> tuple[str, ...]:
        """Return the dtypes that what is added to the input has in cases, none where it has one in all."""
        return self.residual_dtypes if op.alike else ()

    def mixed_dtypes_of(self, op: Op, subject: Subject) -> tuple[str, str] | None:
        """Return two dtypes of weight and bias in one case, None where there are no two.

        A kernel that takes each dtype may still read both parameters as if they had one. It may refuse them,
        too, and then such a case tells nothing else: they come where dtypes must be tried.
        """
        if "parameter_dtype" not in self.must:
            return None
        dtypes, given = self.parameter_dtypes_of(op, subject), self.parameters_of(op, subject)
        if len(dtypes) < 2 or not all(True in given[name] for name in ("weight", "bias")):
            return None
        return dtypes[1], dtypes[0]

    def eps_of(self, op: Op, subject: Subject) -> tuple[float | None, ...]:
        """Return the levels of eps that make a difference: one alone where the op or the kernel takes none.

        None is a level where the signature has it as its default and the op says what it means. A raw
        backward kernel reads the statistics, which are finite: it has no edge.
        """
        takes = "eps" in subject.signature or op.derived
        if not takes or not op.has_eps:
            return self.eps[:1]
        edges = set() if op.derived else {*EDGE_EPS}
        if op.default_eps is None or subject.signature["eps"].default is not None:
            edges -= {None}
        least = subject.domain.min_eps if subject.domain is not None else None
        promised = (e for e in self.eps if e is None or least is None or e >= least)
        return tuple(e for e in promised if e in edges or e not in EDGE_EPS) or self.eps[:1]

    def carried_by(self, op: Op, subject: Subject) -> tuple[str, ...]:
        """Return the tensors that carry the hazard in turn: the input, and those of `carriers` there are."""
        given = {n for n, levels in self.parameters_of(op, subject).items() if True in levels}
        given |= {"grad_output"} if self.gradients or "grad_output" in op.tensors else set()
        return ("input", *(name for name in self.carriers if name in given))

    def laid_out(self, op: Op, subject: Subject) -> list[str]:
        """Return the tensors that layouts are chosen for: arguments of the subject, and grad_output."""
        names = [name for name in op.tensors if name in subject.signature]
        return names + [n for n in op.incoming.values() if self.gradients and n not in names]


def _least(extent: int, limit: int | None) -> int:
    return extent if limit is None else min(extent, limit)

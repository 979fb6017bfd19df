"""The exact results of a case, and the bounds of a subject on it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from verifier.bounds.variance import algorithm
from verifier.ops import Bounded, Op, Setting, Solved, op
from verifier.oracle.enclosure import Enclosure
from verifier.oracle.problem import Problem, Solution
from verifier.oracle.solve import solve
from verifier.records.case import Case
from verifier.records.subject import Subject

CANONICAL_VARIANCE = "two_pass"
"""The algorithm of the fixed yardstick that every kernel is shown against, whatever it claims."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the oracle says of a case, posed and solved once, when first asked for.

    subject: whose own specification it is about, where the op has none. reading: what is rounded before the
    norm reads it (see `Op`).
    """

    subject: Subject
    case: Case
    reading: Hashable | None = None

    @cached_property
    def solved(self) -> Solved[Problem[Solution] | None, Solution | None]:
        """The problem and the oracle's first answer; none where the subject brings its own specification."""
        the_op = op(self.case.op)
        if self.reading is None or the_op.posed is None:
            problem = the_op.problem(self.case)
        else:
            problem = the_op.posed(self.case, self.reading)
        return Solved(case=self.case, problem=problem, solution=None if problem is None else solve(problem))

    @cached_property
    def exact(self) -> Mapping[str, Enclosure]:
        """Enclosures of the exact results by name, in canonical rows."""
        the_op = op(self.case.op)
        if the_op.own:
            from verifier.ops.specification.enclosures import enclosures

            return enclosures(self.subject, self.case)
        solution = self.solved.solution
        return {**the_op.exact(solution), **the_op.further(self.case, solution)}


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The exact results of a case and the bounds of a subject on it, computed when first asked for.

    answer: the exact results, if another truth about the same case has them. substitute: bounds in the place
    of the theorems', if any.
    """

    subject: Subject
    case: Case
    setting: Setting
    answer: Answer | None = field(default=None, repr=False, compare=False)
    substitute: Mapping[str, Bounded] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def op(self) -> Op:
        """The op of the case."""
        return op(self.case.op)

    @cached_property
    def answered(self) -> Answer:
        """The exact results, which truths that differ in their bounds share."""
        form = self.op.form(self.subject.claim, self.case.dtype)
        reading = self.op.reading(self.case, form, self.setting)
        if self.answer is not None and self.answer.reading == reading:
            return self.answer
        return Answer(subject=self.subject, case=self.case, reading=reading)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Shape of an output as the subject returns it; statistics are one number a row."""
        expected = self.op.expected(self.case, self.subject)
        if name not in expected and self.op.own:
            return tuple(self.exact[name].shape)
        return expected[name].shape if name in expected else (self.case.rows,)

    @property
    def solved(self) -> Solved[Problem[Solution] | None, Solution | None]:
        """The case as the oracle sees it, and its first answer."""
        return self.answered.solved

    @property
    def exact(self) -> Mapping[str, Enclosure]:
        """Enclosures of the exact results by name, in canonical rows."""
        return self.answered.exact

    @cached_property
    def bounds(self) -> Mapping[str, Bounded]:
        """The subject's own bounds by name; empty if it makes no claim."""
        if self.substitute is not None:
            return self.substitute
        claim = self.subject.claim
        if not self.op.own and not self.op.claimed(claim):
            return {}
        return self.op.bounds(self.solved, claim, self.op.form(claim, self.case.dtype), self.setting)

    @cached_property
    def canonical_bounds(self) -> Mapping[str, Bounded]:
        """The bounds of the canonical kernel with the same trees."""
        claimed = self.subject.claim.variance
        if self.op.own or (not self.op.needs_variance and self.op.claimed(self.subject.claim)):
            return self.bounds
        centred = claimed is None or algorithm(claimed).CENTRED
        variance = CANONICAL_VARIANCE if centred else claimed
        subject = self.subject.differing(
            variance=variance, accumulates="float32", formula=None, saved_dtype=None
        )
        form = next(iter(self.op.forms.values()))
        name = subject.accumulation(self.case.dtype)
        setting = self.setting.with_format(name)
        own = self.subject.claim, self.op.form(self.subject.claim, self.case.dtype), self.setting
        if self.substitute is None and own == (subject.claim, form, setting):
            return self.bounds
        return self.op.bounds(self.solved, subject.claim, form, setting)

    def bounded_by(self, bounds: Mapping[str, Bounded]) -> Truth:
        """Return the same truth with other bounds in the place of the theorems'."""
        return replace(self, answer=self.answered, substitute=bounds)

    def claimed_by(self, subject: Subject, setting: Setting) -> Truth:
        """Return the truth about the same case of a subject that differs in its declaration alone."""
        return replace(self, subject=subject, setting=setting, answer=self.answered)

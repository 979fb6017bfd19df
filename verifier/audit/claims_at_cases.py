"""What the code is proved to be at the call of a case, of a kernel whose claim was read at another shape.

There the claim holds for every input, so that its bounds are those of the compiled code: of its division,
contraction, clamp and orders of sums. A reading takes as long as several runs; an audit has room for some.
"""

from __future__ import annotations

import atexit
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from verifier.checks.support.certificate_at_shape import FirstCertified, first_certified
from verifier.checks.support.proved_claim import attempts, claim_proved
from verifier.execution import Runner
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Refusal
from verifier.records.compiled_code import CompiledCode
from verifier.records.subject import Subject

READING_SECONDS = {"smoke": 1.0, "quick": 3.0, "standard": 20.0, "deep": 120.0}
"""Estimated seconds of readings in a line of each budget."""
SHORT_ROWS = {"smoke": 16, "quick": 16, "standard": 0, "deep": 0}
"""Elements of a row below which no case is read: in any order its sums are hardly deeper."""
_RUNS, _OF_ELEMENT, _WITH_GRADIENTS = 0.3, 1e-4, 2.5
"""Seconds of a reading, those of each element besides, and how much longer one with gradients takes.

Measured on one core of a server: 0.2 to 0.4 s at 4 x 33, 0.6 s at 1 x 4096; with gradients 0.4 to 0.9 s at
4 x 33.
"""
_MOST_KNOWN = 128
"""Readings that a process remembers; one of a long row takes some 0.3 MB."""


def price(case: Case, *, gradients: bool) -> float:
    """Return the estimated seconds of a reading at the call of a case, compilation apart."""
    return (_RUNS + _OF_ELEMENT * case.elements) * (_WITH_GRADIENTS if gradients else 1.0)


@dataclass(frozen=True, kw_only=True)
class ClaimAtCase:
    """A subject with the claim that was proved at a call, for inputs that are not too large.

    proof: of what it is proved, and of which code.
    """

    subject: Subject
    proof: FirstCertified

    @property
    def text(self) -> str:
        """Say what of a declaration the code settles at the shape of the proof."""
        claim, shape = self.subject.claim, self.proof.certificate
        merged = claim.variance_options.get("per_lane_means")
        said = [
            f'divide_by_n="{claim.divide_by_n}"',
            f'mean_contraction="{claim.mean_contraction}"',
            f"clamp={claim.clamp}",
            *(["per_lane_means=True"] if merged else []),
        ]
        depth = claim.trees.statistics.depth(shape.columns)
        return f"at {shape.rows}x{shape.columns} it has {', '.join(said)} and statistics {depth} deep"

    def speaks_of(self, case: Case) -> bool:
        """Return whether the values of a case are among those that the proof is about."""
        given = [tensor.double().abs().max() for tensor in case.given.values() if tensor.numel()]
        return case.finite and self.proof.certificate.speaks_of(
            max((float(one) for one in given), default=0.0)
        )

    def is_of(self, code: CompiledCode | None) -> bool:
        """Return whether all code that has run is the one that was read."""
        return code is not None and code.texts <= self.proof.texts


_known: OrderedDict[Hashable, ClaimAtCase | Refusal] = OrderedDict()
"""What this process has read, by subject and call, the latest last."""
_runners: dict[Hashable, Runner] = {}
"""Runners of readings: what they run of the sources is told to no line, and changes nothing for its cases."""


@dataclass(kw_only=True)
class ClaimsAtCases:
    """Reads what the code of a subject is at the calls of cases, while there is room.

    subject: with the claim that was read at another shape. seconds: estimated ones, left for readings.
    least: elements of a row below which there is none.
    taken, unread: cases that were judged by what was read there, and those that were not, by why.
    """

    subject: Subject
    runner: Runner
    seconds: float
    least: int = 0
    budget: str = "this budget"
    taken: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    def at(self, case: Case) -> ClaimAtCase | None:
        """Return what the code is proved to be at the call of a case; None: nothing was, in the time."""
        if not all(tensor.is_floating_point() for tensor in case.given.values()):
            self.unread["a mask in memory decides what is computed"] += 1
            return None
        if case.columns < self.least:
            self.unread[f"rows have less than {self.least} elements, {self.budget}"] += 1
            return None
        gradients = self._gradients(case)
        key = (str(self.subject.path), self.subject.name, claim_key(self.subject), *call_key(case), gradients)
        if key not in _known:
            cost = price(case, gradients=gradients)
            if cost > self.seconds:
                self.unread[f"{self.budget} has no time to read more"] += 1
                return None
            self.seconds -= cost
            _known[key] = claim_at(self.subject, case, own_runner(self.runner), gradients=gradients)
            while len(_known) > _MOST_KNOWN:
                _known.popitem(last=False)
        found = _known[key]
        if isinstance(found, Refusal):
            self.unread[f"it was not shown that {found.stage}"] += 1
            return None
        if not found.speaks_of(case):
            self.unread["the proof is of smaller or finite numbers"] += 1
            return None
        return found

    @property
    def notes(self) -> list[str]:
        """Say which bounds the cases were held against."""
        claim, every = self.subject.claim, self.taken + self.unread.total()
        if not every:
            return []
        name = claim.variance or str(claim.formula)
        text = (
            f"{name} was proved anew at the calls of {self.taken} of {every} cases, which are held to the "
            "order of sums, division, contraction and clamp of the code there"
        )
        if not self.unread:
            return [text]
        why = "; ".join(f"{count} since {reason}" for reason, count in self.unread.most_common())
        return [f"{text}; the others are held to the wide bounds of any order: {why}"]

    def _gradients(self, case: Case) -> bool:
        differentiable = self.subject.differentiable and bool(op(self.subject.op).differentiable)
        return differentiable and "grad_output" in case.given


def own_runner(runner: Runner) -> Runner:
    """Return a runner of the same backend for readings, in children of its own."""
    key = runner.backend, repr(sorted(runner.options.items()))
    if key not in _runners:
        _runners[key] = Runner(runner.backend, options=runner.options)
        atexit.register(_runners[key].close)
    return _runners[key]


def claim_at(subject: Subject, case: Case, runner: Runner, *, gradients: bool) -> ClaimAtCase | Refusal:
    """Return the subject's claim as its code is proved to have it at the call of a case.

    The algorithm and the form are those of the claim; where the code has others there, nothing is proved.
    """
    found = first_certified(attempts(subject), case, runner=runner, gradients=gradients)
    if isinstance(found, Refusal):
        return found
    return ClaimAtCase(subject=claim_proved(found, case), proof=found)


def claim_key(subject: Subject) -> Hashable:
    """Return what tells the claims of one subject apart, as far as they are read anew."""
    claim = subject.claim
    return claim.variance, repr(sorted(claim.variance_options.items())), str(claim.formula), claim.accumulates


def call_key(case: Case) -> tuple[Hashable, ...]:
    """Return what tells calls apart: all of a case but the values of its tensors.

    Which tensors are given, their dtypes, shapes and places in memory, and all arguments that are no tensors.
    """
    tensors = tuple(
        (name, str(tensor.dtype), tuple(tensor.shape), repr(case.layouts.get(name)))
        for name, tensor in sorted(case.given.items())
    )
    scalars = tuple((name, repr(value)) for name, value in sorted(case.scalars.items()))
    return case.op, case.dtype, case.rows, case.columns, scalars, tensors

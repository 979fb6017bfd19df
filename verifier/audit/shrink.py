"""Makes a failing case small: layouts and dtypes first, then rows, columns and numbers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from strategies.layouts import Layout, simpler_layouts
from strategies.reduce import reduce
from verifier.audit.trial import Failure, Trial
from verifier.cases.recipe import assemble
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.subject import PARAMETERS, Subject
from verifier.records.verdict import FailureKey, Verdict

REDUCTION_CALLS = 120
REDUCTION_SECONDS = 20.0


def shrunk(trial: Trial, failure: Failure, passed_over: Callable[[Case], bool]) -> Failure:
    """Return the smallest failure of the same key that is found in time.

    passed_over: whether a case is not to be taken, because it shows another, known failure.
    """
    if failure.outcome.verdict is Verdict.TIMEOUT:
        return failure  # each attempt would cost a whole wall limit
    search = _Reduction(
        trial=trial,
        passed_over=passed_over,
        key=failure.key,
        until=time.monotonic() + REDUCTION_SECONDS,
        best=failure,
    )
    search.simplify_layouts()
    search.unite_dtypes()
    search.reduce_tensors()
    return search.best


@dataclass(kw_only=True)
class _Reduction:
    """The smallest case so far whose failure has the key."""

    trial: Trial
    passed_over: Callable[[Case], bool]
    key: FailureKey
    until: float
    best: Failure

    def simplify_layouts(self) -> None:
        """Give each tensor the simplest layout in which the case still fails."""
        for name in list(self.best.case.layouts):
            case = self.best.case
            simpler = (_with_layout(case, name, layout) for layout in simpler_layouts(case.layouts[name]))
            any(map(self._still_fails, simpler))

    def unite_dtypes(self) -> None:
        """Give parameters, and what is added, the dtype of the input where the case still fails then."""
        for names in (PARAMETERS, self.trial.op.of_the_sum):
            case = self.best.case
            other = {n: t for n in names if (t := case.tensors.get(n)) is not None}
            held = {name: tensor.to(case.given["input"].dtype) for name, tensor in other.items()}
            if any(case.dtype_of(name) != case.dtype for name in other) and _finite(held):
                self._still_fails(replace(case, tensors={**case.tensors, **held}))

    def reduce_tensors(self) -> None:
        """Leave out rows and columns, and simplify numbers.

        Where the failure does not repeat (a nondeterministic kernel), the case stays as it was found.
        What the op derives from other tensors, such as mean and rstd of a raw backward op, is derived again
        for each attempt, unless it was something else from the start.
        """
        start, the_op = self.best.case, op(self.best.case.op)
        if not start.elements:
            return
        derived = the_op.derived if self._is_derived(start) else ()
        linked = the_op.links({**start.tensors, **dict.fromkeys(derived)}, start.scalars)

        def still_fails(tensors: Mapping[str, torch.Tensor]) -> bool:
            every = completed(self.trial.subject, start, tensors) if derived else tensors
            follow = {name: every[name] for name in derived if name in every}
            return _finite(follow) and self._still_fails(remade(start, every))

        given = {name: tensor for name, tensor in start.given.items() if name not in derived}
        with contextlib.suppress(ValueError):
            reduce(given, still_fails, axes=linked, budget=REDUCTION_CALLS)

    def _is_derived(self, case: Case) -> bool:
        """Return whether what an op derives is what a case has, bit for bit."""
        derived = op(case.op).derived
        given = {name: tensor for name, tensor in case.given.items() if name not in derived}
        every = completed(self.trial.subject, case, given) if derived else {}
        same = (
            name in every and name in case.given and _alike(every[name], case.given[name]) for name in derived
        )
        return bool(derived) and all(same)

    def _still_fails(self, candidate: Case) -> bool:
        if time.monotonic() > self.until or self.passed_over(candidate):
            return False
        again = self.trial.fails_alike(candidate, self.key)
        self.best = again or self.best
        return again is not None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other) and bool(one.isfinite().all())


def _finite(tensors: Mapping[str, torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors.values())


def _with_layout(case: Case, name: str, layout: Layout) -> Case:
    others = {n: old for n, old in case.layouts.items() if n != name}
    return case.with_layouts(others if layout == Layout() else {**others, name: layout})


def completed(subject: Subject, start: Case, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of a case with what its op derives from them."""
    every = op(start.op).complete({**dict.fromkeys(start.tensors), **tensors}, start.scalars, subject)
    return {name: tensor for name, tensor in every.items() if tensor is not None}


def remade(start: Case, tensors: Mapping[str, torch.Tensor]) -> Case:
    """Return the case with other tensors, where those that its layouts overlap agree with themselves."""
    given = {
        name: start.layouts[name].project(tensor).contiguous() if name in start.layouts else tensor
        for name, tensor in tensors.items()
    }
    return assemble(
        op(start.op),
        start.dtype,
        {**dict.fromkeys(start.tensors), **given},
        start.scalars,
        start.layouts,
        hazard=start.hazard,
        origin=start.origin,
    )

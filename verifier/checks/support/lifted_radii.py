"""Lifted results with proved radii: what stands in for a float64 theorem where no algorithm is declared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from verifier.arithmetic.formats import Array
from verifier.checks.support.difference_quotients import VANISHING, Differences, compared
from verifier.checks.support.output_verdict import STILL_OPEN, judge_output, row_scale
from verifier.checks.support.truth import Truth
from verifier.execution.backend import Backend
from verifier.execution.shadow_run import (
    LiftedFunction,
    LostShadows,
    attempt,
    execute_with_shadows,
    shadow_session,
    watched,
)
from verifier.machine.arithmetic.numerics import Array as Shadows
from verifier.ops import Bounded
from verifier.ops.rows.compose_bounds import to_float64
from verifier.ops.specification.enclosures import enclosures
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Outcome, Verdict

SHARP = 2.0**-30
"""A radius above this part of its row's scale says too little (float64 gives about 2^-44)."""
SHARP_WITH_CONSTANTS = 2.0**-18
"""The same where the code has rounded constants, each of which costs 2^-22; 16 bits see 2^-11 at best."""
SMALLEST_SCALE = 1e-3
"""Rows of ordinary cases that are smaller vanish by cancellation: what is left of them has no scale."""
POLYNOMIAL = 3
"""A polynomial that stands for a function has at least so many constants of float32's accuracy."""
DOUBLE, SINGLE = 2.0**-53, 2.0**-24
"""Unit roundoffs of float64, and of float32, by which such polynomials are right."""
_ROOM = 16.0
"""Radii of the run itself are allowed to grow by so much at the ends of differences before a second try."""
MEANING = "kernel wrong: nothing is rounded to the kernel's formats here"
FORMULA = "formula or a constant in it wrong: nothing is rounded to the kernel's formats here"
TOO_WIDE = "the radius of the lifted result is too wide to say anything (or nothing is known of it)"


# -- results -----------------------------------------------------------------------------------------


def returned(seen: Observation) -> Observation:
    """Return what the subject itself returned, of an observation of `experiment`."""
    end = "|returned"
    return replace(seen, outputs={n.removesuffix(end): t for n, t in seen.outputs.items() if n.endswith(end)})


def judged(truth: Truth, seen: Observation, names: tuple[str, ...]) -> list[Outcome]:
    """Judge lifted results by their own radii; no theorem where any radius is wide for its row."""
    outcomes = []
    for name in names:
        value, radius = seen.outputs.get(name), seen.outputs.get(f"{name}|radius")
        if name not in truth.exact:
            continue
        if miscounted := miscount(truth, name, value):
            outcomes.append(miscounted)
            continue
        assert value is not None
        assert radius is not None
        if not value.numel():
            continue
        bounded = _bounded(truth, name, value, radius, constants=bool(seen.found_as(LiftedRun).constants))
        outcome = judge_output(truth.bounded_by({name: bounded}), name, value)
        if outcome.verdict is Verdict.FAIL:
            text = (
                f"lifted to float64, {name}: {outcome.wrong} of {value.numel()} elements are further from "
                "their specification than the radius around them"
            )
            outcome = replace(outcome, message=text, meaning=MEANING, formula=FORMULA)
        outcomes.append(in_full(outcome))
    return outcomes


def miscount(truth: Truth, name: str, value: torch.Tensor | None) -> Outcome | None:
    """Return a FAIL for a result that is missing, no float or of another size than its specification's."""
    wanted = math.prod(truth.shape_of(name))
    floating = value is not None and value.is_floating_point()
    if value is not None and floating and value.numel() == wanted:
        return None
    count = f"{value.numel()}" if value is not None and floating else "no float"
    text = f"{name} has {count} elements; its specification gives {wanted}"
    return Outcome(verdict=Verdict.FAIL, output=name, message=text)


def in_full(outcome: Outcome) -> Outcome:
    """Take the pass from a result of which some elements are not judged: no theorem judges them elsewhere."""
    partly = outcome.verdict is Verdict.PASS and outcome.uncovered
    return replace(outcome, verdict=Verdict.NO_THEOREM) if partly else outcome


def outweighing(outcomes: list[Outcome]) -> list[Outcome]:
    """Let a result that is not judged in full outweigh others that passed, so that the case does not."""
    if not any(o.verdict is Verdict.PASS for o in outcomes):
        return outcomes
    left = [o.output and o.verdict is Verdict.NO_THEOREM for o in outcomes]
    return [
        replace(o, verdict=Verdict.UNDECIDED) if open_ else o for o, open_ in zip(outcomes, left, strict=True)
    ]


def _bounded(
    truth: Truth, name: str, value: torch.Tensor, radius: torch.Tensor, *, constants: bool
) -> Bounded:
    exact = truth.exact[name]
    lifted = np.asarray(truth.op.canonical(truth.case, name, to_float64(value)))
    reach = np.asarray(truth.op.canonical(truth.case, name, to_float64(radius)))
    part = SHARP_WITH_CONSTANTS if constants else SHARP
    says = reach <= part * np.maximum(row_scale(np.asarray(exact.high)), SMALLEST_SCALE)
    # However wide a radius is, what lies outside of it is wrong.
    beyond = exact.error_of(lifted)[0] > reach
    return Bounded(bound=reach, covered=np.isfinite(reach) & (says | beyond), reasons=(TOO_WIDE,))


def explained_by_single_precision(truth: Truth, seen: Observation, failed: list[Outcome]) -> bool:
    """Return whether all that failed lies within the radii that float32's roundings would have.

    seen: a run whose radii were computed with the unit roundoff of float32.
    """
    for outcome in failed:
        if outcome.worst is None:
            return False
        value, radius = seen.outputs[outcome.output], seen.outputs[f"{outcome.output}|radius"]
        assert value is not None
        assert radius is not None
        reach = np.asarray(truth.op.canonical(truth.case, outcome.output, to_float64(radius)))
        bounded = Bounded(bound=reach, covered=np.ones(reach.shape, dtype=np.bool_), reasons=(STILL_OPEN,))
        again = judge_output(truth.bounded_by({outcome.output: bounded}), outcome.output, value)
        if again.verdict is Verdict.FAIL:
            return False
    return True


# -- differences -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExactJacobian:
    """What is known of a specification's Jacobian before anything runs.

    truncation: largest |exact difference quotient - exact derivative|. largest: the largest |entry| for
    each tensor on which the results depend. Both absolute.
    """

    truncation: float
    largest: tuple[float, ...]


def exact_jacobian(subject: Subject, case: Case, names: list[str], step: float) -> ExactJacobian:
    """Compare the specification's difference quotients, entry by entry, with its derivatives."""
    doubled = {name: t.double() for name, t in case.given.items()}
    wide = replace(case, dtype="float64", tensors={**case.tensors, **doubled})
    derivative = _derivatives(subject, wide, names)
    forward = replace(wide, tensors={**wide.tensors, "grad_output": None})
    truncation, largest = 0.0, []
    for name in names:
        for place in range(wide.given[name].numel()):
            quotient = _quotient(subject, forward, name, place, step)
            apart = np.abs(quotient - derivative[name][:, place])
            truncation = max(truncation, float(np.max(apart)))
        largest.append(float(np.max(np.abs(derivative[name]))))
    largest = [entry for entry in largest if entry] or [0.0]
    return ExactJacobian(truncation=truncation * (1.0 + 2.0**-10), largest=tuple(largest))


def _derivatives(subject: Subject, case: Case, names: list[str]) -> dict[str, Array]:
    """Return d output / d tensor for each tensor, (elements of output, elements of tensor)."""
    count = case.given["grad_output"].numel()
    rows: dict[str, list[Array]] = {name: [] for name in names}
    for place in range(count):
        seed = torch.zeros_like(case.given["grad_output"])
        seed.view(-1)[place] = 1.0
        exact = enclosures(subject, replace(case, tensors={**case.tensors, "grad_output": seed}))
        for name in names:
            found = np.asarray(exact[f"grad_{name}"].high)
            rows[name].append(_in_order(case, name, tuple(case.given[name].shape), found))
    return {name: np.array(found) for name, found in rows.items()}


def _quotient(subject: Subject, case: Case, name: str, place: int, step: float) -> Array:
    """Return the exact central difference quotient of every output element, at the ends that torch takes."""
    from verifier.ops import op

    ends, shape = [], op(case.op).expected(case, subject)["output"].shape
    for sign in (1.0, -1.0):
        moved = case.given[name].clone()
        moved.view(-1)[place] += sign * step
        exact = enclosures(subject, replace(case, tensors={**case.tensors, name: moved}))["output"]
        ends.append(tuple(_in_order(case, "output", shape, side) for side in (exact.high, exact.low)))
    (above, more), (below, less) = ends
    return ((above - below) + (more - less)) / (2.0 * step)


def _in_order(case: Case, name: str, shape: tuple[int, ...], canonical: Array) -> Array:
    """Return canonical rows in the order of a tensor's own elements."""
    from verifier.ops import op

    index = op(case.op).flat_index(case, name, shape).reshape(-1)
    found = np.empty(index.size)
    found[index] = np.broadcast_to(canonical, np.shape(canonical)).reshape(-1)
    return found


# -- in the child ------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Enclosing(LiftedFunction):
    """A subject as a differentiable float64 function that remembers the widest radii of what it returned."""

    widest: dict[str, float] = field(default_factory=lambda: {"forward": 0.0, "backward": 0.0})
    _side: str = "forward"

    def wide(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the lifted values of a tensor."""
        assert self.opened.slots is not None
        shadows = self.opened.slots.get(tensor.detach())
        self.widest[self._side] = max(self.widest[self._side], _widest(shadows))
        return torch.from_numpy(np.array(shadows["value"]))

    def backward(
        self, leaves: list[torch.Tensor], output: torch.Tensor, gradient: torch.Tensor
    ) -> list[torch.Tensor | None]:
        """Return the lifted gradients for a lifted grad_output."""
        self._side = "backward"
        try:
            return super().backward(leaves, output, gradient)
        finally:
            self._side = "forward"

    def shadows_for(self, values: torch.Tensor) -> Shadows:
        """Return the shadows of exact numbers."""
        from verifier.machine.shadow.arithmetics.enclosed import exact

        return exact(values.detach().numpy())


def _widest(shadows: Shadows) -> float:
    return float(np.max(shadows["radius"], initial=0.0))


@dataclass(frozen=True, kw_only=True)
class LiftedRun:
    """What is known of a lifted run.

    constants: rounded ones of the code that its specification does not write. differences: None where no
    differences were taken.
    """

    lost: LostShadows
    constants: tuple[float, ...] = ()
    differences: Differences | None = None


def experiment(
    subject: Subject,
    case: Case,
    *,
    backend: Backend,
    gradients: bool,
    unit_roundoff: float,
    as_written: list[float],
    names: list[str],
    asked: dict[str, float] | None,
) -> Observation:
    """Run the subject enclosed, and gradcheck on it if asked.

    With every lifted result come its `<name>|radius` and the `<name>|returned` floats themselves.

    unit_roundoff: relative error of every operation. as_written: constants of the specification.
    """
    from verifier.machine.shadow.arithmetics.enclosed import build, exact

    arithmetic = build(unit_roundoff=unit_roundoff, as_written=as_written)
    with shadow_session(arithmetic) as opened:
        lost = watched(opened, case)
        given = {name: exact(t.double().numpy()) for name, t in case.given.items()}
        seen, shadows = execute_with_shadows(
            subject, case, backend=backend, opened=opened, given=given, gradients=gradients
        )
        if seen.status != "ok":
            return seen
        constants = tuple(sorted(arithmetic.rounded))
        outputs: dict[str, torch.Tensor | None] = {
            name: torch.from_numpy(np.array(found["value"])) for name, found in shadows.items()
        }
        outputs |= {f"{n}|radius": torch.from_numpy(np.array(s["radius"])) for n, s in shadows.items()}
        outputs |= {f"{name}|returned": tensor for name, tensor in seen.outputs.items()}
        tried, differences = Observation(status="ok"), None
        if asked is not None and not constants:
            function = Enclosing(
                subject=subject, case=case, backend=backend, opened=opened, names=tuple(names)
            )
            start = {
                "forward": _widest(shadows["output"]),
                "backward": max(
                    (_widest(s) for n, s in shadows.items() if n.startswith("grad_")), default=0.0
                ),
            }
            tried = _differences(function, [case.given[n].double() for n in names], start, **asked)
            if tried.status != "ok":
                return tried
            differences = tried.found_as(Differences)
        # What was lost while differences were taken counts too.
        run = LiftedRun(lost=lost.counted(arithmetic.apart), constants=constants, differences=differences)
        return Observation(status="ok", outputs=outputs, message=tried.message, found=run)


def _differences(
    function: Enclosing,
    tensors: list[torch.Tensor],
    start: dict[str, float],
    *,
    step: float,
    truncation: float,
    largest: float,
    smallest: float,
) -> Observation:
    """Let torch compare the Jacobians with a tolerance that the radii met on the way must keep.

    largest, smallest: of the largest |entries| by each tensor. Next to the one the quotients are rounded; a
    tolerance above the other would pass a tensor's derivatives whatever they are.

    They are known once the differences have been taken: the first tolerance allows them `_ROOM` times those
    of the run itself, a second one twice those that were met.
    """
    allowed = {side: _ROOM * radius for side, radius in start.items()}
    for _ in range(2):
        absolute = allowed["forward"] / step + truncation + allowed["backward"] + 2.0**-50 * largest
        known = Differences(tolerance=absolute, vanishing=absolute < VANISHING)
        if not absolute < smallest:
            why = "the tolerance is as large as the derivatives by some tensor"
            return Observation(status="ok", found=replace(known, why=why))
        tolerance = absolute * (1.0 + 2.0**-20)
        tried = attempt(function.backend, lambda: compared(function, tensors, step, tolerance))  # noqa: B023
        if tried.status != "ok":
            return tried
        if all(function.widest[side] <= allowed[side] for side in allowed):
            return replace(tried, found=replace(known, passed=tried.found_as(Differences).passed))
        allowed = {side: 2.0 * radius for side, radius in function.widest.items()}
    return Observation(status="ok", found=replace(known, why="radii grew while differences were taken"))

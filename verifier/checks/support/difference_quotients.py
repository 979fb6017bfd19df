"""The tolerance of torch's gradcheck on one case, from theorems and the oracle's exact results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from verifier.arithmetic.formats import Array
from verifier.checks.batch_invariance import RowPlaces, arranged, row_places
from verifier.checks.support.truth import Truth
from verifier.execution.call_subject import UnusableError
from verifier.machine.culprit import passed_on
from verifier.ops import Index, Op, op
from verifier.oracle.enclosure import Mask
from verifier.oracle.solve import solve
from verifier.records.case import Case
from verifier.records.observation import Observation

STEP = 2.0**-17
"""Relative step of the central differences: near the cube root of float64's roundoff, a power of two."""
VANISHING = 2.0**-20
"""A tolerance below this is not wide: derivatives of ordinary weights are near 1."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What entries of the two Jacobians may differ by, and the largest entry of each exact one.

    step, absolute: absolute, in units of the input and of the derivative. why: no tolerance, and the reason.
    vanishing: the reason is the input, on which all derivatives are nearly zero, and not a wide tolerance.
    """

    step: float
    absolute: float
    largest: float
    why: str = ""
    vanishing: bool = False


@dataclass(frozen=True, kw_only=True)
class Differences:
    """What torch's gradcheck says: whether it passed; None where no differences were taken.

    tolerance, vanishing, why: see `Tolerance`, where the tolerance is known only after the run.
    """

    passed: bool | None = None
    tolerance: float = math.nan
    vanishing: bool = False
    why: str = ""


def tolerance(truth: Truth, names: Sequence[str]) -> Tolerance:
    """Return B / h + truncation + the bound of the backward pass for unit gradients.

    B is the float64 forward bound on the case and at the ends of all differences; truncation is |exact
    difference quotient - exact derivative|. Rows do not depend on each other, so that one tall case holds a
    copy of all rows for each column that is moved. Output is affine in weight and bias: their quotients have
    no truncation, and a bound at weights and biases of larger size holds for those of smaller. Of parameters
    whose numbers act on all elements nothing of the kind is known: both ends of each number are looked at.

    Elements that are no finite number, such as logarithms of what is masked out, have no derivative: they are
    left out, here and in `compared`.
    """
    step = step_of(truth.case)
    flat = _with_row_axis(truth.case)
    places = row_places(truth.op, flat)
    if places is None:
        return Tolerance(
            step=step, absolute=math.inf, largest=0.0, why="no axis of the input holds whole rows"
        )
    tall = _Tall(truth, flat, places)
    moved = [name for name in names if tall.holds_rows(name)]
    wholes = [name for name in names if name in truth.op.wholes]
    derivatives, backward = tall.derivatives(moved, names)
    forward = max(tall.forward_bound(step, name, names) for name in moved or ["input"])
    truncation = max((tall.truncation(step, name, derivatives[name]) for name in moved), default=0.0)
    for name in wholes:
        at_ends, left = _of_whole(truth, name, step)
        forward, truncation = max(forward, at_ends), max(truncation, left)
    largest = max(_largest_entries(truth, names, derivatives))
    total = forward / step + truncation + backward + 2.0**-50 * largest
    if not total < math.inf:
        return Tolerance(step=step, absolute=math.inf, largest=largest, why="no bound on this input")
    why = "" if total < largest else "the tolerance is as large as the derivatives"
    return Tolerance(
        vanishing=total < VANISHING, step=step, absolute=total * (1.0 + 2.0**-20), largest=largest, why=why
    )


def without_derivative(truth: Truth) -> torch.Tensor | None:
    """Return which elements of the output, in its shape, are no finite number; None if all are."""
    infinite = _infinite(truth)
    if not infinite.any():
        return None
    shape = tuple(truth.case.given["input"].shape)
    found = torch.zeros(shape, dtype=torch.bool)
    found.view(-1)[torch.from_numpy(truth.op.flat_index(truth.case, "output", shape)[infinite])] = True
    return found


def _infinite(truth: Truth) -> Mask:
    """Return which elements of the output are no finite number, in canonical rows."""
    return ~np.isfinite(np.asarray(truth.exact["output"].high))


def step_of(case: Case) -> float:
    """Return the step of differences, a power of two near a part of the largest input: their sum is exact."""
    return STEP * 2.0 ** math.frexp(max(case.largest, 1e-3))[1]


def _of_whole(truth: Truth, name: str, step: float) -> tuple[float, float]:
    """Return the forward bound at the ends of the differences by a parameter, and their truncation."""
    the_op, finite = truth.op, ~_infinite(truth)
    posed = [
        case
        for number in range(truth.case.given[name].numel())
        for case in _ends(truth.case, name, number, step)
    ]
    worst = max(_worst(replace(truth, case=case), ["output"], finite) for case in posed)
    ends = [_exact(the_op, case, "output") for case in posed]
    shape, left = tuple(truth.case.given["grad_output"].shape), 0.0
    index = the_op.flat_index(truth.case, "output", shape)
    for place in zip(*np.nonzero(finite), strict=True):
        gradient = torch.zeros(shape, dtype=truth.case.given["grad_output"].dtype)
        gradient.view(-1)[int(index[place])] = 1.0
        slope = _exact(the_op, _of_gradient(truth.case, gradient), f"grad_{name}")[0].reshape(-1)
        for number, exact in enumerate(slope):
            (high, low), (high_down, low_down) = ends[2 * number : 2 * number + 2]
            quotient = ((high[place] - high_down[place]) + (low[place] - low_down[place])) / (2.0 * step)
            left = max(left, abs(float(quotient - exact)))
    return worst, left * (1.0 + 2.0**-10)


def _ends(case: Case, name: str, number: int, step: float) -> list[Case]:
    """Return the case with one number of a parameter moved up, and down."""
    found = []
    for sign in (1.0, -1.0):
        tensor = case.given[name].clone()
        tensor.view(-1)[number] += sign * step
        found.append(_with(case, **{name: tensor}))
    return found


def _exact(the_op: Op, case: Case, name: str) -> tuple[Array, Array]:
    """Return exact results as unevaluated sums (106 bits)."""
    posed = the_op.problem(case)
    assert posed is not None
    found = the_op.exact(solve(posed, rung="double_double"))[name]
    return np.asarray(found.high), np.asarray(found.low)


def _with_row_axis(case: Case) -> Case:
    """Return a case of one row with an axis of rows: the oracle's view of it is the same."""
    if case.given["input"].dim() != 1:
        return case
    shape = case.given["input"].shape
    whole = ("input", "grad_output", *op(case.op).alike, *op(case.op).varied)
    whole += tuple(op(case.op).incoming.values())
    whole = tuple(name for name in whole if name not in op(case.op).wholes)
    both = {n: t.unsqueeze(0) for n, t in case.given.items() if n in whole and t.shape == shape}
    scalars = {**case.scalars, "dim": -1} if "dim" in case.scalars else case.scalars
    return replace(case, tensors={**case.tensors, **both}, scalars=scalars)


def _largest_entries(truth: Truth, names: Sequence[str], derivatives: Mapping[str, Array]) -> list[float]:
    """Return the largest |entry| of the exact Jacobian by each tensor; derivatives: by tensors of rows."""
    found = {name: float(np.max(np.abs(by), initial=0.0)) for name, by in derivatives.items()}
    output = np.where(_infinite(truth), 0.0, np.asarray(truth.exact["output"].high))
    place = np.unravel_index(int(np.argmax(np.abs(output))), output.shape)
    at = truth.op.flat_index(truth.case, "output", tuple(truth.case.given["input"].shape))[place]
    gradient = torch.zeros_like(truth.case.given["grad_output"])
    gradient.view(-1)[int(at)] = 1.0
    exact = replace(truth, case=_of_gradient(truth.case, gradient)).exact
    for name in set(names) - set(found):
        found[name] = float(np.max(np.abs(exact[f"grad_{name}"].high), initial=0.0))
    return [found[name] for name in names]


def _of_gradient(case: Case, gradient: torch.Tensor) -> Case:
    """Return the case with a gradient of the output, and none of other results: what gradcheck asks for."""
    others = {n: torch.zeros_like(t) for n, t in case.given.items() if n in op(case.op).incoming.values()}
    return _with(case, **{**others, "grad_output": gradient})


def _with(case: Case, **tensors: torch.Tensor) -> Case:
    return replace(case, tensors={**case.tensors, **tensors})


class _Tall:
    """Copies of a case's rows, in each of which every row is treated at one column."""

    def __init__(self, truth: Truth, case: Case, places: RowPlaces) -> None:
        """Find out where the copies of each row stand."""
        self.truth, self.case, self.places = truth, case, places
        self.axis = next(axis for name, axis in places if name == "input")
        self.infinite = _infinite(truth)

    def copies(self, count: int) -> tuple[Case, Index, Index]:
        """Return a case of so many copies; which copy each canonical row is, and each element's index."""
        extent = self.case.given["input"].shape[self.axis]
        tall = arranged(self.truth.op, self.case, self.places, [*range(extent)] * count)
        shape = tall.given["input"].shape
        along = [1] * len(shape)
        along[self.axis] = shape[self.axis]
        copy = np.broadcast_to(np.repeat(np.arange(count, dtype=np.float64), extent).reshape(along), shape)
        row_copies = self.truth.op.canonical(tall, "input", copy)[:, 0].astype(np.int64)
        return tall, row_copies, self.truth.op.flat_index(tall, "input", tuple(shape))

    def truth_of(self, case: Case) -> Truth:
        """Pose a tall case."""
        return replace(self.truth, case=case)

    def holds_rows(self, name: str) -> bool:
        """Whether a tensor has an element for each of the input's: the output is no affine function of it."""
        op = self.truth.op
        if name != "input" and (name not in (*op.varied, *op.alike) or name in op.wholes):
            return False
        return self.case.given[name].shape == self.case.given["input"].shape

    def moved(self, step: float, name: str) -> tuple[Case, Index]:
        """Return the case of which copy 2 c has column c of a tensor moved up, copy 2 c + 1 down."""
        tall, copy, number = self.copies(2 * self.case.columns)
        x = tall.given[name].clone()
        places = torch.from_numpy(number[np.arange(len(copy)), copy // 2])
        x.view(-1)[places] += torch.from_numpy(np.where(copy % 2 == 0, step, -step)).to(x.dtype)
        return _with(tall, **{name: x}), copy

    def forward_bound(self, step: float, moved: str, names: Sequence[str]) -> float:
        """Bound the forward error at all ends of the differences by a tensor of rows, and by parameters."""
        case = self.moved(step, moved)[0]
        for name in set(names) & {"weight", "bias"} - {*self.truth.op.wholes}:
            tensor = case.given[name]
            outwards = torch.where(tensor < 0, -step, step).to(tensor.dtype)
            case = _with(case, **{name: tensor + outwards})
        truth = self.truth_of(case)
        return _worst(truth, ["output"], ~_infinite(truth))

    def derivatives(self, moved: Sequence[str], names: Sequence[str]) -> tuple[dict[str, Array], float]:
        """Return d output[row, column] / d tensor[row, :] as (columns, rows, columns), and a bound on all."""
        tall, copy, number = self.copies(self.case.columns)
        order = np.argsort(copy, kind="stable")
        finite = np.empty(len(copy), dtype=np.bool_)  # whether the column of a row's copy has a derivative
        finite[order] = ~self.infinite.T.ravel()
        gradient = torch.zeros_like(tall.given["grad_output"])
        gradient.view(-1)[torch.from_numpy(number[np.arange(len(copy)), copy][finite])] = 1.0
        truth = self.truth_of(_of_gradient(tall, gradient))
        exact = {name: np.asarray(self.exact(truth.case, f"grad_{name}")[0])[order] for name in moved}
        bound = _worst(truth, [f"grad_{name}" for name in names])
        shape = (self.case.columns, self.case.rows, self.case.columns)
        return {name: found.reshape(shape) for name, found in exact.items()}, bound

    def exact(self, case: Case, name: str) -> tuple[Array, Array]:
        """Return exact results as unevaluated sums (106 bits)."""
        return _exact(self.truth.op, case, name)

    def truncation(self, step: float, name: str, derivative: Array) -> float:
        """Return the largest |exact difference quotient - exact derivative| by a tensor of rows."""
        case, copy = self.moved(step, name)
        order = np.argsort(copy, kind="stable")
        high, low = (
            part[order].reshape(self.case.columns, 2, self.case.rows, -1)
            for part in self.exact(case, "output")
        )
        high, low = (np.where(self.infinite, 0.0, part) for part in (high, low))
        quotient = ((high[:, 0] - high[:, 1]) + (low[:, 0] - low[:, 1])) / (2.0 * step)
        # quotient[c, r, j] is d output[r, j] / d tensor[r, c]; derivative[j, r, c] the same.
        return float(np.max(np.abs(quotient - derivative.transpose(2, 1, 0)), initial=0.0)) * (1.0 + 2.0**-10)


def _worst(truth: Truth, names: Sequence[str], among: Mask | None = None) -> float:
    """Return the largest bound of the named results; infinity where one has no theorem.

    among: the elements that count, in canonical rows; all if None.
    """
    found = [truth.bounds[name] for name in names] if truth.bounds else []
    if not found:
        return math.inf
    worst = 0.0
    for one in found:
        covered, bound = (part if among is None else part[among] for part in (one.covered, one.bound))
        if not covered.all():
            return math.inf
        worst = max(worst, float(np.max(bound, initial=0.0)))
    return worst


def compared(
    function: Callable[..., torch.Tensor],
    tensors: list[torch.Tensor],
    step: float,
    tolerance: float,
    without: torch.Tensor | None = None,
) -> Observation:
    """Let torch compare the two Jacobians, entry by entry; without: elements of the output to leave out.

    Raises:
        UnusableError: elements are to be left out of an output that has not their shape.

    """
    from torch.autograd.gradcheck import GradcheckError

    def finite(*inputs: torch.Tensor) -> torch.Tensor:
        output = function(*inputs)
        if without is None:
            return output
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else None
        if shape != (wanted := tuple(without.shape)):
            has = "is no tensor" if shape is None else f"has shape {shape}"
            raise UnusableError(f"the output {has}; a tensor of shape {wanted} is expected")
        return output.masked_fill(without.to(output.device), 0.0)

    leaves = [t.detach().clone().requires_grad_(True) for t in tensors]
    try:
        passed_on(
            torch.autograd.gradcheck,
            finite,
            leaves,
            eps=step,
            atol=tolerance,
            rtol=0.0,
            nondet_tol=tolerance,
            fast_mode=False,
        )
    except GradcheckError as error:
        message = " ".join(str(error).split())[:300]
        return Observation(status="ok", message=message, found=Differences(passed=False))
    return Observation(status="ok", found=Differences(passed=True))

"""A row problem as validated float64 arrays, with what is not finite set aside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from verifier.arithmetic.error_free.numpy_or_torch import NUMPY, Arrays, Kit, torch_kit
from verifier.arithmetic.formats import Array
from verifier.oracle.enclosure import Mask
from verifier.oracle.problem import RowOperands

NARROW_TYPES = frozenset(
    f"{prefix}{name}" for prefix in ("", "torch.") for name in ("float16", "bfloat16", "float32")
)
WINDOW = (2.0**-160, 2.0**160)
"""Nonzero magnitudes of which no product of three loses bits to underflow (2**-480 * 2**-106); holds all
of float32. Rows whose input leaves it are scaled by powers of two (`Rows.scaled`); others are for Arb."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Finite float64 operands of a row problem; every non-finite input is replaced by 0 and remembered.

    x, grad_output: (rows, columns); weight, bias: 2-D, broadcastable; mean, rstd, variance: (rows, 1).
    bad_rows: (rows,) whose input, or given statistics, are not finite. bad_output, bad_grad: broadcastable
    to (rows, columns), elements whose weight or bias (grad_output or weight) are not finite; bad_gradient:
    (rows, columns), those of grad_output alone; None: none.
    narrow: every operand is a float32 number, so that products of two are exact.
    shifts: (rows,), whole numbers k of rows whose x is 2**-k times the input (see `scaled`); None: all 0.
    """

    kit: Kit
    x: Arrays
    weight: Arrays | None
    bias: Arrays | None
    grad_output: Arrays | None
    mean: Arrays | None
    rstd: Arrays | None
    variance: Arrays | None
    eps: float
    centred: bool
    parameter: Arrays
    narrow: bool
    bad_rows: Mask
    bad_output: Mask | None
    bad_gradient: Mask | None
    bad_grad: Mask | None
    shifts: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.x.shape[0], self.x.shape[1]

    @property
    def own(self) -> bool:
        """Whether mean and rstd are computed from the rows."""
        return self.rstd is None and self.variance is None

    @property
    def constant_statistics(self) -> bool:
        """Whether the gradient treats mean and rstd as constants (evaluation mode)."""
        return self.variance is not None

    @cached_property
    def unusual(self) -> Mask:
        """(rows,): rows with magnitudes outside the window, which the fast rungs leave to Arb.

        Given statistics need no window: they enter through balls (`FastConstants` limits their parts).
        """
        far = np.zeros(self.shape[0], dtype=bool)
        if self.narrow and abs(self.eps) <= WINDOW[1]:
            return far
        for operand in (self.x, self.weight, self.bias, self.grad_output):
            if operand is not None:
                far |= _beyond(self.kit, operand)
        return far | (abs(self.eps) > WINDOW[1])

    @property
    def scaled(self) -> Rows:
        """These rows, with x times 2**-k, exactly, where that brings a row into the window.

        k makes the largest |x| of the row 1 to 2. A row that is too wide for the window keeps its x.
        Only x is scaled: mean and rstd of what the fast rungs compute scale with it, all else does not.
        """
        return self._scaled or self

    @cached_property
    def _scaled(self) -> Rows | None:
        """None where nothing is scaled: a record that held itself would outlive its use."""
        if self.narrow or self.shifts is not None or not all(self.shape):
            return None
        far = _beyond(self.kit, self.x)
        if not far.any():
            return None
        exponents = np.frexp(self.kit.host(self.kit.magnitude(self.x)))[1].astype(np.int64) - 1
        shifts = np.where(far, exponents, 0)
        trial = replace(self, x=times_power(self.kit, self.x, -shifts))
        shifts[trial.unusual] = 0
        if not shifts.any():
            return None
        x = self.kit.where(self.kit.device(shifts != 0)[:, None], trial.x, self.x)
        return replace(self, x=x, shifts=shifts)


def collect(problem: RowOperands) -> Rows:
    """Return the operands of a problem.

    Raises:
        ValueError: a shape does not fit, or the statistics are given incompletely.

    """
    kit = _kit(problem.input)
    if len(problem.input.shape) != 2:
        raise ValueError(f"input has shape {tuple(problem.input.shape)}: rows and columns are needed")
    rows, columns = (int(extent) for extent in problem.input.shape)
    _require_given(problem)
    narrow = True
    operands: dict[str, Arrays] = {}
    bad: dict[str, Arrays] = {}
    for name in ("input", "weight", "bias", "grad_output", "mean", "rstd", "variance"):
        value = getattr(problem, name)
        if value is None or (name == "mean" and not problem.centred):
            operands[name] = None
            continue
        fits = _fits(name, tuple(value.shape), rows, columns)
        if not fits:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, which does not fit rows of ({rows}, {columns})"
            )
        array, fits_float32 = _float64(kit, value)
        operands[name], bad[name] = _finite(kit, array)
        narrow = narrow and fits_float32
    return Rows(
        kit=kit,
        x=operands.pop("input"),
        **operands,
        eps=float(problem.eps),
        centred=problem.centred,
        parameter=problem.parameter,
        narrow=narrow,
        bad_rows=_bad_rows(bad, rows),
        bad_output=_either(bad.get("weight"), bad.get("bias")),
        bad_gradient=bad.get("grad_output"),
        bad_grad=_either(bad.get("weight"), bad.get("grad_output")),
    )


def rows_between(rows: Rows, first: int, last: int) -> Rows:
    """Return the operands of the rows [first, last); what is not finite is not cut along."""
    if (first, last) == (0, rows.shape[0]):
        return rows

    def cut(operand: Arrays | None) -> Arrays | None:
        return operand if operand is None or operand.shape[0] == 1 else operand[first:last]

    return replace(
        rows,
        x=rows.x[first:last],
        weight=cut(rows.weight),
        bias=cut(rows.bias),
        grad_output=cut(rows.grad_output),
        mean=cut(rows.mean),
        rstd=cut(rows.rstd),
        variance=cut(rows.variance),
        shifts=None if rows.shifts is None else rows.shifts[first:last],
    )


def times_power(kit: Kit, values: Arrays, exponents: Array) -> Arrays:
    """Return values * 2**exponents, row by row: exact, or rounded to a multiple of 2**-1074 twice.

    values: (rows, columns); exponents: (rows,), whole numbers of magnitude at most 2044.
    """
    half = exponents // 2
    for part in (half, exponents - half):  # 2**1074 itself is no float64
        values = values * kit.device(np.ldexp(1.0, part))[:, None]
    return values


def _beyond(kit: Kit, operand: Arrays) -> Mask:
    """Return which rows have a nonzero magnitude outside the window."""
    size = abs(operand)
    if size.shape[0] and size.shape[1] and bool(size.max() <= WINDOW[1]) and bool(size.min() >= WINDOW[0]):
        return np.zeros(size.shape[0], dtype=bool)  # most often: two passes instead of six
    outside = (size > WINDOW[1]) | ((size < WINDOW[0]) & (size != 0))
    return np.asarray(kit.host(outside.any(1)).astype(bool))


def _require_given(problem: RowOperands) -> None:
    if problem.rstd is not None and problem.variance is not None:
        raise ValueError("give rstd or variance, not both")
    given = problem.rstd is not None or problem.variance is not None
    if problem.centred and given != (problem.mean is not None):
        raise ValueError("mean and rstd (or variance) are given together or not at all")


def _fits(name: str, shape: tuple[int, ...], rows: int, columns: int) -> bool:
    if name in ("input", "grad_output"):
        return shape == (rows, columns)
    if name in ("mean", "rstd", "variance"):
        return shape == (rows, 1)
    return len(shape) == 2 and shape[0] in (1, rows) and shape[1] in (1, columns)


def _kit(value: object) -> Kit:
    device: object = getattr(value, "device", None)
    return torch_kit(str(device)) if getattr(device, "type", "cpu") != "cpu" else NUMPY


def _float64(kit: Kit, value: Arrays) -> tuple[Arrays, bool]:
    """Return the value in float64, and whether float32 holds every element of it."""
    narrow = str(value.dtype) in NARROW_TYPES
    if hasattr(value, "detach"):
        value = value.detach().double()
        array = value.cpu().numpy() if kit is NUMPY else value.contiguous()
    else:
        array = np.ascontiguousarray(value, dtype=np.float64)
    if kit is not NUMPY:
        return kit.device(array) if isinstance(array, np.ndarray) else array, narrow
    if not narrow:
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = bool((array.astype(np.float32) == array).all())
    return array, narrow


def _finite(kit: Kit, array: Arrays) -> tuple[Arrays, Arrays]:
    """Return the array with non-finite elements zeroed, and their mask on the host (None: none)."""
    finite = kit.finite(array)
    if bool(finite.all()):
        return array, None
    return kit.where(finite, array, 0.0), ~kit.host(finite).astype(bool)


def _bad_rows(bad: dict[str, Arrays], rows: int) -> Mask:
    masks = [bad[name].any(1) for name in ("input", "mean", "rstd", "variance") if bad.get(name) is not None]
    return np.logical_or.reduce(masks) if masks else np.zeros(rows, dtype=bool)


def _either(first: Arrays | None, second: Arrays | None) -> Arrays | None:
    if first is None or second is None:
        return second if first is None else first
    return first | second

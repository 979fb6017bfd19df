"""Whether a backward pass multiplies what its forward pass did, where it makes it again.

A norm that is followed by a matrix product may save its input alone. The backward pass then makes the norm's
output again, for the gradient of the matrix, and should make the same numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from verifier.checks.support.bits import bit_numbers, comparable
from verifier.execution.call_subject import backward, failure, forward, lay_out
from verifier.machine.culprit import passed_on
from verifier.machine.device.dispatch_mode import is_custom, run_custom
from verifier.machine.device.dispatching import Dispatching
from verifier.machine.shadow.host_products import FIRST_FACTORS
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.records.observation import Deviation
from verifier.subjects.process_settings import settings_kept

if TYPE_CHECKING:
    from verifier.execution.backend import Backend
    from verifier.records.case import Case
    from verifier.records.subject import Subject

GRADIENT = f"grad_{LINEAR_WEIGHT}"
ANEW = "what the backward pass recomputes and multiplies"
"""What is told of, in words."""
Factors = list[tuple[torch.Tensor, torch.Tensor]]


class _Multiplied(Dispatching):
    """Keeps copies of the factors of torch's products of two matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.factors: Factors = []

    def dispatched(
        self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Run the operation, and keep what it multiplied."""
        if is_custom(func):
            return run_custom(self, func, args, kwargs)
        result = passed_on(func, *args, **kwargs)
        first = FIRST_FACTORS.get(func.overloadpacket.__name__)
        if first is not None and len(args) >= first + 2:
            pair = [_matrix(factor) for factor in args[first : first + 2]]
            if pair[0] is not None and pair[1] is not None:
                self.factors.append((pair[0], pair[1]))
        return result


def _matrix(factor: object) -> torch.Tensor | None:
    """Return a copy of a matrix, or of the only one of a stack."""
    if not isinstance(factor, torch.Tensor) or not factor.is_floating_point():
        return None
    alone = factor[0] if factor.dim() == 3 and len(factor) == 1 else factor
    return alone.detach().clone() if alone.dim() == 2 else None


def made_differently(subject: Subject, case: Case, *, backend: Backend) -> Deviation | None:
    """Say where the backward pass multiplies other numbers by grad_output than the forward by the matrix.

    None where both are the same but for a cast, or no products of torch tell. Runs in the child.
    """
    if LINEAR_WEIGHT not in case.given or "grad_output" not in case.given or not case.elements:
        return None
    there, back = _Multiplied(), _Multiplied()
    backend.begin()
    try:
        with settings_kept():
            call = lay_out(subject, case, device=backend.device(), gradients=True)
            with there:
                outputs = forward(subject, call)
            with back:
                backward(outputs, call)
            backend.finish()
    except Exception as error:
        return Deviation(GRADIENT, f"{GRADIENT}: {failure(error, backend).message}")
    matrix, gradient = case.given[LINEAR_WEIGHT], case.given["grad_output"].reshape(case.rows, -1)
    shape = (case.rows, case.columns)
    first = [y for y in _beside(there.factors, matrix.T) if y.shape == shape]
    again = [turned.T for turned in _beside(back.factors, gradient) if turned.shape == shape[::-1]]
    again = [y for y in again if not _equal(y, matrix)]  # of a gradient that equals its transpose
    for made in again:
        unequal = [_unequal(y, made) for y in first]
        if unequal and all(unequal):
            count = min(unequal)
            text = (
                f"{GRADIENT}: {ANEW} is not what the forward pass multiplied: {count} of {made.numel()} "
                "elements have other bits, which no cast explains"
            )
            return Deviation(GRADIENT, text)
    return None


def _beside(factors: Factors, known: torch.Tensor) -> list[torch.Tensor]:
    """Return what a known matrix multiplies from the right, or its transpose from the left, transposed."""
    found = [left for left, right in factors if _equal(right, known)]
    return found + [right.T for left, right in factors if _equal(left, known.T)]


def _equal(factor: torch.Tensor, known: torch.Tensor) -> bool:
    return factor.shape == known.shape and torch.equal(factor.cpu(), known.to(factor.dtype))


def _unequal(one: torch.Tensor, other: torch.Tensor) -> int:
    """Count the elements of which the bits differ, in the narrower of two formats."""
    narrow = max((one.dtype, other.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    if {one.dtype, other.dtype} == {torch.float16, torch.bfloat16} or not comparable(one):
        return 0
    a, b = one.to(narrow).contiguous(), other.to(narrow).contiguous()
    same = torch.from_numpy(bit_numbers(a) == bit_numbers(b)) | (a.isnan() & b.isnan()).cpu()
    return int((~same).sum())

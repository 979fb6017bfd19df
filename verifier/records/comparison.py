"""Comparisons of two compiled kernels: how far each result is the same computation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

VERSION = 1
Degree = Literal["bits", "zeros", "fusing", "formula", "none"]
DEGREES: dict[Degree, str] = {
    "bits": "the same bits",
    "zeros": "the same where every value computed is finite, but for the sign of a zero",
    "fusing": "the same but for products fused into sums, where every value computed is finite",
    "formula": "the same real function, in other operations",
    "none": "not shown to be the same",
}
"""How far two results are the same, the strongest first, in words."""


@dataclass(frozen=True, kw_only=True)
class FirstDifference:
    """The operations at which two expressions first differ; lines are "" where unknown."""

    first: str
    first_line: str
    second: str
    second_line: str

    def __str__(self) -> str:
        """Both operations with their lines."""
        left, right = (f" at {line}" if line else "" for line in (self.first_line, self.second_line))
        return f"{self.first}{left}, against {self.second}{right}"


@dataclass(frozen=True, kw_only=True)
class Witness:
    """An element that differs on the numbers of the case, with its two values."""

    place: tuple[int, ...]
    first: float
    second: float


@dataclass(frozen=True, kw_only=True)
class ComparedResult:
    """How far one result of two kernels is the same, products fused as the PTX says and wherever ptxas may.

    why: what stood in the way of the next stronger degree. difference: the first one at the
    strongest degree that was not reached but by it, None where the bits are the same. witness: on the
    numbers of the case the result differs.
    """

    result: str
    degree: Degree
    why: str = ""
    difference: FirstDifference | None = None
    witness: Witness | None = None


@dataclass(frozen=True, kw_only=True)
class CodeComparison:
    """What two subjects compute for all inputs of a shape, result by result.

    alone: results that only one of the two gives.
    """

    first: str
    second: str
    dtype: str
    rows: int
    columns: int
    results: tuple[ComparedResult, ...]
    alone: tuple[str, ...]
    obligations: tuple[str, ...]
    version: int = VERSION

    @property
    def document(self) -> dict[str, object]:
        """The comparison as JSON has it."""
        return asdict(self)

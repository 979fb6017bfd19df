"""What the oracle is asked and what it answers: the contract of all problems, and the records of two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar, runtime_checkable

from verifier.arithmetic.abstract_number import Form, Numbers, Value
from verifier.arithmetic.error_free.numpy_or_torch import Arrays
from verifier.arithmetic.formats import Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.oracle import climb
from verifier.oracle.enclosure import Enclosure, Mask

Rung = Literal["float64", "double_double", "arb", "auto"]


class Solution(Protocol):
    """The oracle's answer to a problem."""

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name; what the problem does not pose is left out."""


Answer_co = TypeVar("Answer_co", bound=Solution, covariant=True)


class NumbersInAField(Numbers, Protocol):
    """What forms and problems do with the elements of a finite field."""

    @property
    def eps(self) -> float:
        """The norm's epsilon."""

    def number(self, value: float, /) -> Value:
        """Return the element that stands for a number."""

    def with_statistics(self, mean: Value, rstd: Value, /) -> NumbersInAField:
        """Return the same numbers, with these statistics in the place of a row's own."""

    def divides_by_sum(self, output: Value, /) -> None:
        """Take note of a softmax: its output is divided by the sum of its row."""


class Field(Protocol):
    """A finite field in which a form is run on a problem whose operands are places in tensors."""

    def numbers(self, *, eps: float = 0.0, centred: bool = True, parameter: object = None) -> NumbersInAField:
        """Return the field's numbers for rows of this problem."""

    def take(self, name: str, places: object) -> Value | None:
        """Return the elements at these places of the tensor of that name; None without places."""

    def flags(self, name: str, places: object) -> Value:
        """Return 1 where the boolean tensor of that name is True at these places, and 0 elsewhere."""

    def scalar(self, number: float) -> Value:
        """Return a scalar argument as kernels hold it."""


class Problem(Protocol[Answer_co]):
    """A function of rows, posed with its operands."""

    @property
    def centred(self) -> bool:
        """Whether a constant added to a row changes no result."""

    @property
    def weight(self) -> Arrays:
        """What multiplies the elements of the output, broadcastable to the rows; None: nothing does."""

    @property
    def parameter(self) -> Arrays:
        """The entry of weight that each element belongs to (see `RowOperands`); None without weight."""

    @property
    def compares(self) -> bool:
        """Whether the results depend on which element of a row is the largest."""

    def solve(self, rung: Rung = "auto", bits: int | None = None, /) -> Answer_co:
        """Return the exact answer, enclosed; see `verifier.oracle.solve.solve`."""

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, climb.Comparison]]:
        """Yield the rungs that decide on one result, by name; `first` is what `solve` encloses it in."""

    def in_field(self, field: Field, form: Form) -> Mapping[str, Value]:
        """Run a form in a finite field, each operand holding places in the tensor that it was made of."""


@runtime_checkable
class ComparesScores(Problem[Answer_co], Protocol[Answer_co]):
    """A problem in which the largest element of a row is that with the largest score."""

    def input_of(self, field: Field, scores: Value) -> Value:
        """Return the elements of the input, in a finite field, that have these scores."""


@dataclass(frozen=True, kw_only=True)
class RowOperands:
    """Rows that layer_norm, rms_norm, group_norm or batch_norm normalizes, brought to one form.

    input, grad_output: (rows, columns), exact values; NumPy arrays or torch tensors of any float
    dtype (CUDA tensors are worked on where they are). weight, bias: broadcastable to them, or None.
    `parameter` says to which entry of weight and bias an element belongs: its column, its row, or
    an integer array (rows, columns).
    `mean` and `rstd`, (rows, 1), if given are exact inputs: normalized = (input - mean) * rstd, and
    the backward formula reads them. `variance`, (rows, 1), if given with `mean` is a running
    variance (evaluation mode): rstd = (variance + eps)**-1/2, and both are constants to the
    gradient. `centred` false is RMS normalization: mean 0, variance the mean square.
    """

    input: Arrays
    eps: float
    centred: bool = True
    weight: Arrays | None = None
    bias: Arrays | None = None
    grad_output: Arrays | None = None
    parameter: Arrays = "columns"
    mean: Arrays | None = None
    rstd: Arrays | None = None
    variance: Arrays | None = None


@dataclass(frozen=True, kw_only=True)
class RowSolution:
    """The exact answer, enclosed.

    mean, variance, rstd: (rows,); variance is the given one, or that of the row (the mean square
    when not centred). output, normalized, grad_input: (rows, columns). grad_weight, grad_bias:
    (entries,), also where weight or bias is None. The gradients are None without grad_output.
    """

    mean: Enclosure
    variance: Enclosure
    rstd: Enclosure
    output: Enclosure
    normalized: Enclosure
    grad_input: Enclosure | None
    grad_weight: Enclosure | None
    grad_bias: Enclosure | None
    statistics: RowStatistics

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name; gradients only where they are posed."""
        names = ("output", "normalized", "mean", "variance", "rstd", "grad_input", "grad_weight", "grad_bias")
        return _present({name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class SoftmaxOperands:
    """Rows of a softmax, or of its logarithm, with an optional gradient.

    input, output, grad_output: (rows, columns). Either input or output is given: an output (of a raw
    backward kernel) is an exact input of the gradient.
    Elements -inf of input are masked: probability exactly 0. Rows with a NaN, with +inf or with
    nothing but -inf have no exact value.
    `kept`, (rows, columns), if given says which elements take part (not zero): the softmax is that of
    input * scale + added over these, and an element that takes no part, or is -inf, has output 0 (-inf its
    logarithm) and gradient 0, whatever its input is. grad_input is the gradient of input, scale included.
    A gradient that comes to a logarithm of -inf leaves the gradients of its row without an exact value.
    """

    input: Arrays | None = None
    output: Arrays | None = None
    grad_output: Arrays | None = None
    logarithm: bool = False
    scale: float = 1.0
    added: Arrays | None = None
    kept: Arrays | None = None


@dataclass(frozen=True, kw_only=True)
class SoftmaxSolution:
    """The exact answer, enclosed; what the problem does not pose is None.

    output, grad_input: (rows, columns). total: (rows,), the sum of exp(x - maximum); maximum: (rows,),
    exact. finite: (rows,), rows that have an exact answer.
    """

    output: Enclosure | None
    grad_input: Enclosure | None
    total: Enclosure | None
    maximum: Array | None
    finite: Mask

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        """The exact results by name; those that are posed."""
        return _present({"output": self.output, "grad_input": self.grad_input, "total": self.total})


def _present(results: Mapping[str, Enclosure | None]) -> dict[str, Enclosure]:
    return {name: result for name, result in results.items() if result is not None}

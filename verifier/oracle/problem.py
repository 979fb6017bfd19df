"""What a normalization or a softmax asks of the oracle, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from verifier.arithmetic import Array
from verifier.oracle.enclosure import Enclosure, Mask
from verifier.statistics import RowStatistics

Rung = Literal["float64", "double_double", "arb", "auto"]


@dataclass(frozen=True, kw_only=True)
class RowProblem:
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

    input: Any
    eps: float
    centred: bool = True
    weight: Any | None = None
    bias: Any | None = None
    grad_output: Any | None = None
    parameter: Any = "columns"
    mean: Any | None = None
    rstd: Any | None = None
    variance: Any | None = None


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


@dataclass(frozen=True, kw_only=True)
class SoftmaxProblem:
    """Rows of a softmax, or of its logarithm, with an optional gradient.

    input, output, grad_output: (rows, columns). Either input or output is given: an output (of a raw
    backward kernel) is an exact input of the gradient.
    Elements -inf of input are masked: probability exactly 0. Rows with a NaN, with +inf or with
    nothing but -inf have no exact value.
    """

    input: Any | None = None
    output: Any | None = None
    grad_output: Any | None = None
    logarithm: bool = False


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

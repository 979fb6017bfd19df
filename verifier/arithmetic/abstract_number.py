"""The abstract number: a formula is written once and run as exact value, rounded value or error bound.

A form (see `verifier.ops`) is a function of a `Numbers` and of the op's `Terms`. Its values stand
for arrays of shape (rows, columns), (rows, 1) or (1, columns), broadcast as in NumPy, and support
`+`, `-`, `*`, `/` and unary `-` among themselves. Everything else is a method of `Numbers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

Value = Any
"""What a system of numbers calculates with: an array, a bound with its error terms, a field element."""


class Numbers(Protocol):
    """What a form may do with its values."""

    @property
    def rounds(self) -> bool:
        """Whether the way in which something is written makes a difference; see `one_of`."""

    def moments(self, x: Value, /) -> tuple[Value, Value]:
        """Return (mean, rstd) of each row, (rows, 1), by the variance algorithm; mean is 0 if not centred."""

    def saved_moments(self, x: Value, /) -> tuple[Value, Value]:
        """Return the statistics that the backward pass reads: as saved by the forward pass, or given."""

    def mean_parts(self, x: Value, /) -> tuple[Value, Value]:
        """Return the mean that was subtracted first, and what that left of the mean, each (rows, 1).

        Their sum is the mean, better than one number of the format holds it; see `MeanParts`.
        """

    def stepped_moments(self, x: Value) -> tuple[Value, Value]:
        """Return `moments`, rounding running_var + eps, its root and the reciprocal to running_var's dtype.

        That is for running statistics (evaluation); of the batch's own they are `moments` themselves.
        """

    def constant(self, number: float) -> Value:
        """Return an exact constant."""

    def sum(self, value: Value) -> Value:
        """Return the sum over each row, (rows, 1), along the tree of the row gradients."""

    def mean(self, value: Value) -> Value:
        """Return the sum over each row divided by the number of columns, (rows, 1)."""

    def parameter_sum(self, value: Value, held: str | None = None, /, *, atomic: bool = False) -> Value:
        """Return the sum of all elements that belong to one entry of weight, (1, entries).

        `held` names the tensor ("weight", "input") in whose dtype the running sums are stored.
        `atomic` says that float atomics in global memory add, which flush subnormals on every device.
        """

    def totals(self, one: Value, /, *others: Value, of_rows: bool = False) -> Value:
        """Return the sums of all elements of these values, (1, how many), in rows and over them.

        of_rows: values are one number of each row, (rows, 1), which are added over the rows.
        """

    def entry(self, value: Value, number: int, /) -> Value:
        """Return one number of a parameter that acts on all elements, (1, 1)."""

    def count(self) -> Value:
        """Return the number of columns as an exact constant."""

    def share(self, value: Value, name: str, /, *, product: bool = False) -> Value:
        """Return a finished row value that is one machine number, read by all its uses.

        `product` says that it ends in a multiplication, which a compiler may contract in some uses.
        """

    def cast(self, value: Value, role: str, /) -> Value:
        """Return the value rounded to the dtype of the tensor of that role ("input", "weight", ...)."""

    def rsqrt(self, value: Value) -> Value:
        """Return value**-1/2."""

    def rsqrt_of_squares(self, squares: Value, eps: Value) -> Value:
        """Return (squares + eps)**-1/2, where squares are computed to be at least 0, as a sum of them is."""
        return self.rsqrt(squares + eps)

    def exp(self, value: Value) -> Value:
        """Return e**value."""

    def exp2(self, value: Value) -> Value:
        """Return 2**value."""

    def log2_e(self) -> Value:
        """Return log2(e) as the kernel holds it, one machine number in all uses."""

    def log(self, value: Value) -> Value:
        """Return the natural logarithm."""

    def sigmoid(self, value: Value) -> Value:
        """Return 1 / (1 + e**-value)."""

    def tanh(self, value: Value, /, *, approximate: bool = False) -> Value:
        """Return the hyperbolic tangent, by a function of a library; approximate: by tanh.approx.f32."""

    def maximum(self, value: Value) -> Value:
        """Return the largest element of each row, (rows, 1)."""

    def online_sum(self, x: Value, *, base_two: bool = False) -> Value:
        """Return the sum of exp(x - max(x)) over each row, merged from parts with maxima of their own.

        base_two: of 2**(x - max(x)).

        Each part holds a maximum m and a sum s of exp(x - m); where two of them meet, each sum is multiplied
        with exp(m - the larger m), at most once an addition and once more at the end.
        """

    def either(self, one: Value, /, *others: Value) -> Value:
        """Return a value that is computed in one of several ways, for instance by the input's layout."""


def one_of(k: Numbers, *ways: Callable[[], Value]) -> Value:
    """Return a value that is computed in one of several ways; where nothing is rounded the first is made."""
    return k.either(*(way() for way in (ways if k.rounds else ways[:1])))


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The tensors that an op's formula is about, in the rows that statistics are taken over.

    x, output, grad_output: (rows, columns). weight, bias: broadcast against them, (1, how many) if each of
    their numbers acts on all elements, or None. further: tensors of certain ops by name, (rows, columns) or
    (1, how many) each, their scalars, (1, 1), and what `Form.shared` makes; what is absent is left out.
    """

    x: Value
    weight: Value | None = None
    bias: Value | None = None
    grad_output: Value | None = None
    output: Value | None = None
    further: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to write an op: the roundings differ, the mathematics does not.

    `forward` returns the output; `backward` returns grad_input, grad_weight and grad_bias by name
    (those whose terms are present). `evaluation` is the backward pass where the statistics are
    constants (batch norm in evaluation; None: the op's own). `update(numbers, held, new, momentum)`
    moves a running statistic (None: (1 - momentum) * held + momentum * new). `reads_saved` says that
    the forward pass too reads mean and rstd as they were saved, and that the variance was. `reads_parts`
    says that it reads the mean as two numbers (`Numbers.mean_parts`), which not every algorithm keeps.
    `keeps_sum` says that a norm of input + residual reads the sum before it is rounded to the residual's
    dtype. `shared(numbers, terms)` makes what both passes read by name, (rows, 1) each: the forward pass
    computes it, the backward pass finds it saved (None: there is nothing but mean and rstd). `beside(numbers,
    terms)` makes what the forward pass returns beside the output by name, (rows, columns) each (None: nothing
    that the form computes). `parts(numbers, terms)` yields the summands of grad_input in each way in which
    autograd adds them up, which may add another gradient first, or between two (None: that comes last).
    """

    name: str
    forward: Callable[[Numbers, Terms], Value]
    backward: Callable[[Numbers, Terms], Mapping[str, Value]]
    evaluation: Callable[[Numbers, Terms], Mapping[str, Value]] | None = None
    update: Callable[[Numbers, Value, Value, Value], Value] | None = None
    reads_saved: bool = False
    reads_parts: bool = False
    keeps_sum: bool = False
    shared: Callable[[Numbers, Terms], Mapping[str, Value]] | None = None
    beside: Callable[[Numbers, Terms], Mapping[str, Value]] | None = None
    parts: Callable[[Numbers, Terms], Iterable[tuple[Value, ...]]] | None = None

    def completed(self, numbers: Numbers, terms: Terms) -> Terms:
        """Return the terms with what both passes read of each row."""
        if self.shared is None:
            return terms
        return replace(terms, further={**terms.further, **self.shared(numbers, terms)})


def constant_statistics(k: Numbers, t: Terms) -> Mapping[str, Value]:
    """Return the VJP where mean and rstd are constants: grad_input = grad_output * weight * rstd."""
    mean, rstd = k.saved_moments(t.x)
    g = t.grad_output if t.weight is None else t.grad_output * t.weight
    gradients = {"grad_input": g * rstd}
    if t.weight is not None:
        gradients["grad_weight"] = k.parameter_sum(t.grad_output * ((t.x - mean) * rstd))
    if t.bias is not None:
        gradients["grad_bias"] = k.parameter_sum(t.grad_output)
    return gradients

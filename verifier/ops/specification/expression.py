"""Expressions: what a user's specification computes, recorded step by step and differentiated.

A specification is called with expressions in the place of tensors; operators, methods and torch functions
that mean something without rounding (`FUNCTIONS`) make further expressions. Everything is (rows, columns),
(rows, 1), (1, columns) or (1, 1), and sums run over the last dimension only: rows cannot mix. One that takes
a row apart, as with mpmath, is called again with lists of numbers, (rows, 1), and returns such lists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from operator import add, mul, neg, sub, truediv
from typing import Any, NoReturn, Protocol, TypeVar

FUNCTIONS = (
    *("add", "sub", "mul", "div", "true_divide", "neg", "square", "pow", "reciprocal", "sqrt", "rsqrt"),
    *("exp", "log", "sigmoid", "silu", "tanh", "sum", "mean", "float", "double", "to", "contiguous", "clone"),
)
"""Methods, and functions of torch and torch.nn.functional, that a specification may use."""


REFUSED: ContextVar[list[SpecificationError] | None] = ContextVar("REFUSED", default=None)


class SpecificationError(ValueError):
    """A specification that uses what has no meaning in every number system, or mixes rows.

    While one is recorded, it is remembered: what the specification catches is refused all the same.
    """

    def __init__(self, message: str) -> None:
        """Say what has no meaning."""
        super().__init__(message)
        if (known := REFUSED.get()) is not None:
            known.append(self)


class TakenApartError(SpecificationError):
    """A row is used as a list of numbers."""


class Expression:
    """One step: `kind` of `operands`; `rows` and `columns` say along which axes it varies.

    Kinds: leaf (`label` its name), constant (`label` its number), add, sub, mul, div, neg, sqrt, exp, log,
    row_sum (over columns), column_sum (over rows; gradients only), column (`label` its number), joined (of
    all columns).
    """

    __array_ufunc__ = None
    made = 0
    """Expressions made so far, by which the cost of a specification is known."""

    def __init__(
        self,
        kind: str,
        operands: tuple[Expression, ...] = (),
        *,
        extents: tuple[int, int],
        label: Any = None,
        varies: tuple[bool, bool] = (False, False),
    ) -> None:
        """Record a step; what is elementwise varies with any of its operands."""
        Expression.made += 1
        self.kind, self.operands, self.extents, self.label = kind, operands, extents, label
        self.rows: bool = kind != "column_sum" and (varies[0] or any(o.rows for o in operands))
        self.columns: bool = kind not in {"row_sum", "column"} and (
            varies[1] or any(o.columns for o in operands)
        )

    # -- what a specification may use ----------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns, 1 where it does not vary."""
        return (self.extents[0] if self.rows else 1, self.extents[1] if self.columns else 1)

    def taken(self, other: Any) -> Expression:
        """Return an expression as it is, and a number as one of the same extents."""
        if isinstance(other, Expression):
            return other
        if isinstance(other, int | float) and not isinstance(other, bool):
            return Expression("constant", extents=self.extents, label=other)
        if hasattr(other, "_mpf_"):  # a number of mpmath
            held = float(other)
            if not math.isfinite(held) or (not held and other):
                raise SpecificationError(f"{other} is no number that float64 holds")
            return Expression("constant", extents=self.extents, label=held)
        raise SpecificationError(
            f"a {type(other).__name__} stands in the expression; use numbers and arguments"
        )

    def _taken_apart(self, *_: object) -> NoReturn:
        """Refuse: only lists of numbers have a length, items and an order."""
        what = "a row is taken apart" if self.columns else "one number of a row has no items"
        raise (TakenApartError if self.columns else SpecificationError)(what)

    __len__ = __getitem__ = __iter__ = __contains__ = __reversed__ = _taken_apart

    def column(self, index: int) -> Expression:
        """Return one number of every row, (rows, 1)."""
        return Expression("column", (self,), extents=self.extents, label=index) if self.columns else self

    def _step(self, kind: str, *operands: object) -> Expression:
        return Expression(kind, tuple(self.taken(o) for o in operands), extents=self.extents)

    def __add__(self, other: object) -> Expression:
        """Return the sum."""
        return self._step("add", self, other)

    def __radd__(self, other: object) -> Expression:
        """Return the sum."""
        return self._step("add", other, self)

    def __sub__(self, other: object) -> Expression:
        """Return the difference."""
        return self._step("sub", self, other)

    def __rsub__(self, other: object) -> Expression:
        """Return the difference."""
        return self._step("sub", other, self)

    def __mul__(self, other: object) -> Expression:
        """Return the product."""
        return self._step("mul", self, other)

    def __rmul__(self, other: object) -> Expression:
        """Return the product."""
        return self._step("mul", other, self)

    def __truediv__(self, other: object) -> Expression:
        """Return the quotient."""
        return self._step("div", self, other)

    def __rtruediv__(self, other: object) -> Expression:
        """Return the quotient."""
        return self._step("div", other, self)

    def __neg__(self) -> Expression:
        """Return the negative."""
        return self._step("neg", self)

    def __pos__(self) -> Expression:
        """Return the same."""
        return self

    def __pow__(self, exponent: Any) -> Expression:
        """Return a whole or half power."""
        exponent = float(exponent) if hasattr(exponent, "_mpf_") else exponent
        if isinstance(exponent, int | float) and float(2 * exponent).is_integer() and abs(exponent) <= 16:
            return self._power(round(2 * exponent))
        raise SpecificationError(f"the power {exponent!r}; whole and half ones up to 16 have a meaning")

    def __rpow__(self, base: object) -> Expression:
        """Refuse: a power of a number is written as an exponential."""
        raise SpecificationError(f"a power of {base!r}; write it with exp")

    def _power(self, halves: int) -> Expression:
        if halves < 0:
            return 1 / self._power(-halves)
        whole = self.sqrt() if halves % 2 else None
        for _ in range(halves // 2):
            whole = self if whole is None else whole * self
        return self.taken(1) if whole is None else whole

    add, sub, mul, div, true_divide, neg, pow = (
        *(__add__, __sub__, __mul__, __truediv__, __truediv__, __neg__, __pow__),
    )

    def square(self) -> Expression:
        """Return self * self."""
        return self * self

    def reciprocal(self) -> Expression:
        """Return 1 / self."""
        return 1 / self

    def sqrt(self) -> Expression:
        """Return the square root."""
        return self._step("sqrt", self)

    def rsqrt(self) -> Expression:
        """Return 1 / sqrt(self)."""
        return 1 / self.sqrt()

    def exp(self) -> Expression:
        """Return e**self."""
        return self._step("exp", self)

    def log(self) -> Expression:
        """Return the natural logarithm."""
        return self._step("log", self)

    def sigmoid(self) -> Expression:
        """Return 1 / (1 + exp(-self))."""
        return 1 / (1 + (-self).exp())

    def silu(self) -> Expression:
        """Return self * sigmoid(self)."""
        return self * self.sigmoid()

    def tanh(self) -> Expression:
        """Return 2 sigmoid(2 self) - 1."""
        return 2 * (2 * self).sigmoid() - 1

    def sum(self, dim: object = None, keepdim: bool = False) -> Expression:
        """Return the sum over the last dimension, (rows, 1).

        Raises:
            SpecificationError: another dimension, or keepdim is not given.

        """
        if (list(dim) if isinstance(dim, tuple | list) else [dim]) not in ([-1], [1]) or not keepdim:
            raise SpecificationError("sums and means run over the last dimension: (-1, keepdim=True)")
        return self._step("row_sum", self)

    def mean(self, dim: object = None, keepdim: bool = False) -> Expression:
        """Return the mean over the last dimension, (rows, 1)."""
        return self.sum(dim, keepdim) / self.extents[1]

    def to(self, *_dtype: object, **_options: object) -> Expression:
        """Return the same: nothing is rounded."""
        return self

    float = double = contiguous = clone = to

    @classmethod
    def __torch_function__(
        cls,
        function: object,
        _types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Answer functions of torch by the method of the same name."""
        name = getattr(function, "__name__", str(function))
        if name not in FUNCTIONS or not args or not isinstance(args[0], Expression):
            raise SpecificationError(f"{name} has no exact meaning here; there are: {', '.join(FUNCTIONS)}")
        return getattr(args[0], name)(
            *args[1:], **{k: v for k, v in (kwargs or {}).items() if k != "inplace"}
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Say what there is."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise SpecificationError(f".{name} has no exact meaning here; there are: {', '.join(FUNCTIONS)}")

    def _no_number(self, *_: object) -> NoReturn:
        """Refuse: an expression has no value to compare, to branch by or to convert."""
        raise SpecificationError("a specification cannot branch by values, compare or convert them")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_number
    __float__ = __int__ = __complex__ = __index__ = __abs__ = __round__ = _no_number
    __floor__ = __ceil__ = __trunc__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = _no_number
    __divmod__ = __rdivmod__ = _no_number
    __hash__ = object.__hash__

    def __copy__(self) -> Expression:
        """Return the same: a copy has the same derivatives."""
        return self

    def __deepcopy__(self, memo: object) -> Expression:
        """Return the same."""
        return self


def leaves_of(
    names: Iterable[str], extents: tuple[int, int], parameters: tuple[str, ...]
) -> dict[str, Expression]:
    """Return arguments as expressions; `parameters` are the same in every row."""
    return {
        name: Expression("leaf", extents=extents, label=name, varies=(name not in parameters, True))
        for name in names
    }


def as_written(numbers: Iterable[Expression], extents: tuple[int, int]) -> Expression:
    """Return the row of some numbers, whatever they are."""
    return Expression("joined", tuple(numbers), extents=extents, varies=(not extents[1], True))


# -- derivatives and values ------------------------------------------------------------------------------


def steps(ends: Mapping[str, Expression]) -> Iterator[Expression]:
    """Yield every step of some expressions after its operands, once."""
    return _order(list(ends.values()))


def _order(ends: list[Expression]) -> Iterator[Expression]:
    """Yield every step after its operands, once."""
    seen: set[int] = set()
    stack = [(end, False) for end in reversed(ends)]
    while stack:
        step, ready = stack.pop()
        if ready:
            yield step
        elif id(step) not in seen:
            seen.add(id(step))
            stack.append((step, True))
            stack += [(o, False) for o in step.operands]


def _slopes(step: Expression, g: Expression) -> tuple[Expression, ...]:
    """Return what each operand's gradient gains, before sums over axes along which it does not vary."""
    a, b = (*step.operands, None, None)[:2]
    assert a is not None
    if step.kind in {"row_sum", "add"}:
        return (g,) * len(step.operands)
    if step.kind == "joined":
        return tuple(g.column(n) for n in range(len(step.operands)))
    if step.kind == "sub":
        return g, -g
    if step.kind == "neg":
        return (-g,)
    if step.kind == "sqrt":
        return (g / (2 * step),)
    if step.kind == "exp":
        return (g * step,)
    if step.kind == "log":
        return (g / a,)
    assert b is not None
    return (g * b, g * a) if step.kind == "mul" else (g / b, -(g * step) / b)


def gradients(
    output: Expression, seed: Expression, wanted: Mapping[str, Expression]
) -> dict[str, Expression]:
    """Return the vector-Jacobian product for each wanted leaf, by its name.

    seed: the gradient of `output`, of its shape.
    """
    ordered = list(_order([output]))
    found: dict[int, Expression] = {id(output): seed}
    picked: dict[int, dict[int, Expression]] = {}
    nothing = output.taken(0)
    for step in reversed(ordered):
        if (columns := picked.get(id(step))) is not None:
            numbers = tuple(columns.get(n, nothing) for n in range(step.extents[1]))
            gain = as_written(numbers, step.extents)
            found[id(step)] = found[id(step)] + gain if id(step) in found else gain
        if id(step) not in found or not step.operands:
            continue
        if step.kind == "column":  # all that is picked from a row is put together when the row is reached
            row = picked.setdefault(id(step.operands[0]), {})
            row[step.label] = row[step.label] + found[id(step)] if step.label in row else found[id(step)]
            continue
        summed = step.kind == "row_sum"
        for operand, slope in zip(step.operands, _slopes(step, found[id(step)]), strict=True):
            gain = slope
            # The step stands for every element of its own extents, of which the operand may have one alone.
            if (step.columns or summed) and not operand.columns and step.kind != "joined":
                gain = slope._step("row_sum", gain)
            if step.rows and not operand.rows:
                gain = slope._step("column_sum", gain)
            known = found.get(id(operand))
            found[id(operand)] = gain if known is None else known + gain
    return {name: found.get(id(end), nothing) for name, end in wanted.items()}


Number = TypeVar("Number")


class NumberSystem(Protocol[Number]):
    """Where expressions have values: arrays of numbers, which have operators and broadcast."""

    def leaf(self, name: str) -> Number:
        """Return the numbers of an argument."""

    def constant(self, number: float) -> Number:
        """Return one number, (1, 1)."""

    def sqrt(self, value: Number) -> Number:
        """Return the square root."""

    def exp(self, value: Number) -> Number:
        """Return e**value."""

    def log(self, value: Number) -> Number:
        """Return the natural logarithm."""

    def total(self, value: Number, axis: int, copies: int | None) -> Number:
        """Return the sum along an axis that is kept, of so many copies if the value does not vary there."""

    def column(self, value: Number, index: int) -> Number:
        """Return one column, (rows, 1) or (1, 1)."""

    def joined(self, values: list[Number], rows: int) -> Number:
        """Return columns, (rows, 1) or (1, 1), side by side."""


def evaluate(ends: Mapping[str, Expression], ring: NumberSystem[Number]) -> dict[str, Number]:
    """Return the values of expressions in a number system."""
    values: dict[int, Number] = {}
    for step in steps(ends):
        given = [values[id(o)] for o in step.operands]
        values[id(step)] = _value(step, given, ring)
    return {name: values[id(end)] for name, end in ends.items()}


def _value(step: Expression, given: list[Number], ring: NumberSystem[Number]) -> Number:
    if step.kind == "leaf":
        return ring.leaf(step.label)
    if step.kind == "constant":
        return ring.constant(step.label)
    if step.kind in {"row_sum", "column_sum"}:
        axis = 1 if step.kind == "row_sum" else 0
        varies = (step.operands[0].rows, step.operands[0].columns)[axis]
        return ring.total(given[0], axis, None if varies else step.extents[axis])
    if step.kind == "column":
        return ring.column(given[0], step.label)
    if step.kind == "joined":
        return ring.joined(given, step.shape[0])
    rules: dict[str, Callable[..., Number]] = {
        "sqrt": ring.sqrt,
        "exp": ring.exp,
        "log": ring.log,
        "add": add,
        "sub": sub,
        "mul": mul,
        "div": truediv,
        "neg": neg,
    }
    return rules[step.kind](*given)

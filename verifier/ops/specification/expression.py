"""Expressions: what a user's specification computes, recorded step by step and differentiated.

A specification is called with expressions in the place of tensors; operators, methods and torch functions
that mean something without rounding (`FUNCTIONS`) make further expressions. Everything is (rows, columns),
(rows, 1), (1, columns) or (1, 1), and sums run over the last dimension only: rows cannot mix. Beside them
are a matrix (features, columns) and what a product with it gives, (rows, features): axes have names, and what
is added or multiplied element by element, or summed in a product, is of the same axis. One that takes a row
apart, as with mpmath, is called again with lists of numbers, (rows, 1), and returns such lists.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

from verifier.ops.specification.axes import COLUMNS, ROWS, layout

FUNCTIONS = (
    *("add", "sub", "mul", "div", "true_divide", "neg", "square", "pow", "reciprocal", "sqrt", "rsqrt"),
    *("exp", "log", "sigmoid", "silu", "tanh", "sum", "mean", "float", "double", "to", "contiguous", "clone"),
)
"""Methods, and functions of torch and torch.nn.functional, that a specification may use."""
PRODUCTS = ("matmul", "mm", "addmm", "linear", "einsum", "t", "transpose")
"""The same of matrices."""
_KNOWN = (*FUNCTIONS, *PRODUCTS)


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
    all columns), product (of matrices; `label` the number of terms of each sum), transposed.
    `axes` are the names of the two axes, `extents` how long they are; they mean something where it varies.
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
        axes: tuple[str, str] = (ROWS, COLUMNS),
        label: Any = None,
        varies: tuple[bool, bool] | None = None,
    ) -> None:
        """Record a step; varies: along which axes, where it is no elementwise one (they vary as operands)."""
        Expression.made += 1
        self.kind, self.operands, self.extents, self.label = kind, operands, extents, label
        self.axes = axes
        if varies is None:
            varies = (any(o.rows for o in operands), any(o.columns for o in operands))
        self.rows: bool = kind != "column_sum" and varies[0]
        self.columns: bool = kind not in {"row_sum", "column"} and varies[1]

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
            return Expression("constant", extents=self.extents, axes=self.axes, label=other)
        if hasattr(other, "_mpf_"):  # a number of mpmath
            held = float(other)
            if not math.isfinite(held) or (not held and other):
                raise SpecificationError(f"{other} is no number that float64 holds")
            return Expression("constant", extents=self.extents, axes=self.axes, label=held)
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
        if not self.columns:
            return self
        return Expression("column", (self,), extents=self.extents, axes=self.axes, label=index)

    def _step(self, kind: str, *operands: object) -> Expression:
        given = tuple(self.taken(o) for o in operands)
        if all(o.axes == given[0].axes and o.extents == given[0].extents for o in given):
            return Expression(kind, given, extents=given[0].extents, axes=given[0].axes)
        along = [[o for o in given if (o.rows, o.columns)[axis]] or [given[0]] for axis in (0, 1)]
        for axis, those in enumerate(along):
            if len(names := {o.axes[axis]: None for o in those}) > 1:
                raise SpecificationError(f"{' and '.join(names)} stand side by side: they are different axes")
        extents = (along[0][0].extents[0], along[1][0].extents[1])
        return Expression(kind, given, extents=extents, axes=(along[0][0].axes[0], along[1][0].axes[1]))

    def total(self, kind: str, value: Expression) -> Expression:
        """Return a sum of so many numbers as this expression has along an axis ("row_sum", "column_sum")."""
        return Expression(kind, (value,), extents=self.extents, axes=self.axes)

    # -- products ------------------------------------------------------------------------------------

    def transposed(self) -> Expression:
        """Return columns as rows."""
        if self.kind == "transposed":
            return self.operands[0]
        turned = {"extents": self.extents[::-1], "axes": self.axes[::-1], "varies": (self.columns, self.rows)}
        return Expression("transposed", (self,), **turned)  # type: ignore[arg-type]

    def times(self, other: Expression, terms: int) -> Expression:
        """Return a product of matrices, of which every number is a sum of so many terms."""
        return Expression(
            "product",
            (self, other),
            extents=(self.extents[0], other.extents[1]),
            axes=(self.axes[0], other.axes[1]),
            label=terms,
            varies=(self.rows, other.columns),
        )

    def matmul(self, other: object) -> Expression:
        """Return the matrix product.

        Raises:
            SpecificationError: the last axis here is not the first one there, or rows would mix.

        """
        if not isinstance(other, Expression):
            raise SpecificationError(f"a product with a {type(other).__name__}; use arguments")
        if not (self.columns and other.rows and self.axes[1] == other.axes[0]):
            ends = ((self.axes[1], self.columns), (other.axes[0], other.rows))
            last, first = (axis if varies else "a single number" for axis, varies in ends)
            raise SpecificationError(
                f"a product sums over the last axis of one factor, {last}, and the first of the other, "
                f"{first}: they are not the same"
            )
        by_rows = [f for f in (self, other) if ROWS in f.axes and (f.rows, f.columns)[f.axes.index(ROWS)]]
        if self.axes[1] == ROWS or len(by_rows) == 2:
            raise SpecificationError("rows meet rows in a product: they cannot mix")
        return self.times(other, self.extents[1])

    __matmul__ = mm = matmul

    def __rmatmul__(self, other: object) -> Expression:
        """Refuse: only arguments have axes with a name."""
        raise SpecificationError(f"a product with a {type(other).__name__}; use arguments")

    def addmm(self, left: Expression, right: object) -> Expression:
        """Return self + left @ right."""
        return self + left.matmul(right)

    def linear(self, weight: Expression, bias: Expression | None = None) -> Expression:
        """Return self @ weight.T + bias."""
        product = self.matmul(weight.transposed())
        return product if bias is None else product + bias

    def t(self) -> Expression:
        """Return columns as rows."""
        return self.transposed()

    T = property(t)
    mT = property(t)  # noqa: N815 (torch's name)

    def transpose(self, first: int, second: int) -> Expression:
        """Return columns as rows.

        Raises:
            SpecificationError: other dimensions than the two that there are.

        """
        if {first % 2, second % 2} != {0, 1} or not all(-2 <= d < 2 for d in (first, second)):
            raise SpecificationError(f"the dimensions {first} and {second} of two are exchanged")
        return self.transposed()

    @staticmethod
    def einsum(equation: str, left: Expression, right: Expression) -> Expression:
        """Return a product of two matrices, each perhaps transposed: "bi,oi->bo".

        Raises:
            SpecificationError: it is no such product.

        """
        given, _, result = equation.replace(" ", "").replace("...", "@").partition("->")
        names = given.split(",")
        shared = set(names[0]) & set(names[-1])
        outer = [set(name) - shared for name in names]
        sound = len(names) == 2 and all(len(n) == len(set(n)) == 2 for n in (*names, result))
        if not sound or len(shared) != 1 or set(result) != outer[0] | outer[1]:
            raise SpecificationError(
                f"einsum({equation!r}); a product of two matrices has a meaning: 'bi,oi->bo'"
            )
        first = left if names[0][1] in shared else left.transposed()
        second = right if names[1][0] in shared else right.transposed()
        product = first.matmul(second)
        return product if result[0] in outer[0] else product.transposed()

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
        if self.columns and self.axes[1] == ROWS:
            raise SpecificationError("rows are summed: they cannot mix")
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
        if name == "einsum" and len(args) == 3 and all(isinstance(a, Expression) for a in args[1:]):
            return cls.einsum(*args)  # type: ignore[arg-type]
        if name not in _KNOWN or not args or not isinstance(args[0], Expression):
            raise SpecificationError(f"{name} has no exact meaning here; there are: {', '.join(_KNOWN)}")
        return getattr(args[0], name)(
            *args[1:], **{k: v for k, v in (kwargs or {}).items() if k != "inplace"}
        )

    def __getattr__(self, name: str) -> NoReturn:
        """Say what there is."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise SpecificationError(f".{name} has no exact meaning here; there are: {', '.join(_KNOWN)}")

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
    names: Iterable[str], extents: tuple[int, int], parameters: tuple[str, ...], features: int | None = None
) -> dict[str, Expression]:
    """Return arguments as expressions; `parameters` are the same in every row.

    features: how many rows a matrix among them has, and columns the output, where there is one.
    """
    laid = {name: layout(name, extents, parameters, features) for name in names}
    return {name: Expression("leaf", label=name, **how) for name, how in laid.items()}


def as_written(numbers: Iterable[Expression], extents: tuple[int, int]) -> Expression:
    """Return the row of some numbers, whatever they are."""
    columns = tuple(numbers)
    rows = not extents[1] or any(number.rows for number in columns)
    return Expression("joined", columns, extents=extents, varies=(rows, True))

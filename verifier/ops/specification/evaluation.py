"""What becomes of recorded expressions: their steps in order, derivatives, and values in a number system."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import add, mul, neg, sub, truediv
from typing import Protocol, TypeVar

from verifier.ops.specification.expression import Expression, as_written


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
    if step.kind == "transposed":
        return (g.transposed(),)
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
    if step.kind == "product":  # a sum over an axis along which the product does not vary has one term
        return g.times(b.transposed(), step.shape[1]), a.transposed().times(g, step.shape[0])
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
        summed, aligned = step.kind == "row_sum", step.kind not in {"joined", "product", "transposed"}
        for operand, slope in zip(step.operands, _slopes(step, found[id(step)]), strict=True):
            gain = slope
            # The step stands for every element of its own extents, of which the operand may have one alone.
            if (step.columns or summed) and not operand.columns and aligned:
                gain = step.total("row_sum", gain)
            if step.rows and not operand.rows and step.kind not in {"product", "transposed"}:
                gain = step.total("column_sum", gain)
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

    def product(self, left: Number, right: Number, terms: int) -> Number:
        """Return the matrix product: sums of so many terms, however many columns and rows the factors have.

        A factor that does not vary along the axis of the sum is the same in each term.
        """

    def transposed(self, value: Number) -> Number:
        """Return rows as columns."""


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
    if step.kind == "product":
        return ring.product(given[0], given[1], step.label)
    if step.kind == "transposed":
        return ring.transposed(given[0])
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

"""Matrix products of torch on shadows: sums of products, in whatever order and width torch adds them.

Products and sums are done again in float64, and the shadows with them. What torch made of it in its own order
and format differs from that by its own error, which is measured, as that of a conversion is: so no order, no
fused operation and no format of sums is assumed. One thing is demanded: that the error is not larger than
that of sums in the format of the result, one term after the other. Else it is no product that torch computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.shadow.arithmetics.selection import REORDERED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.shadow.slots import ShadowArithmetic

FIRST_FACTORS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul", "linear"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), 1),
}
"""Products, and the number of the argument that is the first factor; the second comes next."""
PRODUCTS = frozenset(FIRST_FACTORS)
_FACTORS_OF_TWO = frozenset({"beta", "alpha", "out"})
_AT_ONCE = 1 << 21
"""Products of elements that are held at the same time."""
_UNITS = {
    "f16": (2.0**-11, 2.0**-25),
    "bf16": (2.0**-8, 2.0**-134),
    "f32": (2.0**-24, 2.0**-150),
    "f64": (2.0**-53, 2.0**-1075),
}
_FLUSHED = 2.0**-126
_FURTHER = 4
"""Roundings besides one for each product: of alpha, of beta, of what is added, and of the result."""


@dataclass(frozen=True, kw_only=True)
class Shadowed:
    """An array of floats, in float64, and their shadows."""

    floats: Array
    shadows: Array

    def shaped(self, *shape: int) -> Shadowed:
        """Return the same numbers in another shape."""
        return Shadowed(floats=self.floats.reshape(shape), shadows=self.shadows.reshape(shape))

    def turned(self) -> Shadowed:
        """Return the numbers with the last two axes exchanged."""
        return Shadowed(floats=np.swapaxes(self.floats, -1, -2), shadows=np.swapaxes(self.shadows, -1, -2))

    def spread(self, shape: tuple[int, ...]) -> Shadowed:
        """Return the numbers broadcast to a shape."""
        return Shadowed(
            floats=np.broadcast_to(self.floats, shape), shadows=np.broadcast_to(self.shadows, shape)
        )


@dataclass(frozen=True, kw_only=True)
class Product:
    """beta * addend + alpha * (left @ right); left is (batch, p, k), right (batch, k, q)."""

    arithmetic: ShadowArithmetic
    left: Shadowed
    right: Shadowed
    addend: Shadowed | None = None
    alpha: float = 1.0
    beta: float = 1.0

    def following(self, kind: str, result: Array, shape: tuple[int, ...]) -> Array | None:
        """Return the shadows of what torch computed, None where it errs too much to be this product.

        kind: of the result's format. result: its values, in the dtype by which a conversion is known.
        """
        terms = self.left.floats.shape[2]
        with np.errstate(all="ignore"):
            found = self._scaled(self.summed().shaped(*shape), self.alpha)
            size = abs(self.alpha) * np.matmul(np.abs(self.left.floats), np.abs(self.right.floats))
            size = size.reshape(shape)
            if self.addend is not None and self.beta:
                added = self._scaled(self.addend.spread(shape), self.beta)
                found, size = self._do("add", np.add, added, found), size + np.abs(added.floats)
            unit, tiny = _UNITS[kind]
            largest = sum(float(np.max(np.abs(f.floats), initial=0.0)) for f in (self.left, self.right))
            tiny += _FLUSHED * (1.0 + abs(self.alpha) * largest)  # factors may be flushed
            allowed = (terms + _FURTHER) * (unit * size + tiny)
            away = np.abs(result.astype(np.float64) - found.floats)
            if (np.isfinite(away) & ~(away <= allowed)).any():
                return None
            return np.asarray(
                self.arithmetic.apply("cvt", REORDERED, result, (found.floats,), (found.shadows,))
            )

    def summed(self) -> Shadowed:
        """Return left @ right, (batch, p, q)."""
        batch, p, k = self.left.floats.shape
        q = self.right.floats.shape[2]
        floats = np.zeros((batch, p, q))
        nothing = self.arithmetic.lift(np.zeros(1), "f64")
        shadows = np.broadcast_to(nothing, floats.shape).copy()
        rows = max(_AT_ONCE // max(k * q, 1), 1)
        for number in range(batch if k else 0):
            for start in range(0, p, rows):
                place = (number, slice(start, start + rows))
                part = self._of_rows(number, slice(start, start + rows))
                floats[place], shadows[place] = part.floats, part.shadows
        return Shadowed(floats=floats, shadows=shadows)

    def _of_rows(self, number: int, rows: slice) -> Shadowed:
        """Return some rows of the product of one pair of matrices: terms are added in pairs."""
        a, b = self.left.floats[number, rows].T[:, :, None], self.right.floats[number][:, None, :]
        shape = np.broadcast_shapes(a.shape, b.shape)
        left = Shadowed(floats=a, shadows=self.left.shadows[number, rows].T[:, :, None]).spread(shape)
        right = Shadowed(floats=b, shadows=self.right.shadows[number][:, None, :]).spread(shape)
        terms = self._do("mul", np.multiply, left, right)
        while len(terms.floats) > 1:
            half = len(terms.floats) // 2
            first, second, rest = (
                Shadowed(floats=terms.floats[cut], shadows=terms.shadows[cut])
                for cut in (slice(half), slice(half, 2 * half), slice(2 * half, None))
            )
            pairs = self._do("add", np.add, first, second)
            terms = Shadowed(
                floats=np.concatenate([pairs.floats, rest.floats]),
                shadows=np.concatenate([pairs.shadows, rest.shadows]),
            )
        return Shadowed(floats=terms.floats[0], shadows=terms.shadows[0])

    def _scaled(self, value: Shadowed, factor: float) -> Shadowed:
        if factor == 1.0:
            return value
        number = np.full((1,) * value.floats.ndim, float(factor))
        lifted = self.arithmetic.lift(number.reshape(1), "f64").reshape(number.shape)
        scale = Shadowed(floats=number, shadows=lifted).spread(value.floats.shape)
        return self._do("mul", np.multiply, scale, value)

    def _do(self, name: str, function: np.ufunc, a: Shadowed, b: Shadowed) -> Shadowed:
        result = function(a.floats, b.floats)
        shadows = self.arithmetic.apply(name, "f64", result, (a.floats, b.floats), (a.shadows, b.shadows))
        return Shadowed(floats=result, shadows=np.asarray(shadows))


def product_of(
    arithmetic: ShadowArithmetic, name: str, operands: Sequence[Shadowed | None], kwargs: Mapping[str, float]
) -> Product | None:
    """Return the product that an operation of torch is, None where it is another than is known here.

    operands: its tensors in order, None for an argument that is none.
    """
    first = FIRST_FACTORS[name]
    if set(kwargs) - _FACTORS_OF_TWO or len(operands) < first + 2:
        return None
    left, right, *more = operands[first:]
    if left is None or right is None or (more and name != "linear") or len(more) > 1:
        return None
    addend = operands[0] if first else more[0] if more else None
    if name == "linear":
        right = right.shaped(-1, right.floats.shape[-1]).turned()
    return Product(
        arithmetic=arithmetic,
        addend=addend,
        alpha=float(kwargs.get("alpha", 1)),
        beta=float(kwargs.get("beta", 1)),
        **_matrices(left, right),
    )


def _matrices(left: Shadowed, right: Shadowed) -> dict[str, Shadowed]:
    """Return factors as stacks of as many matrices; a vector is a row on the left, a column on the right."""
    if left.floats.ndim == 1:
        left = left.shaped(1, -1)
    if right.floats.ndim == 1:
        right = right.shaped(len(right.floats), 1)
    if right.floats.ndim == 2 and left.floats.ndim > 2:  # every row meets the same matrix
        left = left.shaped(-1, left.floats.shape[-1])
    batch = np.broadcast_shapes(left.floats.shape[:-2], right.floats.shape[:-2])
    stacks = {}
    for side, value in (("left", left), ("right", right)):
        matrix = value.floats.shape[-2:]
        stacks[side] = value.spread((*batch, *matrix)).shaped(int(np.prod(batch, dtype=np.int64)), *matrix)
    return stacks

"""Error bounds by affine arithmetic: a kernel's formula on centres, shared error symbols and rests (T10).

Every value encloses `computed - exact`: the exact value lies within `slack` of `centre`, and the
error is a sum of named symbols in [-1, 1] with signed coefficients plus a rest of at most `rest`.
Symbols stand for the errors of finished row values (mean, rstd, row sums): what two uses share may
cancel, as it does in the kernel. No bound contains a subtraction; float64 roundings are covered.

Source: docs/explanation/bounds.md, T10.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from verifier.arithmetic.blocks import Tile, cut, in_blocks
from verifier.arithmetic.formats import (
    FORMATS,
    INFLATION,
    Arithmetic,
    Array,
    Contraction,
    DivideByN,
    Format,
    theta,
)
from verifier.arithmetic.trees.tree import Tree, of_all
from verifier.bounds import elementary_functions
from verifier.bounds.affine_value import Affine, by_blocks
from verifier.bounds.entry_sums import EntryTotals, entry_totals
from verifier.bounds.parameter_entries import Index, element_entries
from verifier.bounds.why_none import NO_PARTS, NOT_FINITE, OVERFLOW, VANISHES

_EPS = 2.0**-53
_TINY = 2.0**-1074
_LN_2, _LOG2_E = math.log(2.0), math.log2(math.e)
"""Both within one ulp of float64, which is 2^-52 of them at most."""
Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(kw_only=True)
class AffineNumbers:
    """The abstract number of error bounds (`verifier.arithmetic.abstract_number.Numbers`).

    `computed` are the row statistics (mean, rstd) as the kernel computes them (made by the op from the
    variance theorem), `stepped` those of which rstd is rounded at every step, if they differ, `parts` the two
    numbers that are kept of the mean, `saved` the statistics that the backward pass reads. `parameter` maps
    elements to the entries of weight: "columns", "rows" or an index array. `dtypes` gives the dtype of each
    role.
    A value that may leave the range of its format (T12) has an infinite rest: it has no bound, and
    neither has what is made of it. `absent` marks elements whose exponential is exactly zero (-inf in
    a softmax; their x is read as some finite number), `vanishing` those whose exponential is below every
    number, exact and computed, and which are no maximum (T16). `judged`, (rows, 1): rows whose reasons count.
    """

    arithmetic: Arithmetic
    rows: int
    columns: int
    row_tree: Tree
    column_tree: Tree
    divide_by_n: DivideByN
    contraction: Contraction
    dtypes: Mapping[str, str]
    parameter: str | Index = "columns"
    entries: int = 0
    computed: tuple[Affine, Affine] | None = None
    stepped: tuple[Affine, Affine] | None = None
    parts: tuple[Affine, Affine] | None = None
    saved: tuple[Affine, Affine] | None = None
    absent: Mask | None = None
    vanishing: Mask | None = None
    judged: Mask | None = None
    _names: Iterator[int] = field(default_factory=itertools.count)

    def within(self, block: Tile, shape: tuple[int, int]) -> AffineNumbers:
        """Return the numbers of a block of an array (rows, columns)."""
        if shape[0] != self.rows:
            return self
        judged, absent, vanishing = (
            None if mask is None else cut(mask, block) for mask in (self.judged, self.absent, self.vanishing)
        )
        rows = len(range(*block[0].indices(self.rows)))
        return replace(self, rows=rows, judged=judged, absent=absent, vanishing=vanishing)

    def exact(self, centre: Array, slack: Array | float = 0.0) -> Affine:
        """Return a value without error, known to within `slack`."""
        slack = np.broadcast_to(np.asarray(slack, dtype=np.float64), centre.shape)
        return Affine(numbers=self, centre=centre, slack=slack, symbols={}, rest=np.zeros_like(centre))

    def read(self, centre: Array, role: str | None = None) -> Affine:
        """Return an input tensor: exact, unless subnormals are flushed as they are read.

        A tensor of a dtype that the accumulation format does not hold is rounded to that format.
        """
        value = self.exact(centre)
        held = None if role is None else self.dtypes.get(role)
        if held is not None and not self.arithmetic.format.holds(FORMATS[held]):
            value = self.rounded(value, 1.0)
        value = self.with_rest(value, np.full_like(centre, self.arithmetic.addition_omega))
        return self.without_bound(value, ~np.isfinite(centre), NOT_FINITE)

    def constant(self, number: float) -> Affine:
        """Return a constant as the accumulation format holds it; its rounding is an error."""
        value = self.exact(np.full((1, 1), number))
        arithmetic = self.arithmetic
        flushed = arithmetic.flush_to_zero and 0.0 < abs(number) < arithmetic.format.smallest_normal
        exact = arithmetic.format.represents(number) and not flushed
        return value if exact else self.rounded(value, 1.0)

    def count(self) -> Affine:
        """Return the number of columns."""
        return self.constant(float(self.columns))

    def with_rest(self, value: Affine, more: Array) -> Affine:
        """Return the value with an additional error."""
        return replace(value, rest=value.rest + more)

    def without_bound(self, value: Affine, where: Mask, reason: str, had: Mask | bool = True) -> Affine:
        """Return the value with no bound in some elements; the reason is that of those that `had` one."""
        if not where.any():
            return value
        fresh = where & had
        if self.judged is not None and fresh.shape[0] == self.rows:
            fresh = fresh & self.judged
        reasons = value.reasons | {reason} if fresh.any() else value.reasons
        return replace(value, rest=np.where(where, np.inf, value.rest), reasons=reasons)

    def moments(self, _x: Affine) -> tuple[Affine, Affine]:
        """Return the computed (mean, rstd)."""
        if self.computed is None:
            raise ValueError("this formula asks for statistics that its op does not compute")
        return self.computed

    def mean_parts(self, x: Affine) -> tuple[Affine, Affine]:
        """Return the two numbers that are kept of the mean: what the first lacks, the second has."""
        if self.parts is not None:
            return self.parts
        mean = self.moments(x)[0]
        everywhere = np.ones(mean.centre.shape, dtype=np.bool_)
        return self.without_bound(mean, everywhere, NO_PARTS), self.exact(np.zeros_like(mean.centre))

    def stepped_moments(self, x: Affine) -> tuple[Affine, Affine]:
        """Return the computed (mean, rstd), each step after a running variance rounded to its dtype."""
        return self.moments(x) if self.stepped is None else self.stepped

    def saved_moments(self, _x: Affine) -> tuple[Affine, Affine]:
        """Return the (mean, rstd) that the backward pass reads."""
        if self.saved is None:
            raise ValueError("this formula asks for saved statistics, and none are declared")
        return self.saved

    @by_blocks
    def multiply(self, a: Affine, b: Affine) -> Affine:
        """Return fl(a * b)."""
        return self.rounded(self.product(a, b), 1.0)

    def rounded(self, value: Affine, errors: float) -> Affine:
        """Add the rounding of one operation of relative error `errors` * u to an unrounded result."""
        return self._round(value, errors * self.arithmetic.u, self.arithmetic.omega, self.arithmetic.format)

    @by_blocks
    def add(self, a: Affine, b: Affine, sign: float) -> Affine:
        """Return fl(a + sign * b)."""
        centre = a.centre + sign * b.centre
        symbols = {k: np.asarray(v) for k, v in a.symbols.items()}
        for name, coefficient in b.symbols.items():
            symbols[name] = symbols[name] + sign * coefficient if name in symbols else sign * coefficient
        slack = a.slack + b.slack + _EPS * np.abs(centre)
        value = self._joined(centre, slack, symbols, a.rest + b.rest, (a, b))
        return self._round(value, self.arithmetic.u, self.arithmetic.addition_omega, self.arithmetic.format)

    @by_blocks
    def product(self, a: Affine, b: Affine) -> Affine:
        """Return the product of two computed values, not yet rounded."""
        centre = a.centre * b.centre
        symbols = {name: b.centre * coefficient for name, coefficient in a.symbols.items()}
        for name, coefficient in b.symbols.items():
            term = a.centre * coefficient
            symbols[name] = symbols[name] + term if name in symbols else term
        of_a, of_b = np.abs(a.centre), np.abs(b.centre)
        rest = of_a * b.rest + of_b * a.rest + a.total * b.total + a.slack * b.total + b.slack * a.total
        rest = rest + 8.0 * _TINY  # each of these products may underflow in float64, and so may coefficients
        slack = of_a * b.slack + of_b * a.slack + a.slack * b.slack + _EPS * np.abs(centre) + _TINY
        return self._joined(centre, slack, symbols, rest, (a, b))

    def scaled(self, a: Affine, factor: float) -> Affine:
        """Return the exact multiple by a power of two or minus one."""
        symbols = {name: factor * coefficient for name, coefficient in a.symbols.items()}
        centre, slack, rest = factor * a.centre, abs(factor) * a.slack, abs(factor) * a.rest
        return replace(a, numbers=self, centre=centre, slack=slack, symbols=symbols, rest=rest)

    @by_blocks
    def divide(self, a: Affine, b: Affine) -> Affine:
        """Return fl(a / b); rows in which b may vanish have no bound."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            centre = a.centre / b.centre
            smallest = np.abs(b.centre) - b.slack - b.total
            safe = smallest > 0
            ratio = (np.abs(centre) * (1 + 2 * _EPS) + _TINY) * (1 + b.slack / np.where(safe, smallest, 1.0))
            slack = (
                (a.slack + ratio * b.slack) / np.where(safe, smallest, 1.0) + _EPS * np.abs(centre) + _TINY
            )
            rest = (a.total + (ratio + slack) * b.total) / np.where(safe, smallest, 1.0)
        had = np.isfinite(a.total) & np.isfinite(b.total)
        centre, slack = np.where(safe, centre, 0.0), np.where(safe, slack, 0.0)
        value = self._joined(centre, slack, {}, np.where(safe, rest, 0.0), (a, b))
        value = self.without_bound(value, ~safe & np.ones_like(had), VANISHES, had)
        return self.rounded(value, self.arithmetic.division)

    def rsqrt(self, value: Affine) -> Affine:
        """Return value**-1/2; elements that may vanish have no bound (T9)."""
        found = self._moved(elementary_functions.rsqrt, value, value.total, VANISHES)
        return self.rounded(found, self.arithmetic.reciprocal_square_root)

    def rsqrt_of_squares(self, squares: Affine, eps: Affine) -> Affine:
        """Return (squares + eps)**-1/2, squares being computed to be at least 0: T9, its second form, too."""
        value, alone = squares + eps, (eps.centre, eps.slack, eps.total + self.arithmetic.addition_omega)
        through = functools.partial(elementary_functions.rsqrt_of_squares, eps=alone)
        found = self._moved(through, value, value.total, VANISHES)
        return self.rounded(found, self.arithmetic.reciprocal_square_root)

    def exp(self, value: Affine) -> Affine:
        """Return e**value (T11)."""
        arithmetic = self.arithmetic
        inside = theta(arithmetic.exponential_argument, arithmetic.u) * (value.magnitude + value.total)
        found = self._moved(elementary_functions.exp, value, value.total + inside, OVERFLOW)
        lost = arithmetic.underflow(arithmetic.exponential) + arithmetic.exponential_underflow
        found = self._round(found, arithmetic.exponential * arithmetic.u, lost, arithmetic.format)
        if self.vanishing is not None:
            # What the others of a row have no bound for, this one has none for either: it is divided by them.
            others = self.vanishing | np.isfinite(self._full(value).total)
            nothing = self.vanishing & others.all(axis=1, keepdims=True)
            found = self._zeroed(found, nothing)
            found = self.with_rest(found, np.where(nothing, lost + _TINY, 0.0))
        return found if self.absent is None else self._zeroed(found, self.absent)

    def exp2(self, value: Affine) -> Affine:
        """Return 2**value = e**(value * ln 2), with the errors of e**t (T11, folded form)."""
        slack = np.full((1, 1), 2 * _EPS * _LN_2)
        return self.exp(self.product(value, self.exact(np.full((1, 1), _LN_2), slack)))

    def log2_e(self) -> Affine:
        """Return log2(e) rounded to the accumulation format: one error that all uses share."""
        centre = np.full((1, 1), _LOG2_E)
        return self.share(self.rounded(self.exact(centre, 2 * _EPS * centre), 1.0), "log2 e")

    def log(self, value: Affine) -> Affine:
        """Return the natural logarithm; elements that may vanish have no bound."""
        arithmetic = self.arithmetic
        lost = arithmetic.logarithm_absolute + arithmetic.omega
        found = self._moved(elementary_functions.log, value, value.total, VANISHES)
        return self._round(found, arithmetic.logarithm * arithmetic.u, lost, arithmetic.format)

    def sigmoid(self, value: Affine) -> Affine:
        """Return 1 / (1 + e**-value), also where that exponential may overflow (T15)."""
        one, arithmetic = self.constant(1.0), self.arithmetic
        found = one / (one + self.exp(-value))
        inside = theta(arithmetic.exponential_argument, arithmetic.u) * (value.magnitude + value.total)
        least = -value.centre - value.slack - value.total - inside
        # What rounding makes of it: 1 + e**-value and the quotient, relative to the computed exponential.
        grown = theta(arithmetic.division + 1.0, arithmetic.u) + arithmetic.exponential * arithmetic.u
        vanishes = ~np.isfinite(found.total) & (least > 8.0) & (grown < 0.5)
        if not vanishes.any():
            return found
        most = np.exp(-np.where(vanishes, least, 0.0)) * INFLATION + _TINY
        centre, slack = np.where(vanishes, 0.0, found.centre), np.where(vanishes, most, found.slack)
        rest = np.where(vanishes, 4.0 * most + arithmetic.omega, found.total)
        reasons = found.reasons if bool((~np.isfinite(rest)).any()) else frozenset[str]()
        return replace(found, centre=centre, slack=slack, symbols={}, rest=rest, reasons=reasons)

    def tanh(self, value: Affine, *, approximate: bool = False) -> Affine:
        """Return the hyperbolic tangent (T17)."""
        arithmetic = self.arithmetic
        found = self._moved(elementary_functions.tanh, value, value.total, OVERFLOW)
        lost = arithmetic.underflow(1.0) + arithmetic.tangent_underflow
        relative, near = arithmetic.hyperbolic_tangent * arithmetic.u, arithmetic.approximate_tangent
        if approximate:  # of a float32, which is then rounded
            relative = near + (1.0 + near) * arithmetic.u
        return self._round(found, relative, lost, arithmetic.format)

    def maximum(self, value: Affine) -> Affine:
        """Return the largest element of each row, which is one of them: nothing is rounded."""
        full = self._full(value)
        total = full.total
        never = np.zeros((1, 1), dtype=np.bool_) if self.vanishing is None else self.vanishing
        parts = ((full.centre, -np.inf), (full.slack, 0.0), (total, 0.0))
        centre, slack, rest = (
            np.max(np.where(never, least, part), axis=1, keepdims=True, initial=-np.inf)
            for part, least in parts
        )
        return self._value(centre, np.maximum(slack, 0.0), {}, np.maximum(rest, 0.0), value)

    def online_sum(self, x: Affine, *, base_two: bool = False) -> Affine:
        """Return the sum of exp(x - max(x)) over each row, rescaled wherever parts meet (T11, online form).

        The arguments on an element's path add up to x - max(x), so the relative errors within them do as
        well; each of the at most B = depth + 1 rescalings adds one exponential and one product.
        """
        arithmetic, rescalings = self.arithmetic, self.row_tree.depth(self.columns) + 1
        away = x - self.maximum(x)
        away = self.with_rest(away, np.full_like(away.centre, rescalings * arithmetic.addition_omega))
        power = self.exp2(away) if base_two else self.exp(away)
        lost = arithmetic.underflow(arithmetic.exponential) + arithmetic.exponential_underflow
        factor = math.log1p(arithmetic.exponential * arithmetic.u + lost) + math.log1p(arithmetic.u)
        exponent = rescalings * factor
        growth = math.expm1(exponent) * INFLATION if exponent < 700.0 else math.inf
        absolute = rescalings * (lost + arithmetic.omega) * (1.0 + growth)
        return self.sum(self.with_rest(power, growth * (power.magnitude + power.total) + absolute))

    @property
    def rounds(self) -> bool:
        """Yes: each way has a bound of its own."""
        return True

    def either(self, one: Affine, *others: Affine) -> Affine:
        """Return the value with the largest of several bounds; all must have the same exact value."""
        rest = functools.reduce(np.maximum, (way.total for way in (one, *others)))
        return self._value(one.centre, one.slack, {}, rest + np.zeros_like(one.centre), one, *others)

    def sum(self, value: Affine) -> Affine:
        """Return the sum over each row along the declared tree."""
        return self._row_sum(self._full(value), self.row_tree.depth(self.columns))

    def mean(self, value: Affine) -> Affine:
        """Return fl(sum / N)."""
        total = self.share(self.sum(value), self._fresh("sum"))
        centre = total.centre / self.columns
        symbols = {name: coefficient / self.columns for name, coefficient in total.symbols.items()}
        slack = total.slack / self.columns + _EPS * np.abs(centre) + _TINY
        divided = self._value(centre, slack, symbols, total.rest / self.columns, total)
        problem = self.arithmetic.count_problem(self.columns, self.divide_by_n)
        if problem:
            divided = self.without_bound(divided, np.ones_like(centre, dtype=np.bool_), problem)
        roundings = self.arithmetic.division_by_count(self.columns, self.divide_by_n)
        rounded = self._round(
            divided, roundings * self.arithmetic.u, self.arithmetic.omega, self.arithmetic.format
        )
        return self.share(rounded, self._fresh("mean"), product=True)

    def parameter_sum(self, value: Affine, held: str | None = None, *, atomic: bool = False) -> Affine:
        """Return the sums over the elements of each entry of weight, (1, entries).

        With running sums held in a narrower format, every addition is followed by a rounding to it,
        the first one (to zero) included. An atomic addition may flush its operand and its result.
        """
        value, shape = self._full(value), (self.rows, self.columns)
        return self.summed(entry_totals(value, self.parameter, shape, self.entries), held, atomic=atomic)

    def summed(self, totals: EntryTotals, held: str | None = None, *, atomic: bool = False) -> Affine:
        """Return what the sums of `parameter_sum` are, from the totals of all elements."""
        index = element_entries(self.parameter, self.rows, self.columns)
        longest = int(np.bincount(index.ravel(), minlength=self.entries).max(initial=0))
        depth = self.column_tree.depth(longest)
        u, lost, to = self.arithmetic.u, self.arithmetic.addition_omega, self.arithmetic.format
        growth, largest = theta(depth, u), to.maximum
        if held is not None and not FORMATS[self.dtypes[held]].holds(to):
            to = FORMATS[self.dtypes[held]]
            growth = theta(depth + 1, u + to.u * (1 + u))
            lost, largest = lost + to.omega, min(largest, to.maximum)
        if atomic or self.arithmetic.atomics:
            lost = lost + 2.0 * to.smallest_normal
        lost, errors = lost * longest * (1 + growth), totals.error
        magnitudes = totals.magnitude + errors
        slack = totals.slack + self.rows * self.columns * _EPS * magnitudes
        fits = magnitudes * (1 + growth) + lost < largest / 2
        value = self._value(totals.centre, slack, {}, errors + growth * magnitudes + lost)
        had = totals.unlimited == (0.0 if math.isfinite(growth) else np.nan)
        return self.without_bound(replace(value, reasons=totals.reasons), ~fits, OVERFLOW, had)

    def totals(self, *values: Affine, of_rows: bool = False) -> Affine:
        """Return the sums of all elements of each value, (1, how many); see `of_all`."""
        columns, tree = (1 if of_rows else self.columns), self.column_tree
        tree = tree if of_rows else of_all(self.row_tree, tree, self.rows, columns)
        one = np.zeros((1, 1), dtype=np.int64)
        whole = replace(self, parameter=one, entries=1, column_tree=tree, columns=columns)
        sums = [whole.parameter_sum(value) for value in values]
        parts = ([getattr(one, part) for one in sums] for part in ("centre", "slack", "rest"))
        centre, slack, rest = (np.concatenate(part, axis=1) for part in parts)
        return self._value(centre, slack, {}, rest, *sums)

    def entry(self, value: Affine, number: int) -> Affine:
        """Return one number of a parameter that acts on all elements, (1, 1)."""
        place = slice(number, number + 1)
        symbols = {name: coefficient[:, place] for name, coefficient in value.symbols.items()}
        parts = {name: getattr(value, name)[:, place] for name in ("centre", "slack", "rest")}
        return replace(value, symbols=symbols, **parts)

    def share(self, value: Affine, name: str, *, product: bool = False) -> Affine:
        """Turn the rest of a row value that is one machine number into a symbol of its own.

        `product` says that the value ends in a multiplication. With mixed contraction that may be
        rounded in one use and not in another: the value is several numbers, and its rest stays (Lemma 2).
        """
        if value.centre.shape[1] != 1:
            raise ValueError(f"only row values can be shared; {name!r} has shape {value.centre.shape}")
        if product and self.contraction == "mixed":
            return value
        symbols = {**value.symbols, self._fresh(name): value.rest}
        return self._value(value.centre, value.slack, symbols, np.zeros_like(value.rest), value)

    def cast(self, value: Affine, role: str) -> Affine:
        """Round to the dtype of a tensor; no rounding if that holds every number of the accumulation's."""
        stored = FORMATS[self.dtypes[role]]
        if stored.holds(self.arithmetic.format):
            return value
        return self._round(value, stored.u, stored.omega, stored)

    def _fresh(self, name: str) -> str:
        """Return a symbol name that no other value has: equal names would cancel."""
        return f"{name}#{next(self._names)}"

    def _value(
        self, centre: Array, slack: Array, symbols: Mapping[str, Array], rest: Array, *made_of: Affine
    ) -> Affine:
        """Assemble a result; covers the float64 rounding of every coefficient."""
        rounding = sum((4 * _EPS * np.abs(v) for v in symbols.values()), np.zeros(1))
        reasons = frozenset[str]().union(*(part.reasons for part in made_of))
        return Affine(
            numbers=self, centre=centre, slack=slack, symbols=symbols, rest=rest + rounding, reasons=reasons
        )

    def _joined(
        self,
        centre: Array,
        slack: Array,
        symbols: Mapping[str, Array],
        rest: Array,
        of: tuple[Affine, Affine],
    ) -> Affine:
        """Assemble an unrounded result; where float64 itself overflows, every narrower format does."""
        value = self._value(centre, slack, symbols, rest, *of)
        lost = ~np.isfinite(value.magnitude + value.total)
        if not lost.any():
            return value
        had = np.isfinite(of[0].magnitude + of[0].total) & np.isfinite(of[1].magnitude + of[1].total)
        return self.without_bound(value, lost, OVERFLOW, had)

    @by_blocks
    def _round(self, value: Affine, relative: float, absolute: float, to: Format) -> Affine:
        reach = value.magnitude + value.total
        # A result below the largest number plus half its last place still rounds to a finite number.
        fits = reach * INFLATION <= to.maximum * (1 + to.u / 2)
        rounded = self.with_rest(value, np.where(fits, relative * reach + absolute, np.inf))
        return self.without_bound(rounded, ~fits, OVERFLOW, np.isfinite(reach))

    def _moved(
        self,
        through: Callable[[Array, Array, Array], elementary_functions.Moved],
        value: Affine,
        total: Array,
        lost: str,
    ) -> Affine:
        """Return an unrounded function of a value; symbols end here. `lost` says why it may have no bound."""
        parts = np.broadcast_arrays(value.centre, value.slack, total)
        centre, slack, rest = in_blocks(through, *parts)
        moved = self._value(centre, slack, {}, rest, value)
        return self.without_bound(moved, ~np.isfinite(rest), lost, np.isfinite(parts[2]))

    def _zeroed(self, value: Affine, where: Mask) -> Affine:
        """Return the value with exact zeros in some places."""
        full = self._full(value)
        centre, slack, rest = (np.where(where, 0.0, part) for part in (full.centre, full.slack, full.rest))
        return self._value(centre, slack, {}, rest, full)

    def _full(self, value: Affine) -> Affine:
        shape = (self.rows, self.columns)
        symbols = {name: np.broadcast_to(v, shape) for name, v in value.symbols.items()}
        centre, slack, rest = (np.broadcast_to(v, shape) for v in (value.centre, value.slack, value.rest))
        return replace(value, centre=centre, slack=slack, symbols=symbols, rest=rest)

    def _row_sum(self, value: Affine, depth: int) -> Affine:
        count, axis = self.columns, 1
        u = self.arithmetic.u
        # What one addition flushes passes through the additions above it.
        flushes = self.arithmetic.sum_omega * count * (1 + theta(depth, u))
        magnitudes = (value.magnitude + value.total).sum(axis=axis, keepdims=True)
        fits = magnitudes * (1 + theta(depth, u)) < self.arithmetic.format.maximum / 2
        centre = value.centre.sum(axis=axis, keepdims=True)
        slack = value.slack.sum(axis=axis, keepdims=True) + count * _EPS * magnitudes
        kept: dict[str, Array] = {}
        rest = value.rest.sum(axis=axis, keepdims=True) + theta(depth, u) * magnitudes + flushes
        for name, coefficient in value.symbols.items():
            kept[name] = coefficient.sum(axis=axis, keepdims=True)
            rest = rest + count * _EPS * np.abs(coefficient).sum(axis=axis, keepdims=True)
        had = np.asarray(np.isfinite(value.total * theta(depth, u)).all(axis=axis, keepdims=True))
        return self.without_bound(self._value(centre, slack, kept, rest, value), ~fits, OVERFLOW, had)


def bound_of(value: Affine) -> Array:
    """Return the bound on |computed - exact|, inflated for its own float64 roundings."""
    return value.total * INFLATION

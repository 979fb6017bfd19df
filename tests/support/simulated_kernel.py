"""A kernel that follows an op's form operation by operation, rounding as it declares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from verifier.arithmetic.abstract_number import Terms
from verifier.arithmetic.formats import FORMATS
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.bounds import variance
from verifier.bounds.variance import Reduction, options
from verifier.bounds.variance.simulate import Executed
from verifier.checks.support.truth import Truth
from verifier.ops import op
from verifier.oracle.rows.dropped import FACTOR


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """A value that the kernel holds; `product` is the pair it was just multiplied from."""

    numbers: SimulatedNumbers
    array: np.ndarray
    product: tuple[np.ndarray, np.ndarray] | None = None

    def __add__(self, other):
        return self.numbers.add(self, other, 1.0)

    def __sub__(self, other):
        return self.numbers.add(self, other, -1.0)

    def __neg__(self):
        pair = None if self.product is None else (-self.product[0], self.product[1])
        return replace(self, array=-self.array, product=pair)

    def __mul__(self, other):
        array = self.numbers.rounded.multiply(self.array, other.array)
        return replace(self, array=array, product=(self.array, other.array))

    def __truediv__(self, other):
        return self.numbers.plain(self.numbers.rounded.divide(self.array, other.array))


@dataclass(kw_only=True)
class SimulatedNumbers:
    """`verifier.arithmetic.abstract_number.Numbers` for a kernel of a declared format, trees and contraction.

    Contraction "mixed" fuses a product into an addition in every other element, "none" never.
    """

    truth: Truth
    rounded: RoundedArithmetic
    rows: int
    columns: int
    saved_in: str | None = None
    computed: tuple[Simulated, Simulated] | None = field(default=None)
    parts: tuple[Simulated, Simulated] | None = None
    way: int = 0
    offered: int = 1

    @property
    def mixes(self) -> bool:
        return self.truth.subject.claim.mean_contraction == "mixed"

    def plain(self, array):
        return Simulated(numbers=self, array=array)

    def add(self, a, b, sign):
        total = self.rounded.add(a.array, sign * b.array)
        if not self.mixes or (a.product is None and b.product is None):
            return self.plain(total)
        fused_one, other = (b, a) if b.product is not None else (a, b)
        left, right = fused_one.product
        left = sign * left if fused_one is b else left
        rest = other.array if fused_one is b else sign * other.array
        left, right, rest = np.broadcast_arrays(left, right, rest)
        fused = self.rounded.multiply_add(left, right, rest)
        if total.shape[1] == 1:
            return self.plain(fused)
        return self.plain(np.where(np.arange(fused.shape[1]) % 2 == 0, fused, total))

    def constant(self, number):
        return self.plain(self.rounded.of(np.full((1, 1), number)))

    def count(self):
        return self.constant(float(self.columns))

    def moments(self, x):
        del x
        return self.computed

    def mean_parts(self, x):
        del x
        return self.parts

    def saved_moments(self, x):
        del x
        if self.saved_in is None:
            return self.computed
        return tuple(self.plain(round_to(FORMATS[self.saved_in], v.array)) for v in self.computed)

    def rsqrt(self, value):
        return self.plain(self.rounded.divide(np.asarray(1.0), self.rounded.square_root(value.array)))

    def rsqrt_of_squares(self, squares, eps):
        return self.rsqrt(squares + eps)

    def exp(self, value):
        with np.errstate(over="ignore", under="ignore"):
            return self.plain(self.rounded.of(np.exp(value.array)))

    def sigmoid(self, value):
        one = self.constant(1.0)
        return one / (one + self.exp(-value))

    def tanh(self, value, *, approximate=False):
        found = np.tanh(value.array)
        if approximate:  # as wrong as it may be, outwards and inwards in turn
            found = found * (1.0 + self.truth.setting.arithmetic.approximate_tangent * self._turns(found))
        return self.plain(self.rounded.of(found))

    @staticmethod
    def _turns(array):
        return np.where(np.arange(array.size).reshape(array.shape) % 2 == 0, 0.999, -0.999)

    def totals(self, *values, of_rows=False):
        trees, sums = self.truth.setting.trees, []
        for value in values:
            row = np.broadcast_to((value if of_rows else self.sum(value)).array, (self.rows, 1))
            sums.append(self._along(row.T, trees.columns, self.rows, None))
        return self.plain(np.concatenate(sums, axis=1))

    def entry(self, value, number):
        return self.plain(value.array[:, number : number + 1])

    def sum(self, value):
        values = np.broadcast_to(value.array, (self.rows, self.columns))
        return self.plain(self._along(values, self.truth.setting.trees.row_gradients, self.columns, None))

    def mean(self, value):
        claim, total = self.truth.subject.claim, self.sum(value)
        if claim.divide_by_n == "division":
            return total / self.count()
        return total * (self.constant(1.0) / self.count())

    def parameter_sum(self, value, held=None):
        values = np.broadcast_to(value.array, (self.rows, self.columns)).T
        stored = None if held is None else FORMATS[self._dtype(held)]
        return self.plain(self._along(values, self.truth.setting.trees.columns, self.rows, stored).T)

    def share(self, value, name, *, product=False):
        del name
        return value if product and self.mixes else self.plain(value.array)

    rounds = True

    def either(self, *ways):
        self.offered = max(self.offered, len(ways))
        return ways[self.way % len(ways)]

    def cast(self, value, role):
        stored = FORMATS[self._dtype(role)]
        if stored.precision >= self.rounded.format.precision:
            return value
        return self.plain(round_to(stored, value.array))

    def _dtype(self, role):
        given, role = self.truth.case.given, role.removeprefix("new_")
        return str(given[role if role in given else "input"].dtype).removeprefix("torch.")

    def _along(self, values, tree, count, stored):
        nodes, root = values.copy(), 0
        if stored is not None:
            nodes = round_to(stored, nodes)
        for step in tree.example(count):
            joined = self.rounded.add(nodes[:, step.left], nodes[:, step.right])
            nodes[:, step.left] = joined if stored is None else round_to(stored, joined)
            root = int(step.left[0])
        return nodes[:, [root]]


def simulate_every_way(truth: Truth) -> Iterator[dict[str, np.ndarray]]:
    """Run the declared kernel in each of the ways that its form offers."""
    kernels: list[SimulatedNumbers] = []
    yield simulate(truth, kernels=kernels)
    for way in range(1, kernels[0].offered):
        yield simulate(truth, way=way)


def simulate(
    truth: Truth, *, way: int = 0, kernels: list[SimulatedNumbers] | None = None
) -> dict[str, np.ndarray]:
    """Run the declared kernel on the truth's case; returns every result in canonical rows."""
    subject, setting, problem = truth.subject, truth.setting, truth.solved.problem
    claim, arithmetic = subject.claim, setting.arithmetic
    rounded = RoundedArithmetic(format=arithmetic.format)
    numbers = SimulatedNumbers(
        truth=truth,
        rounded=rounded,
        rows=truth.case.rows,
        columns=truth.case.columns,
        saved_in=str(truth.case.given["input"].dtype).removeprefix("torch.")
        if claim.saved_dtype == "input"
        else claim.saved_dtype,
        way=way,
    )
    if kernels is not None:
        kernels.append(numbers)
    form = op(truth.case.op).form(claim, truth.case.dtype)
    sum_gradient, factor = (getattr(problem, name, None) for name in ("sum_gradient", "factor"))
    with np.errstate(all="ignore"):
        total = problem.input
        if "residual" in truth.case.given:  # it adds by itself: the oracle need not be right about the sum
            if "kept_share" in getattr(problem, "scalars", {}):
                total, factor = _divided(numbers, problem)
                sum_gradient = problem.further.get("grad_new_residual")
            else:
                first, second = problem.summands
                first = first if factor is None else rounded.multiply(first, factor)
                total = numbers.plain(rounded.add(first, second))
            stored = numbers.cast(total, "residual")
            total = (total if form.keeps_sum else stored).array
        if claim.variance is not None:
            numbers.computed = _moments(numbers, total, claim, setting, truth.case.eps)
            numbers.parts = _parts(numbers, total, claim, setting)
        further = {n: numbers.plain(a) for n, a in getattr(problem, "further", {}).items()}
        further |= {n: numbers.constant(a) for n, a in getattr(problem, "scalars", {}).items()}
        further |= {} if factor is None else {FACTOR: numbers.plain(factor)}
        further |= {} if sum_gradient is None else {"grad_new_residual": numbers.plain(sum_gradient)}
        terms = Terms(
            x=numbers.plain(total),
            further=further,
            **{
                name: None if (a := getattr(problem, name)) is None else numbers.plain(a)
                for name in ("weight", "bias", "grad_output")
            },
        )
        given = {*terms.further}
        terms = form.completed(numbers, terms)
        output = form.forward(numbers, terms)
        found = {"output": numbers.cast(output, "output")}
        found |= {n: v for n, v in terms.further.items() if n not in given}
        for name, value in form.backward(numbers, replace(terms, output=output)).items():
            role = name.removeprefix("grad_")
            found[name] = numbers.cast(value, role)
        if claim.variance is not None:
            mean, rstd = numbers.saved_moments(None)
            found |= {"rstd": rstd} if claim.variance == "rms" else {"mean": mean, "rstd": rstd}
        found |= {"new_residual": stored} if "residual" in truth.case.given else {}
    vectors = {"mean", *(n for n in found if n.startswith("rstd") or op(truth.case.op).sums_rows(n))}
    shape = (truth.case.rows, truth.case.columns)
    return {
        n: v.array.reshape(-1) if n in vectors else np.broadcast_to(v.array, shape) for n, v in found.items()
    }


def _divided(numbers, problem):
    """Return residual + input / (1 - p), and what multiplies a gradient, in one of five ways."""
    rounded, p, one = numbers.rounded, problem.scalars["p"], np.asarray(1.0)
    share = rounded.subtract(one, rounded.of(np.asarray(p))) if numbers.way % 2 else rounded.of(1.0 - p)
    scale = rounded.of(1.0 / (1.0 - p)) if numbers.way % 5 == 4 else rounded.divide(one, share)
    x, residual = numbers.plain(problem.input), numbers.plain(problem.further["residual"])
    shares, scales = (numbers.plain(np.full_like(x.array, number)) for number in (share, scale))
    total = x / shares + residual if numbers.way % 5 < 2 else x * scales + residual
    return total, np.where(problem.further["dropout_mask"] != 0, scale, 0.0)


def _reduction(claim, setting):
    return options.reduction(
        claim.variance,
        claim.variance_options,
        Reduction(
            arithmetic=setting.arithmetic,
            tree=setting.trees.statistics,
            divide_by_n=claim.divide_by_n,
            mean_contraction=claim.mean_contraction,
            clamp=claim.clamp,
        ),
    )


def _product(numbers, values, reduction):
    """Return the pair that the mean is multiplied from."""
    run = Executed(rounded=numbers.rounded, claim=reduction, count=values.shape[1])
    return run.sum(values)[:, None], np.broadcast_to(run.reciprocal, (values.shape[0], 1))


def _parts(numbers, values, claim, setting):
    in_parts = getattr(variance.algorithm(claim.variance), "simulate_parts", None)
    if in_parts is None:
        return None
    reduction = _reduction(claim, setting)
    high, low = (numbers.plain(a[:, None]) for a in in_parts(numbers.rounded, values, reduction))
    if numbers.mixes and claim.divide_by_n == "reciprocal":
        high = replace(high, product=_product(numbers, values, reduction))
    return high, low


def _moments(numbers, values, claim, setting, eps):
    reduction = _reduction(claim, setting)
    rounded = numbers.rounded
    mean, spread = variance.algorithm(claim.variance).simulate(rounded, values, reduction)
    held = rounded.add(spread, rounded.of(np.asarray(eps)))
    root = rounded.divide(np.asarray(1.0), rounded.square_root(held))
    mean = np.zeros_like(root) if claim.variance == "rms" else mean
    used = numbers.plain(mean[:, None])
    if numbers.mixes and claim.divide_by_n == "reciprocal" and claim.variance == "two_pass":
        used = replace(used, product=_product(numbers, values, reduction))
    return used, numbers.plain(root[:, None])


def utilisation(truth: Truth, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Return, for each result, its largest certified error divided by its bound, where there is a bound."""
    worst = {}
    for name, values in found.items():
        bounded = truth.bounds[name]
        low, _ = truth.exact[name].error_of(np.ascontiguousarray(values))
        bound, covered = (np.broadcast_to(a, values.shape) for a in (bounded.bound, bounded.covered))
        with np.errstate(all="ignore"):
            ratio = np.where(bound > 0, low / bound, np.where(low > 0, np.inf, 0.0))
        worst[name] = float(np.max(ratio[covered], initial=0.0))
        if np.isnan(ratio[covered]).any():
            worst[name] = np.inf
    return worst

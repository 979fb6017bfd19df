"""What all norms over rows share: posing a case to the oracle, and composing their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from verifier.arithmetic.abstract_number import Form, Terms, constant_statistics
from verifier.arithmetic.blocks import cut
from verifier.arithmetic.formats import FORMATS, INFLATION, Array
from verifier.arithmetic.row_statistics import RowStatistics
from verifier.arithmetic.simulated import round_to
from verifier.bounds import variance
from verifier.bounds.affine import AffineNumbers, bound_of
from verifier.bounds.affine_value import Affine
from verifier.bounds.parameter_entries import element_entries
from verifier.bounds.row_blocks import (
    NumbersOfRows,
    SumOverRows,
    WholeNeededError,
    blocks_of_rows,
    comes_in_blocks,
    of_rows,
)
from verifier.bounds.variance import options as variance_options
from verifier.bounds.variance.rstd import RstdBound, rstd_bound
from verifier.bounds.why_none import OVERFLOW
from verifier.ops import Bounded, Setting, Solved
from verifier.oracle.problem import RowSolution
from verifier.oracle.rows.problem import RowProblem
from verifier.records.case import Case
from verifier.records.subject import Claim

RowsSolved = Solved[RowProblem, RowSolution]

UNBOUNDED = "the bound is not finite"
"""Why there is no bound where no operation says why: the errors themselves have grown beyond all limits."""
SUMMED = frozenset({"grad_weight", "grad_bias"})
"""Results that are sums over rows."""
LOW_PART = 2.0**-53
"""Of an enclosure that was rounded from a ball, |low| / |high| at most: `high` is the float64 nearest the
ball's middle, so that half a unit in its last place is left. Below the normal numbers it is nothing."""
OWN_ROUNDINGS = 1.0 + 2.0**-50
"""Covers the roundings of |held - eps| / |eps| in float64: the difference, exact where held is within a
factor of two of eps, and the quotient, 2**-53 each; there is room for eight of them."""


def to_float64(tensor: torch.Tensor) -> Array:
    """Return the exact values of a tensor as a float64 array."""
    return tensor.detach().cpu().to(torch.float64).numpy()


def case_array(case: Case, name: str) -> Array | None:
    """Return the exact values of an argument, or None if it is absent."""
    tensor = case.tensors.get(name)
    return None if tensor is None else to_float64(tensor)


def error_of_scalar(number: float, setting: Setting) -> float:
    """Return the relative error of a scalar argument as a kernel holds it."""
    if number == 0.0:
        return 0.0
    held, arithmetic = np.array(number), setting.arithmetic
    for name in (setting.scalar_format, arithmetic.format.name):
        if name is not None:
            held = round_to(FORMATS[name], held, flush_to_zero=arithmetic.flush_to_zero)
    return abs(float(held) - number) / abs(number) * OWN_ROUNDINGS


def combined_reasons(
    reasons: list[tuple[str, bool]], of_value: frozenset[str], bound: Array
) -> tuple[str, ...]:
    """Return the reasons that apply, with those of a value whose bound is not finite everywhere."""
    found = [why for why, applies in reasons if applies and why]
    if not bool(np.isfinite(bound).all()):
        found += sorted(of_value) or [UNBOUNDED]
    return tuple(dict.fromkeys(found))


def _stored(moments: variance.MomentBound, rows: RowStatistics, held: str | None) -> variance.MomentBound:
    """Return the bounds of a variance that is stored in a narrower format, as a sum or as the mean of it."""
    if held is None:
        return moments
    narrow, error = FORMATS[held], moments.variance_error
    lost = narrow.u * (rows.variance_upper + error) + narrow.omega
    return replace(moments, variance_error=error + lost * INFLATION)


def _stores(moments: variance.MomentBound, rows: RowStatistics, held: str | None) -> variance.Mask:
    """Return where mean and variance stay in the range of the format that they are stored in."""
    if held is None:
        return np.ones(rows.mean.shape, dtype=np.bool_)
    means, spread = rows.mean_magnitude + moments.mean_error, rows.variance_upper + moments.variance_error
    return np.asarray(np.maximum(means, spread) * INFLATION <= FORMATS[held].maximum)


def _by_lane(mean: Affine) -> Affine:
    """Return the means that elements use: where they may be further apart than from the exact one, no symbol.

    Each lies within the bound of the mean by itself (docs/explanation/bounds.md, "Lanes that disagree").
    """
    error = mean.symbols["mean"]
    own = mean.rest > error
    return replace(mean, symbols={"mean": np.where(own, 0.0, error)}, rest=np.where(own, error, mean.rest))


def _entries(case: Case, problem: RowProblem) -> int:
    """Return the number of entries of weight, or of what weight would be."""
    if problem.weight is not None or problem.bias is not None:
        name = "weight" if problem.weight is not None else "bias"
        return case.given[name].numel()
    if not isinstance(problem.parameter, str):
        return int(np.max(problem.parameter, initial=-1)) + 1
    return int(problem.input.shape[0 if problem.parameter == "rows" else 1])


def rows_bounds(solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> Mapping[str, Bounded]:
    """Bound every output and gradient of a norm over rows, from its variance theorem and its form.

    Returns bounds in canonical rows: (rows, columns) for output and grad_input, (rows,) for mean and
    rstd, (entries,) for grad_weight and grad_bias.
    """
    composer = Composer(solved, claim, form, setting)
    return composer.given() if solved.problem.rstd is not None else composer.own()


class Composer:
    """Runs one form on one case; keeps what its steps share.

    After `own`, `moments` holds the bounds of mean and variance if the subject computes them itself.
    """

    def __init__(self, solved: RowsSolved, claim: Claim, form: Form, setting: Setting) -> None:
        self.case, self.claim, self.form, self.setting = solved.case, claim, form, setting
        case, problem, solution = solved.case, solved.problem, solved.solution
        self.solution, self.problem = solution, problem
        rows, columns = problem.input.shape
        dtypes = {name: str(t.dtype).removeprefix("torch.") for name, t in case.given.items()}
        dtypes["output"] = dtypes["input"]
        self.dtypes = dtypes
        self.numbers = AffineNumbers(
            arithmetic=setting.arithmetic,
            rows=rows,
            columns=columns,
            row_tree=setting.trees.row_gradients,
            column_tree=setting.trees.columns,
            divide_by_n=claim.divide_by_n,
            contraction=claim.mean_contraction,
            dtypes=dtypes,
            parameter=problem.parameter,
            entries=_entries(case, problem),
        )
        self.covered = np.asarray(solution.statistics.finite).copy()
        self.why = [("a row is not finite", not bool(self.covered.all()))]
        self.moments: variance.MomentBound | None = None
        self.numbers.judged = self.covered[:, None]

    def own(self) -> Mapping[str, Bounded]:
        """Bounds of a subject that computes its statistics itself, or reads running ones (evaluation)."""
        results: dict[str, Bounded] = {}
        statistics = self._prepared()
        if self._is_of_rows and comes_in_blocks(self.numbers):
            found = self._by_rows()
            if found is not None:
                return {"output": found.pop("output"), **statistics, **found}
        terms = self._terms()
        with np.errstate(all="ignore"):
            output = self.numbers.cast(self.form.forward(self.numbers, terms), "output")
        results["output"] = self._rows_bounded(output)
        results.update(statistics)
        if terms.grad_output is not None:
            results.update(self._gradients(terms))
        return results

    @property
    def _is_of_rows(self) -> bool:
        """Whether output and gradients may be bounded a few rows at a time."""
        return type(self) is Composer

    def _by_rows(self) -> dict[str, Bounded] | None:
        """Bound output and gradients a few rows at a time; None where the form needs all rows at once."""
        whole, shape = self.numbers, self.problem.input.shape
        bounds, reasons = dict[str, Array](), dict[str, frozenset[str]]()
        before: Sequence[SumOverRows] = ()
        for rows in blocks_of_rows(whole):
            numbers = of_rows(whole, rows, before)
            try:
                values = self._values_of(numbers, rows)
            except WholeNeededError:
                return None
            for name in values.keys() - SUMMED:
                bounds.setdefault(name, np.empty(shape))[rows] = bound_of(values[name])
                reasons[name] = reasons.get(name, frozenset()) | values[name].reasons
            before = numbers.sums
        results = {}
        for name, value in values.items():
            if isinstance(value, SumOverRows):
                with np.errstate(all="ignore"):
                    summed = whole.summed(value.totals, value.held, atomic=value.atomic)
                    results[name] = self._stored_bounded(name, self._stored(whole, name, summed))
            else:
                results[name] = self._bounded(reasons[name], bounds[name], self.covered)
        return results

    def _values_of(self, numbers: NumbersOfRows, rows: slice) -> dict[str, Affine]:
        """Return output and gradients of some rows.

        Raises:
            WholeNeededError: the form does something else with sums over rows than to return them.

        """
        terms = self._read(numbers, rows)
        with np.errstate(all="ignore"):
            values = {"output": numbers.cast(self.form.forward(numbers, terms), "output")}
            if terms.grad_output is not None:
                values |= self._gradient_values(numbers, terms)
        for name, value in values.items():
            if isinstance(value, SumOverRows) is not (name in SUMMED):
                raise WholeNeededError(name)
        return values

    def _prepared(self) -> dict[str, Bounded]:
        """Make the statistics that the passes read; return the bounds of those that are returned."""
        statistics: dict[str, Bounded] = {}
        if self.problem.variance is not None:
            mean, rstd, stepped = self._running_statistics()
            self.numbers.computed = self.numbers.saved = (mean, rstd)
            self.numbers.stepped = (mean, stepped)
        else:
            mean, rstd, statistics = self._statistics()
            saved = (self._saved(mean, "mean"), self._saved(rstd, "rstd"))
            self.numbers.computed = saved if self.form.reads_saved else (_by_lane(mean), rstd)
            self.numbers.saved = saved
        return statistics

    def given(self) -> Mapping[str, Bounded]:
        """Bounds of a raw backward subject, whose statistics are exact inputs."""
        assert self.problem.rstd is not None
        rstd = self.numbers.read(self.problem.rstd.reshape(-1, 1), "rstd")
        mean = self.problem.mean
        exact_mean = np.zeros_like(rstd.centre) if mean is None else mean.reshape(-1, 1)
        self.numbers.saved = (self.numbers.read(exact_mean, "mean"), rstd)
        self.numbers.computed = self.numbers.saved
        # A raw backward op returns grad_bias although it takes no bias: any bias has the same gradient.
        held = self.dtypes.get("weight", self.dtypes["input"])
        self.numbers.dtypes = {"bias": held, **self.numbers.dtypes}
        return self._gradients(replace(self._terms(), bias=self.numbers.read(np.zeros((1, 1)))))

    def from_statistics(
        self, mean: Array, rstd: Array, of_mean: Array, of_rstd: Array
    ) -> tuple[Array, Array]:
        """Return the output that given statistics make, and what a computed one may differ from it.

        mean, rstd: (rows, 1). of_mean, of_rstd, (rows, 1): absolute differences of those that are used. Both
        results: (rows, columns); infinite where nothing is known.
        """
        numbers = self.numbers
        computed_mean = numbers.with_rest(numbers.exact(mean), np.broadcast_to(of_mean, mean.shape))
        computed_rstd = numbers.with_rest(numbers.exact(rstd), of_rstd * INFLATION)
        numbers.computed = numbers.stepped = numbers.saved = (computed_mean, computed_rstd)
        numbers.parts = (computed_mean, numbers.exact(np.zeros_like(mean)))
        with np.errstate(all="ignore"):
            output = numbers.cast(self.form.forward(numbers, self._terms()), "output")
            reach = (bound_of(output) + output.slack) * INFLATION
        shape = self.problem.input.shape
        return np.broadcast_to(output.centre, shape), np.broadcast_to(reach, shape)

    def _terms(self) -> Terms:
        return self._read(self.numbers, slice(None))

    def _read(self, numbers: AffineNumbers, rows: slice) -> Terms:
        """Read the operands of some rows."""
        problem, tile = self.problem, (rows, slice(None))
        arrays = {n: getattr(problem, n) for n in ("input", "weight", "bias", "grad_output")}
        read = {n: None if a is None else numbers.read(cut(a, tile), n) for n, a in arrays.items()}
        return Terms(
            x=read["input"],
            weight=read["weight"],
            bias=read["bias"],
            grad_output=read["grad_output"],
        )

    def _statistics(self) -> tuple[Affine, Affine, dict[str, Bounded]]:
        """Make the computed mean and rstd from their theorems."""
        claim, setting, rows = self.claim, self.setting, self.solution.statistics
        assert claim.variance is not None
        held = self._held() if self.form.reads_saved else None
        reduction = variance_options.reduction(
            claim.variance,
            claim.variance_options,
            variance.Reduction(
                arithmetic=setting.arithmetic,
                tree=setting.trees.statistics,
                divide_by_n=claim.divide_by_n,
                mean_contraction=claim.mean_contraction,
                clamp=claim.clamp,
                mean_cast=held,
            ),
        )
        with np.errstate(all="ignore"):
            moments = variance.algorithm(claim.variance).bound(rows, reduction)
            moments = _stored(moments, rows, held)
            root = rstd_bound(rows, moments, self.case.eps, self._eps_error(), setting.arithmetic)
            stored = _stores(moments, rows, reduction.mean_cast)
        self.moments = moments
        exact = np.full_like(self.covered, setting.arithmetic.format.holds(FORMATS[self.dtypes["input"]]))
        self._restrict(exact, "the accumulation format does not hold the input")
        self._restrict(np.asarray(moments.covered), moments.why)
        self._restrict(np.asarray(root.covered), root.why)
        self._restrict(stored, OVERFLOW)
        inside = self.covered[:, None]
        error = np.where(inside, np.reshape(moments.mean_error, (-1, 1)), 0.0)
        spread = np.where(inside, np.reshape(moments.mean_spread, (-1, 1)), 0.0)
        exact_mean = self.solution.mean
        mean = self._statistic("mean", exact_mean.high, exact_mean.radius, error, spread)
        rstd = self._rstd(root)
        if moments.parts is not None:
            self.numbers.parts = self._mean_parts(moments.parts)
        return mean, rstd, self._saved_bounds(mean, rstd)

    def _mean_parts(self, parts: variance.MeanParts) -> tuple[Affine, Affine]:
        """Return both numbers that are kept of the mean; what the first has too much, the second takes back.

        Exactly the second is zero; computed it is less by the error of the first, up to what it loses itself.
        """
        inside, exact = self.covered[:, None], self.solution.mean
        error, spread, lost = (
            np.where(inside, np.reshape(bound, (-1, 1)), 0.0)
            for bound in (parts.high_error, parts.high_spread, parts.low_error)
        )
        high = self._statistic("part of mean", exact.high, exact.radius, error, spread)
        low = self.numbers.with_rest(self.numbers.exact(np.zeros_like(high.centre)), lost)
        return high, replace(low, symbols={"part of mean": -error})

    def _rstd(self, root: RstdBound, name: str = "rstd") -> Affine:
        """Return the computed rstd: the exact one with a symbol of the size of its bound."""
        exact = self.solution.rstd
        magnitude, relative = (np.reshape(v, (-1, 1)) for v in (exact.magnitude(), root.relative_error))
        inside, proved = self.covered[:, None], root.covered[:, None]
        error = np.where(inside & proved, magnitude * relative, 0.0)
        rstd = self._statistic(name, exact.high, exact.radius, error, np.zeros_like(error))
        return self.numbers.without_bound(rstd, inside & ~proved, root.why)

    def _running_statistics(self) -> tuple[Affine, Affine, Affine]:
        """Make mean, rstd and a stepped rstd (`stepped_moments`) from running statistics: a root alone."""
        assert self.problem.variance is not None
        assert self.problem.mean is not None
        variances, arithmetic = np.asarray(self.problem.variance)[:, 0], self.setting.arithmetic
        nothing, everywhere = np.zeros(len(variances)), np.ones(len(variances), dtype=np.bool_)
        given = replace(self.solution.statistics, variance_lower=variances, variance_upper=variances)
        moments = variance.MomentBound(
            mean_error=nothing,
            mean_spread=nothing,
            variance_error=self._read_error("running_var", variances),
            covered=everywhere,
            why="",
            nonnegative=True,
        )
        narrow = self._narrower(self.dtypes["running_var"])
        with np.errstate(all="ignore"):
            root, stepped = (
                rstd_bound(given, moments, self.case.eps, self._eps_error(), arithmetic, held=held)
                for held in (None, None if narrow is None else FORMATS[narrow])
            )
        self._restrict(np.asarray(root.covered), root.why)
        mean = self.numbers.read(np.asarray(self.problem.mean), "running_mean")
        return mean, self._rstd(root), self._rstd(stepped, "stepped rstd")

    def _read_error(self, name: str, values: Array) -> Array:
        """Bound what reading a tensor loses: subnormals that are flushed, digits that sums do not hold."""
        arithmetic = self.setting.arithmetic
        lost = np.full(values.shape, arithmetic.addition_omega)
        if not arithmetic.format.holds(FORMATS[self.dtypes.get(name, self.dtypes["input"])]):
            lost += (arithmetic.u * np.abs(values) + arithmetic.omega) * INFLATION
        return lost

    def _statistic(self, name: str, high: Array, radius: Array, error: Array, spread: Array) -> Affine:
        centre = np.reshape(high, (-1, 1))
        slack = np.reshape(radius, (-1, 1)) + LOW_PART * np.abs(centre)
        value = self.numbers.with_rest(self.numbers.exact(centre, slack), spread)
        return replace(value, symbols={name: error})

    def _held(self) -> str | None:
        """Return the format of the saved statistics if it is narrower than the accumulation's."""
        saved = self.claim.saved_dtype
        return self._narrower(self.dtypes["input"] if saved == "input" else saved)

    def _narrower(self, held: str | None) -> str | None:
        """Return a format if it is narrower than the accumulation's."""
        rounds = held is not None and not FORMATS[held].holds(self.setting.arithmetic.format)
        return held if rounds else None

    def _saved(self, value: Affine, name: str) -> Affine:
        """Return the stored statistic that the backward pass reads: one machine number."""
        stored = replace(value, rest=np.zeros_like(value.rest))
        held = self._held()
        if held is None or (name == "mean" and self.form.reads_saved):
            return stored  # where the forward pass reads the saved mean, its bound has the rounding already
        self.numbers.dtypes = {**self.numbers.dtypes, "saved": held}
        return self.numbers.share(self.numbers.cast(stored, "saved"), f"saved {name}")

    def _saved_bounds(self, mean: Affine, rstd: Affine) -> dict[str, Bounded]:
        values = {"mean": self._saved(mean, "mean"), "rstd": self._saved(rstd, "rstd")}
        return {name: self.bounded(v, bound_of(v)[:, 0], self.covered) for name, v in values.items()}

    def _gradients(self, terms: Terms) -> dict[str, Bounded]:
        with np.errstate(all="ignore"):
            values = self._gradient_values(self.numbers, terms)
            return {name: self._stored_bounded(name, value) for name, value in values.items()}

    def _gradient_values(self, numbers: AffineNumbers, terms: Terms) -> dict[str, Affine]:
        """Return the gradients as they are stored; of some rows, sums over all are not stored yet."""
        evaluates = self.problem.variance is not None
        backward = (self.form.evaluation or constant_statistics) if evaluates else self.form.backward
        later = SUMMED if isinstance(numbers, NumbersOfRows) else frozenset[str]()
        return {
            name: value if name in later else self._stored(numbers, name, value)
            for name, value in backward(numbers, terms).items()
        }

    def _stored(self, numbers: AffineNumbers, name: str, value: Affine) -> Affine:
        """Return a gradient as it is stored, in the dtype of its argument."""
        role = name.removeprefix("grad_")
        return numbers.cast(value, role if role in numbers.dtypes else "input")

    def _rows_bounded(self, value: Affine) -> Bounded:
        return self.bounded(value, np.broadcast_to(bound_of(value), self.problem.input.shape), self.covered)

    def _stored_bounded(self, name: str, value: Affine) -> Bounded:
        """Bound a gradient."""
        return self._entries_bounded(value) if name in SUMMED else self._rows_bounded(value)

    def _entries_bounded(self, value: Affine) -> Bounded:
        """Bound sums over rows: they have a theorem only if each of their rows has."""
        bound = bound_of(value)[0]
        index = element_entries(self.numbers.parameter, self.numbers.rows, self.numbers.columns)
        bad = np.zeros(bound.shape[0], dtype=np.bool_)
        bad[np.unique(index[~self.covered])] = True
        return self.bounded(value, bound, ~bad)

    def bounded(self, value: Affine, bound: Array, covered: variance.Mask) -> Bounded:
        """Return a value's bound, which is proved where `covered` (by the first axis) and finite."""
        return self._bounded(value.reasons, bound, covered)

    def _bounded(self, of_value: frozenset[str], bound: Array, covered: variance.Mask) -> Bounded:
        reasons = combined_reasons(self.why, of_value, bound if covered.all() else bound[covered])
        covered = covered.reshape(-1, *[1] * (bound.ndim - 1)) & np.isfinite(bound)
        return Bounded(bound=bound, covered=covered, reasons=reasons)

    def _restrict(self, covered: variance.Mask, why: str) -> None:
        self.why.append((why, bool((self.covered & ~covered).any())))
        self.covered &= covered
        self.numbers.judged = self.covered[:, None]

    def _eps_error(self) -> float:
        """Relative error of eps as the kernel holds it: it may pass through a narrower argument first."""
        return error_of_scalar(self.case.eps, self.setting)

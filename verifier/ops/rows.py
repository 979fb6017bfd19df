"""What all norms over rows share: posing a case to the oracle, and composing their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from verifier import variance
from verifier.affine import Affine, AffineNumbers, bound_of
from verifier.arithmetic import FORMATS, Array
from verifier.case import Case
from verifier.numbers import Form, Terms
from verifier.ops import Bounded, Setting
from verifier.oracle.normalization import RowProblem, RowSolution
from verifier.rounded import round_to
from verifier.subjects import Claim
from verifier.variance.rstd import rstd_bound

OVERFLOW = "an intermediate may overflow"
"""Why there is no bound although the statistics have a theorem (T12)."""


def to_float64(tensor: torch.Tensor) -> Array:
    """Return the exact values of a tensor as a float64 array."""
    return tensor.detach().cpu().to(torch.float64).numpy()


def case_array(case: Case, name: str) -> Array | None:
    """Return the exact values of an argument, or None if it is absent."""
    tensor = case.tensors.get(name)
    return None if tensor is None else to_float64(tensor)


def combined_reason(reasons: list[tuple[str, bool]]) -> str:
    """Join the reasons that apply."""
    return "; ".join(dict.fromkeys(why for why, applies in reasons if applies and why))


def _entries(case: Case, problem: RowProblem) -> int:
    """Return the number of entries of weight, or of what weight would be."""
    if problem.weight is not None or problem.bias is not None:
        name = "weight" if problem.weight is not None else "bias"
        return case.given[name].numel()
    return problem.input.shape[0 if problem.parameter == "rows" else 1]


def rows_bounds(  # noqa: PLR0917 (an op's `bounds` takes the same, in the same order)
    case: Case,
    claim: Claim,
    form: Form,
    setting: Setting,
    solution: RowSolution,
    problem: RowProblem,
) -> Mapping[str, Bounded]:
    """Bound every output and gradient of a norm over rows, from its variance theorem and its form.

    Returns bounds in canonical rows: (rows, columns) for output and grad_input, (rows,) for mean and
    rstd, (entries,) for grad_weight and grad_bias.
    """
    composer = _Composer(case, claim, form, setting, solution, problem)
    return composer.given() if problem.rstd is not None else composer.own()


class _Composer:
    """Runs one form on one case; keeps what its steps share."""

    def __init__(  # noqa: PLR0917
        self,
        case: Case,
        claim: Claim,
        form: Form,
        setting: Setting,
        solution: RowSolution,
        problem: RowProblem,
    ) -> None:
        self.case, self.claim, self.form, self.setting = case, claim, form, setting
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

    def own(self) -> Mapping[str, Bounded]:
        """Bounds of a subject that computes its statistics itself."""
        results: dict[str, Bounded] = {}
        mean, rstd, statistics = self._statistics()
        self.numbers.computed = (mean, rstd)
        saved = self.claim.saved_dtype
        self.numbers.saved = (self._saved(mean, "mean", saved), self._saved(rstd, "rstd", saved))
        terms = self._terms()
        with np.errstate(all="ignore"):
            output = self.numbers.cast(self.form.forward(self.numbers, terms), "output")
        results["output"] = self._rows_bounded(output)
        results.update(statistics)
        if terms.grad_output is not None:
            results.update(self._gradients(terms))
        return results

    def given(self) -> Mapping[str, Bounded]:
        """Bounds of a raw backward subject, whose statistics are exact inputs."""
        assert self.problem.rstd is not None
        rstd = self.numbers.read(self.problem.rstd.reshape(-1, 1))
        mean = self.problem.mean
        exact_mean = np.zeros_like(rstd.centre) if mean is None else mean.reshape(-1, 1)
        self.numbers.saved = (self.numbers.read(exact_mean), rstd)
        self.numbers.computed = self.numbers.saved
        return self._gradients(self._terms())

    def _terms(self) -> Terms:
        problem = self.problem
        names = {"x": problem.input, "weight": problem.weight, "bias": problem.bias}
        arrays = {**names, "grad_output": problem.grad_output}
        return Terms(**{name: None if a is None else self.numbers.read(a) for name, a in arrays.items()})

    def _statistics(self) -> tuple[Affine, Affine, dict[str, Bounded]]:
        """Make the computed mean and rstd from their theorems."""
        claim, setting, rows = self.claim, self.setting, self.solution.statistics
        assert claim.variance is not None
        reduction = variance.Reduction(
            arithmetic=setting.arithmetic,
            tree=setting.trees.statistics,
            divide_by_n=claim.divide_by_n,
            mean_contraction=claim.mean_contraction,
            clamp=claim.clamp,
        )
        with np.errstate(all="ignore"):
            moments = variance.algorithm(claim.variance).bound(rows, reduction)
            root = rstd_bound(rows, moments, self.case.eps, self._eps_error(), setting.arithmetic)
        relative, covered, why = root.relative_error, root.covered, root.why
        self._restrict(np.asarray(moments.covered), moments.why)
        self._restrict(np.asarray(covered), why)
        inside = self.covered[:, None]
        error = np.where(inside, np.reshape(moments.mean_error, (-1, 1)), 0.0)
        spread = np.where(inside, np.reshape(moments.mean_spread, (-1, 1)), 0.0)
        exact_mean, exact_rstd = self.solution.mean, self.solution.rstd
        mean = self._statistic("mean", exact_mean.high, exact_mean.radius, error, spread)
        magnitude = np.reshape(exact_rstd.magnitude(), (-1, 1))
        rho = np.where(inside, magnitude * np.reshape(relative, (-1, 1)), 0.0)
        rstd = self._statistic("rstd", exact_rstd.high, exact_rstd.radius, rho, np.zeros_like(rho))
        return mean, rstd, self._saved_bounds(mean, rstd)

    def _statistic(self, name: str, high: Array, radius: Array, error: Array, spread: Array) -> Affine:
        centre = np.reshape(high, (-1, 1))
        slack = np.reshape(radius, (-1, 1)) + 2.0**-53 * np.abs(centre)
        value = self.numbers.with_rest(self.numbers.exact(centre, slack), spread)
        return replace(value, symbols={name: error})

    def _saved(self, value: Affine, name: str, saved_dtype: str | None) -> Affine:
        """Return the stored statistic that the backward pass reads: one machine number."""
        stored = replace(value, rest=np.zeros_like(value.rest))
        held = self.dtypes["input"] if saved_dtype == "input" else saved_dtype
        if held is None or FORMATS[held].precision >= self.setting.arithmetic.format.precision:
            return stored
        self.numbers.dtypes = {**self.numbers.dtypes, "saved": held}
        return self.numbers.share(self.numbers.cast(stored, "saved"), f"saved {name}")

    def _saved_bounds(self, mean: Affine, rstd: Affine) -> dict[str, Bounded]:
        saved = self.claim.saved_dtype
        values = {"mean": self._saved(mean, "mean", saved), "rstd": self._saved(rstd, "rstd", saved)}
        return {
            name: Bounded(bound=bound_of(v)[:, 0], covered=self.covered.copy(), why=combined_reason(self.why))
            for name, v in values.items()
        }

    def _gradients(self, terms: Terms) -> dict[str, Bounded]:
        with np.errstate(all="ignore"):
            values = self.form.backward(self.numbers, terms)
            roles = {"grad_input": "input", "grad_weight": "weight", "grad_bias": "bias"}
            results = {}
            for name, value in values.items():
                role = roles[name] if roles[name] in self.dtypes else "input"
                stored = self.numbers.cast(value, role)
                rows = name == "grad_input"
                results[name] = self._rows_bounded(stored) if rows else self._entries_bounded(stored)
        return results

    def _rows_bounded(self, value: Affine) -> Bounded:
        bound = np.broadcast_to(bound_of(value), self.problem.input.shape)
        covered = self.covered[:, None] & np.isfinite(bound)
        return Bounded(bound=bound, covered=covered, why=self._reason(bound[self.covered]))

    def _entries_bounded(self, value: Affine) -> Bounded:
        """Bound sums over rows: they have a theorem only if each of their rows has."""
        bound = bound_of(value)[0]
        index = self.numbers.element_entries()
        bad = np.zeros(bound.shape[0], dtype=np.bool_)
        bad[np.unique(index[~self.covered])] = True
        return Bounded(bound=bound, covered=~bad & np.isfinite(bound), why=self._reason(bound[~bad]))

    def _reason(self, bound: Array) -> str:
        return combined_reason([*self.why, (OVERFLOW, not bool(np.isfinite(bound).all()))])

    def _restrict(self, covered: Array, why: str) -> None:
        self.why.append((why, bool((self.covered & ~covered).any())))
        self.covered &= covered

    def _eps_error(self) -> float:
        """Relative error of eps as the kernel holds it: it may pass through a narrower argument first."""
        if self.case.eps == 0.0:
            return 0.0
        held = np.array(self.case.eps)
        arithmetic = self.setting.arithmetic
        for name in (self.setting.scalar_format, arithmetic.format.name):
            if name is not None:
                held = round_to(FORMATS[name], held, flush_to_zero=arithmetic.flush_to_zero)
        return abs(float(held) - self.case.eps) / abs(self.case.eps) * (1 + 2.0**-50)

"""A kernel that follows an op's form in rounded arithmetic, one rounding for each operation."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from online_softmax import OnlineRun

from verifier.arithmetic.abstract_number import Terms
from verifier.arithmetic.formats import FORMATS, ieee
from verifier.arithmetic.simulated import RoundedArithmetic, round_to
from verifier.arithmetic.trees.tree import pairwise, sequential
from verifier.bounds import variance
from verifier.bounds.variance import Reduction, options
from verifier.cases.recipe import build
from verifier.checks.support.truth import Truth
from verifier.ops import Setting, op, running_statistics
from verifier.oracle.softmax.solve import collect_softmax
from verifier.records.subject import Claim, Subject, Trees

TREES = Trees(statistics=pairwise(), row_gradients=sequential(), columns=pairwise())


@dataclass(frozen=True)
class Value:
    kernel: "RoundedKernel"
    array: np.ndarray

    def __add__(self, other):
        return self.kernel.value(self.kernel.rounded.add(self.array, other.array))

    def __sub__(self, other):
        return self.kernel.value(self.kernel.rounded.subtract(self.array, other.array))

    def __mul__(self, other):
        return self.kernel.value(self.kernel.rounded.multiply(self.array, other.array))

    def __truediv__(self, other):
        return self.kernel.value(self.kernel.rounded.divide(self.array, other.array))

    def __neg__(self):
        return self.kernel.value(-self.array)


@dataclass
class RoundedKernel:
    """`abstract_number.Numbers` that executes. `way` says which to take where a form offers several."""

    truth: Truth
    rounded: RoundedArithmetic
    entries: np.ndarray | None
    way: int = 0
    offered: int = 1
    computed: tuple | None = None
    stepped: tuple | None = None
    parts: tuple | None = None
    saved: tuple | None = None
    absent: np.ndarray | None = None

    def value(self, array):
        return Value(self, np.asarray(array))

    def constant(self, number):
        return self.value(self.rounded.of(np.full((1, 1), number)))

    def count(self):
        return self.constant(float(self.truth.case.columns))

    def moments(self, x):
        return self.computed

    def stepped_moments(self, x):
        return self.stepped

    def mean_parts(self, x):
        return self.parts

    def saved_moments(self, x):
        return self.saved

    def sum(self, value):
        return self.value(self._along(self._full(value), self.truth.setting.trees.row_gradients))

    def mean(self, value):
        return self.sum(value) / self.count()

    def parameter_sum(self, value, held=None):
        assert held is None
        values, entries = self._full(value), self.entries
        sums = [self._along(values[entries == e][None, :], TREES.columns) for e in range(entries.max() + 1)]
        return self.value(np.concatenate(sums, axis=1))

    def share(self, value, name, *, product=False):
        return value

    def cast(self, value, role):
        held = FORMATS[self.truth.case.dtype]
        narrow = held.precision < self.rounded.format.precision
        return self.value(round_to(held, value.array)) if narrow else value

    rounds = True

    def either(self, *ways):
        self.offered = max(self.offered, len(ways))
        return ways[self.way % len(ways)]

    def maximum(self, value):
        return self.value(self._full(self.value(self._present(value, -np.inf))).max(axis=1, keepdims=True))

    def exp(self, value):
        with np.errstate(under="ignore"):
            return self.value(self._present(self.value(self.rounded.of(np.exp(value.array))), 0.0))

    def exp2(self, value):
        with np.errstate(under="ignore"):
            return self.value(self._present(self.value(self.rounded.of(np.exp2(value.array))), 0.0))

    def _present(self, value, otherwise):
        if self.absent is None:
            return value.array
        return np.where(self.absent, otherwise, self._full(value))

    def log2_e(self):
        return self.constant(math.log2(math.e))

    def online_sum(self, x, *, base_two=False):
        low = -self.rounded.format.maximum / 4  # so far below that its power is 0
        values = np.maximum(self._full(self.value(self._present(x, low))), low)
        run = OnlineRun(
            arithmetic=self.truth.setting.arithmetic,
            tree=self.truth.setting.trees.statistics,
            choose=np.zeros,
            base_two=base_two,
        )
        return self.value(run.total(values))

    def log(self, value):
        return self.value(self.rounded.of(np.log(value.array)))

    def _full(self, value):
        return np.broadcast_to(value.array, (self.truth.case.rows, self.truth.case.columns))

    def _along(self, values, tree):
        nodes, root = values.copy(), 0
        for step in tree.steps(values.shape[1]):
            nodes[:, step.left] = self.rounded.add(nodes[:, step.left], nodes[:, step.right])
            root = int(step.left[0])
        return nodes[:, [root]]


def declared(name, **claim):
    """Return a subject of an op that takes every argument and claims a two-pass variance."""
    return Subject(
        function=_everything,
        name="simulated",
        path=Path(__file__),
        op=name,
        language="torch",
        dtypes=("float16", "bfloat16", "float32", "float64"),
        claim=Claim(**{"variance": "two_pass", "trees": TREES, "mean_contraction": "none", **claim}),
        mutates=("running_mean", "running_var") if name == "batch_norm" else (),
        returns=("output", "new_residual") if "add_" in name else ("output",),
    )


def _everything(
    input, *, residual=None, dim=-1, num_groups=1, running_mean=None, running_var=None, weight=None,
    bias=None, training=False, momentum=0.1, eps=1e-5, output=None, grad_output=None, mean=None, rstd=None,
    mask=None, attn_bias=None, scale=1.0, diagonal=0, dropout_mask=None, p=0.5,
):  # fmt: skip
    """Never called: a simulation or torch takes its place."""


def truth_of(subject, dtype, accumulates, recipe):
    """Return the truth of a recipe's case, or None where the op has no such case."""
    case = build(op(subject.op), subject, dtype, recipe, gradients=True)
    if case is None:
        return None
    return Truth(subject=subject, case=case, setting=Setting(arithmetic=ieee(accumulates), trees=TREES))


def simulate_every_way(truth):
    """Run the declared form in each of the ways that it offers; yields the results of each."""
    kernels = []
    yield simulate(truth, kernels=kernels)
    for way in range(1, kernels[0].offered):
        yield simulate(truth, way=way)


def simulate(truth, *, way=0, kernels=None):
    """Run the declared form on the truth's case; returns every result in canonical rows."""
    problem, form = truth.solved.problem, truth.op.form(truth.subject.claim, truth.case.dtype)
    kernel = RoundedKernel(truth, RoundedArithmetic(format=truth.setting.arithmetic.format), None, way)
    if kernels is not None:
        kernels.append(kernel)
    with np.errstate(all="ignore"):
        if problem.compares:
            return _softmax(kernel, form, problem)
        return _normalization(kernel, form, problem)


def _softmax(kernel, form, problem):
    x, further = kernel.value(problem.input), {}
    if problem.kept is not None:
        kernel.absent = collect_softmax(problem).absent
        further = {} if problem.scale == 1.0 else {"scale": kernel.constant(problem.scale)}
        further |= {} if problem.added is None else {"attn_bias": kernel.value(problem.added)}
    output = form.forward(kernel, Terms(x=x, further=further))
    terms = Terms(x=x, output=output, grad_output=kernel.value(problem.grad_output), further=further)
    gradient = form.backward(kernel, terms)["grad_input"]
    found = {"output": output, "grad_input": gradient}
    return {name: kernel.cast(value, "input").array for name, value in found.items()}


def _normalization(kernel, form, problem):
    shape = problem.input.shape
    parameter = problem.parameter
    if isinstance(parameter, str):
        parameter = np.broadcast_to(np.arange(shape[0])[:, None], shape)
    kernel.entries = parameter
    evaluates = problem.variance is not None
    mean, var = (problem.mean, problem.variance) if evaluates else _moments(kernel, problem.input)
    if not evaluates and hasattr(_algorithm(kernel), "simulate_parts"):
        parts = _algorithm(kernel).simulate_parts(kernel.rounded, problem.input, _reduction(kernel))
        kernel.parts = tuple(kernel.value(part[:, None]) for part in parts)
    root = kernel.rounded.square_root(kernel.rounded.add(var, kernel.rounded.of(np.array(problem.eps))))
    statistics = kernel.value(mean), kernel.value(kernel.rounded.divide(np.array(1.0), root))
    kernel.computed = kernel.saved = statistics
    kernel.stepped = (statistics[0], _root_in_steps(kernel, var)) if evaluates else None
    if not evaluates and kernel.truth.subject.claim.saved_dtype == "input":
        kernel.saved = tuple(kernel.cast(s, "input") for s in statistics)
        kernel.computed = kernel.saved if form.reads_saved else statistics
    kernel.stepped = kernel.stepped or kernel.computed
    operands = {n: getattr(problem, n) for n in ("weight", "bias", "grad_output")}
    terms = Terms(
        x=kernel.value(problem.input),
        **{n: None if a is None else kernel.value(a) for n, a in operands.items()},
    )
    backward = form.backward
    if evaluates and form.evaluation is not None:
        backward = form.evaluation
    found = {"output": form.forward(kernel, terms)}
    if not evaluates or form.evaluation is not None:
        found |= backward(kernel, terms)
    vectors = ("grad_weight", "grad_bias")
    results = {n: kernel.cast(v, "input").array for n, v in found.items()}
    results = {n: a.reshape(-1) if n in vectors else np.broadcast_to(a, shape) for n, a in results.items()}
    return results | _running(kernel, form, var, evaluates)


def _root_in_steps(kernel, var):
    total = kernel.cast(kernel.value(var) + kernel.constant(kernel.truth.case.eps), "running_var")
    root = kernel.cast(kernel.value(kernel.rounded.square_root(total.array)), "running_var")
    return kernel.cast(kernel.constant(1.0) / root, "running_var")


def _algorithm(kernel):
    return variance.algorithm(kernel.truth.subject.claim.variance)


def _reduction(kernel):
    claim = kernel.truth.subject.claim
    return options.reduction(
        claim.variance,
        claim.variance_options,
        Reduction(
            arithmetic=kernel.truth.setting.arithmetic,
            tree=TREES.statistics,
            mean_contraction="none",
        ),
    )


def _moments(kernel, values):
    mean, var = _algorithm(kernel).simulate(kernel.rounded, values, _reduction(kernel))
    return mean[:, None], var[:, None]


def _running(kernel, form, var, evaluates):
    case = kernel.truth.case
    if "running_mean" not in case.given or evaluates or case.columns < 2:
        return {}
    factor = kernel.constant(float(case.columns)) / kernel.constant(case.columns - 1.0)
    new = {"running_mean": kernel.saved[0], "running_var": kernel.value(var) * factor}
    update = form.update or running_statistics.weighted
    results = {}
    for name, value in new.items():
        held = kernel.value(case.given[name].double().numpy()[:, None])
        moved = update(kernel, held, value, kernel.constant(case.scalars["momentum"]))
        results[name] = kernel.cast(moved, name).array[:, 0]
    return results


def utilisation(truth, found):
    """Return, for each result, its largest certified error divided by its bound, where there is a bound."""
    worst = {}
    for name, values in found.items():
        bounded, exact = truth.bounds[name], truth.exact[name]
        low, _ = exact.error_of(np.ascontiguousarray(values, dtype=np.float64))
        bound, covered = (np.broadcast_to(a, values.shape) for a in (bounded.bound, bounded.covered))
        covered = covered & np.isfinite(exact.high)
        with np.errstate(all="ignore"):
            ratio = np.where(bound > 0, low / bound, np.where(low > 0, np.inf, 0.0))
        worst[name] = float(np.max(ratio[covered], initial=0.0))
    return worst


def variants(name):
    return range(op(name).variants)


__all__ = [
    "TREES",
    "declared",
    "replace",
    "simulate",
    "simulate_every_way",
    "truth_of",
    "utilisation",
    "variants",
]

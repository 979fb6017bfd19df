"""The proved bounds of layer norms that differ in their variance alone, and what the machine shows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from verifier.bounds.table import hold_rows
from verifier.bounds.variance import algorithms
from verifier.cases.recipe import DEFAULT_EPS, assemble
from verifier.checks.support.truth import Truth
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import Case
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_folder, load_subjects

LANGUAGES = ("triton", "cuda")
DTYPES = ("float32", "float16")
COLUMNS = (1024, 4096)
KAPPAS = (1.0, 1e2, 1e4)
RESULTS = ("mean", "rstd", "output")
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The proved bound of one result over all rows, and the largest error seen; NaN: no theorem, or not seen.

    The mean is in units of the row's standard deviation, rstd relative, the output (no weight, no bias) as it
    is: a row of it has standard deviation one.
    """

    proved: float
    observed: float


def case_of(dtype: str, columns: int, kappa: float) -> Case | None:
    """Return six rows with a mean of `kappa` standard deviations, or None if the dtype cannot hold them."""
    rows = hold_rows(columns, kappa, dtype, SEED)
    if rows is None:
        return None
    tensors = {"input": torch.from_numpy(rows).to(getattr(torch, dtype)), "weight": None, "bias": None}
    scalars = {"normalized_shape": (columns,), "eps": DEFAULT_EPS}
    words = {"hazard": "large_mean", "origin": f"kappa {kappa:g}"}
    return assemble(op("layer_norm"), dtype, tensors, scalars, {}, **words)


def subjects() -> list[Subject]:
    """Return the layer norms that share a skeleton, by algorithm: of each that has one in each language."""
    folder = builtin_folder()
    by_algorithm = [
        [folder / f"layer_norm_{name}_{language}.py" for language in LANGUAGES] for name in algorithms()
    ]
    files = [file for found in by_algorithm if all(f.is_file() for f in found) for file in found]
    return [subject for file in files for subject in load_subjects(file)]


def figures(subject: Subject, case: Case, runner: Runner | None) -> dict[str, Figure]:
    """Return bound and, where there is a runner, worst error of each result that the subject returns."""
    truth = Truth(subject=subject, case=case, setting=backend("machine").setting(subject, case.dtype))
    seen = runner.run(subject, case) if runner is not None else None
    if seen is not None and seen.status != "ok":
        raise RuntimeError(f"{subject.name}: {seen.status}: {seen.message}")
    deviation, rstd = _scales(truth)
    found = {}
    for name in RESULTS:
        if name not in subject.returns:
            continue
        unit = {"mean": 1.0 / deviation, "rstd": 1.0 / rstd, "output": np.ones_like(deviation)}[name]
        bounded = truth.bounds[name]
        shape = (case.rows, case.columns) if name == "output" else (case.rows,)
        unit = unit[:, None] if name == "output" else unit
        proved = np.where(bounded.covered, bounded.bound, np.nan) * np.ones(shape)
        observed = math.nan
        if seen is not None:
            actual = seen.outputs[name]
            assert actual is not None
            low, _ = truth.exact[name].error_of(truth.op.canonical(case, name, to_float64(actual)))
            observed = float(np.max(np.asarray(low).reshape(shape) * unit))
        found[name] = Figure(proved=float(np.max(proved * unit)), observed=observed)
    return found


def _scales(truth: Truth) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows' standard deviations and exact rstd."""
    values = to_float64(truth.case.given["input"])
    rstd = np.asarray(truth.exact["rstd"].high, dtype=np.float64).reshape(-1)
    return values.std(axis=1), rstd


def page(*, run: bool = True) -> Iterator[str]:
    """Yield the page; without `run` the observed errors are left out, and no kernel is compiled."""
    yield "# Error bounds per variance algorithm\n"
    yield (
        "The layer norms below share everything but the variance: one skeleton in Triton, one in CUDA C++. "
        "Each cell is the proved bound, then the worst error seen on six rows with a mean of kappa standard "
        "deviations, run in the PTX machine; the two are never mixed. "
        "The mean is in units of the row's standard deviation, rstd relative, "
        "and y (no weight, no bias) absolute, its own standard deviation being one. "
        "'no theorem': the hypotheses do not hold for at least one row, and nothing is promised there.\n"
    )
    yield (
        "In float16 the sums are float32, and y is rounded to float16: by at most 2^-11 of its value. "
        "Its numbers cannot hold a standard deviation of one together with a mean of 1e4.\n"
    )
    runner = Runner("machine") if run else None
    try:
        for dtype in DTYPES:
            for columns in COLUMNS:
                yield from _table(dtype, columns, runner)
    finally:
        if runner is not None:
            runner.close()


def _table(dtype: str, columns: int, runner: Runner | None) -> Iterator[str]:
    yield f"\n## {dtype}, rows of {columns}\n"
    heads = [f"{name}, kappa {kappa:g}" for kappa in KAPPAS for name in ("mean", "rstd", "y")]
    yield "| kernel | " + " | ".join(heads) + " |"
    yield "|---" * (len(heads) + 1) + "|"
    cases = [case_of(dtype, columns, kappa) for kappa in KAPPAS]
    for subject in subjects():
        cells: list[str] = []
        for case in cases:
            if case is None:
                cells += [f"not in {dtype}"] * len(RESULTS)
                continue
            found = figures(subject, case, runner)
            cells += [_cell(found[name]) for name in RESULTS]
        yield f"| {subject.name} | " + " | ".join(cells) + " |"


def _cell(figure: Figure) -> str:
    proved = "no theorem" if math.isnan(figure.proved) else f"{figure.proved:.1e}"
    return proved if math.isnan(figure.observed) else f"{proved}, {figure.observed:.1e}"

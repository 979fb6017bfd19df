"""Measures how sharp the running bound is: against the errors it bounds, against theorems, and on a wrong N.

    python benchmarks/running_bound.py [kernel ...]

prints the tables of docs/explanation/running-bound.md. Everything runs on the machine, on a CPU. Values are
drawn from fixed seeds, so that two runs print the same numbers. Stems of built-in kernels (such as
rms_norm_triton) narrow the first table; all of them take some ten minutes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strategies.values import Values
from verifier import load
from verifier.audit.examination import Examination
from verifier.cases.fixed_list import covering
from verifier.cases.recipe import Recipe, build
from verifier.checks import check
from verifier.checks.support.session import Session
from verifier.checks.support.truth import Truth
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.ops import op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import Case
from verifier.records.subject import Subject, Trees
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import builtin_files, builtin_folder, load_subjects

CASES = 8
"""Cases of each kernel and dtype, the first of the check's own list."""
NARROW = ("float16", "bfloat16")
LONG = 8192
WRONG = Path(__file__).parents[1] / "tests" / "faulty_kernels" / "divisor_n_minus_one_triton.py"
WRONG_COLUMNS = (4097, 8192, 16384)
SEEDS = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """The largest error divided by its running bound, by kernel, dtype and result.

    others: results of kernel and dtype that did not pass in some case, with their verdicts.
    """

    worst: dict[tuple[str, str, str], float]
    others: dict[tuple[str, str], list[str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("kernels", nargs="*", help="stems of built-in kernels; none: all of them")
    options = parser.parse_args()
    known = {file.stem: file for file in builtin_files()}
    unknown = sorted(set(options.kernels) - set(known))
    if unknown:
        parser.error(f"no built-in kernel {unknown[0]!r}")
    files = [known[stem] for stem in options.kernels or known]
    started = time.monotonic()
    with Runner("machine") as runner:
        for line in itertools.chain(
            against_errors(files, runner), against_theorems(runner), on_wrong_n(runner)
        ):
            print(line, flush=True)
    print(f"\n{time.monotonic() - started:.0f} s", file=sys.stderr)
    return 0


# ---- Errors divided by the running bound ----


def against_errors(files: list[Path], runner: Runner) -> Iterator[str]:
    """Yield the first table: the range over kernels of the largest error divided by the running bound."""
    found = Sharpness(worst={}, others={})
    for subject in itertools.chain.from_iterable(load_subjects(file) for file in files):
        for dtype in subject.dtypes:
            measure(subject, dtype, runner, found)
    yield f"## Largest error divided by the running bound, over {CASES} cases of each kernel and dtype\n"
    yield "| result | variance | float16 and bfloat16 | float32 |\n|---|---|---|---|"
    cells: dict[tuple[str, str], dict[bool, list[float]]] = defaultdict(lambda: {True: [], False: []})
    variances = {s.name: s.claim.variance or "none" for file in files for s in load_subjects(file)}
    for (name, dtype, result), worst in found.worst.items():
        variance = variances[name] if result in {"mean", "rstd"} else "any"
        cells[result, variance][dtype in NARROW].append(worst)
    for (result, variance), by_width in sorted(cells.items()):
        yield f"| {result} | {variance} | {span(by_width[True])} | {span(by_width[False])} |"
    yield ""
    yield "In brackets: how many kernels times dtypes. Results without a pass in some case:"
    for (name, dtype), verdicts in found.others.items():
        yield f"- {name} {dtype}: {', '.join(verdicts)}"


def measure(subject: Subject, dtype: str, runner: Runner, found: Sharpness) -> None:
    """Run the check on its first cases and keep the largest utilisation of every result that passes."""
    the_check, the_op = check("running_bound"), op(subject.op)
    reason = backend("machine").refuses(subject, dtype) or the_check.skips(subject, the_op, dtype, "machine")
    if reason:
        return
    examining = Examination(subject=subject, check_name="running_bound", dtype=dtype, runner=runner)
    plan = the_check.plan(subject, the_op)
    recipes = itertools.islice(covering(subject, plan), 10 * CASES)
    cases = (build(the_op, subject, dtype, r, gradients=plan.gradients) for r in recipes)
    others: dict[str, None] = {}
    for case in itertools.islice((c for c in cases if c is not None), CASES):
        for outcome in examining.judge(case)[0]:
            if outcome.verdict is Verdict.PASS and outcome.worst is not None:
                key = subject.name, dtype, outcome.output
                found.worst[key] = max(found.worst.get(key, 0.0), outcome.worst.utilisation)
            elif outcome.verdict is not Verdict.PASS:
                others[f"{outcome.output or 'case'} {outcome.verdict.name}"] = None
    if others:
        found.others[subject.name, dtype] = list(others)


def span(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return f"{low} ({len(values)})" if low == high else f"{low} to {high} ({len(values)})"


# ---- Theorems divided by the running bound ----


def against_theorems(runner: Runner) -> Iterator[str]:
    """Yield the second table: medians over elements of a two-pass layer norm, seeds together."""
    (subject,) = load(builtin_folder() / "layer_norm_two_pass_triton.py").subjects
    yield f"\n## Theorem divided by the running bound: layer_norm_two_pass_triton, 1 x {LONG}, medians\n"
    trees = {"tree declared": subject.claim.trees, "any order": Trees()}
    columns = [(dtype, name) for dtype in ("float16", "float32") for name in trees]
    yield "| result | " + " | ".join(f"{dtype}, {name}" for dtype, name in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    cells = {c: medians(subject.differing(trees=trees[c[1]]), c[0], runner) for c in columns}
    for result in ("output", "grad_input", "grad_weight"):  # of one row, grad_bias is grad_output
        yield f"| {result} | " + " | ".join(f"{cells[c][result]:.2g}" for c in columns) + " |"


def medians(subject: Subject, dtype: str, runner: Runner) -> dict[str, float]:
    """Return, for every result, the median over elements of the theorem divided by the running bound."""
    ratios: dict[str, list[np.ndarray]] = defaultdict(list)
    for seed in SEEDS:
        case = ordinary(subject, dtype, LONG, seed, gradients=True)
        truth, seen = execute(subject, case, runner, gradients=True)
        for name, bounded in truth.bounds.items():
            running = shadow_of(truth, name, seen)
            if running is not None:
                ratios[name].append(np.broadcast_to(bounded.bound, running.shape) / running)
    return {name: float(np.median(np.concatenate(found, axis=None))) for name, found in ratios.items()}


def ordinary(subject: Subject, dtype: str, columns: int, seed: int, *, gradients: bool) -> Case:
    """Return one row of normal values with normal weight, bias and grad_output."""
    drawn = {n: Values(seed=seed + i) for i, n in enumerate(("input", "weight", "bias", "grad_output"))}
    case = build(
        op(subject.op), subject, dtype, Recipe(rows=1, columns=columns, **drawn), gradients=gradients
    )
    assert case is not None
    return case


def execute(subject: Subject, case: Case, runner: Runner, *, gradients: bool) -> tuple[Truth, dict[str, Any]]:
    """Run a case with its bounds; returns the truth with what the compiled code says, and the outputs."""
    setting = backend("machine").setting(subject, case.dtype)
    session = Session(subject=subject, case=case, backend="machine", setting=setting, run=runner.run)
    seen = session.execute(experiment="verifier.checks.support.running_bound_run:bounds", gradients=gradients)
    assert not seen.found.lost
    return session.truth, seen.outputs


def shadow_of(truth: Truth, name: str, outputs: dict[str, Any], word: str = "bound") -> np.ndarray | None:
    """Return what the machine found for an output, in canonical rows."""
    found = outputs.get(f"{name}|{word}")
    if found is None:
        return None
    return np.asarray(truth.op.canonical(truth.case, name, found.reshape(truth.shape_of(name)).numpy()))


# ---- A variance divided by N - 1 ----


def on_wrong_n(runner: Runner) -> Iterator[str]:
    """Yield the third table: the error of N - 1 for N divided by both bounds, at its worst element."""
    (subject,) = load(WRONG).subjects
    yield "\n## A variance divided by N - 1, float32, no tree declared: largest error divided by the bound\n"
    yield "| N | seed | any order | running bound |\n|---|---|---|---|"
    for columns, seed in itertools.product(WRONG_COLUMNS, SEEDS):
        case = ordinary(subject, "float32", columns, seed, gradients=False)
        truth, seen = execute(subject, case, runner, gradients=False)
        running = shadow_of(truth, "output", seen)
        assert running is not None
        low, _ = truth.exact["output"].error_of(
            truth.op.canonical(case, "output", to_float64(seen["output"]))
        )
        theorem = np.broadcast_to(truth.bounds["output"].bound, running.shape)
        yield f"| {columns} | {seed} | {(low / theorem).max():.2g} | {(low / running).max():.3g} |"


if __name__ == "__main__":
    sys.exit(main())

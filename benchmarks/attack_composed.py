"""Attacks on what follows the statistics: outputs and gradients, simulated and of torch's own CPU kernels."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strategies.hazards import hazard_names
from strategies.values import Values
from verifier.arithmetic.formats import ieee
from verifier.arithmetic.trees.tree import any_order, pairwise, sequential, tree
from verifier.cases.plan import EPS_CHOICES
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.truth import Truth
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.ops import Setting, op
from verifier.records.subject import Subject, Trees
from verifier.subjects.load_file import builtin_files, load_subjects

Random = np.random.Generator

FORMATS = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
    ("bfloat16", "float32"),
    ("float64", "float64"),
)
"""Dtypes of the tensors, and of all that is computed."""
NAMED = (sequential(), pairwise(), tree(lanes=4), tree(lanes=16), tree(chunks=3))
GATED = tuple(f"{norm}_norm_{gate}_gate" for norm in ("layer", "rms") for gate in ("silu", "sigmoid"))
GATED += tuple(f"{gate}_gate_{norm}_norm" for norm in ("layer", "rms") for gate in ("silu", "sigmoid"))
OFFSET = ("layer_norm_one_plus_weight", "rms_norm_one_plus_weight")
WHOLE = ("dynamic_tanh", "poly_norm")
"""Ops with a parameter that acts on all elements."""
ADDED = tuple(f"{before}add_{norm}_norm" for before in ("", "dropout_") for norm in ("layer", "rms"))
NORMS = ("layer_norm", "rms_norm", *ADDED, "l2_norm", *OFFSET, *GATED, *WHOLE)
MASKED = tuple(f"{what}_{of}" for what in ("masked", "causal") for of in ("softmax", "log_softmax"))
SOFTMAXES = ("softmax", "log_softmax", *MASKED)
OTHERS = (*SOFTMAXES, "group_norm", "instance_norm", "batch_norm")
MODERATE = ("ordinary", "small_integers", "lognormal", "alternating_signs")
"""Values of weight, bias and grad_output for torch's kernels, as audits draw them.

At the largest numbers torch's group_norm overflows in rstd * weight and in sums of grad_output, where its
declared form has grad_output * weight and sums of grad_output * mean * rstd: the bounds of roundings are the
same, those of overflow are not.
"""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """Largest error / bound of one result in one case. checks: elements that have a bound."""

    name: str
    result: str
    utilisation: float
    checks: int
    what: object


def composed(random: Random) -> Iterator[Attacked]:
    """Yield results of forms that are executed as declared, one rounding for each operation, without end."""
    # The simulated kernels are those of the tests: there is one way to execute a form.
    tests = Path(__file__).parents[1] / "tests"
    sys.path += [str(tests / folder) for folder in ("support", "ops") if str(tests / folder) not in sys.path]
    import rounded_ops
    import simulated_kernel

    while True:
        name = str(random.choice([*NORMS, *OTHERS]))
        dtype, accumulates = FORMATS[random.integers(len(FORMATS))]
        if name in {*SOFTMAXES, *GATED, "dynamic_tanh"} and dtype == "float64":
            continue  # exponentials are NumPy's, and correctly rounded to what is narrower than float64
        form = str(random.choice(list(op(name).forms)))
        simulation: Any = rounded_ops if name in OTHERS else simulated_kernel
        claim = _norm_claim(random, name, form, dtype) if name in NORMS else _other_claim(random, name)
        subject = rounded_ops.declared(name, formula=form, **claim)
        drawn = recipe(
            random,
            op(name).variants,
            hazard_names(finite_only=True),
            needed=frozenset(op(name).tensors).difference(op(name).optional),
        )
        case = build(op(name), subject, dtype, drawn, gradients=True)
        if case is None:
            continue
        setting = Setting(arithmetic=ieee(accumulates), trees=subject.claim.trees)
        truth = Truth(subject=subject, case=case, setting=setting)
        way = int(random.integers(16))  # taken modulo the number of ways that the form offers
        found = simulation.utilisation(truth, simulation.simulate(truth, way=way))
        for result, worst in found.items():
            checks = int(np.broadcast_to(truth.bounds[result].covered, truth.exact[result].high.shape).sum())
            what = (form, claim, dtype, accumulates, case.origin)
            yield Attacked(name=name, result=result, utilisation=worst, checks=checks, what=what)


def _norm_claim(random: Random, name: str, form: str, dtype: str) -> dict[str, Any]:
    """Draw a declaration of a norm over rows."""
    chosen = (*NAMED, any_order())[random.integers(len(NAMED) + 1)]
    mixed = bool(random.integers(2)) and dtype != "float64"  # a fused operation of float64 is not simulated
    usual = "rms" if "rms_norm" in name else str(random.choice(["two_pass", "textbook", "welford"]))
    options = {"corrects_mean": bool(random.integers(2))} if op(name).forms[form].reads_parts else {}
    return {
        "variance": (options and "two_pass_corrected_mean") or (usual if op(name).needs_variance else None),
        "variance_options": options,
        "trees": Trees(statistics=chosen, row_gradients=chosen, columns=chosen),
        "mean_contraction": "mixed" if mixed else "none",
        "divide_by_n": "reciprocal" if mixed else str(random.choice(["division", "either"])),
        "saved_dtype": str(random.choice(["input", "bfloat16"])) if random.random() < 0.3 else None,
    }


def _other_claim(random: Random, name: str) -> dict[str, Any]:
    """Draw a declaration of another op: the simulation takes one tree for all sums over a row."""
    chosen = NAMED[random.integers(len(NAMED))]
    statistics = chosen if name in SOFTMAXES else pairwise()
    trees = Trees(statistics=statistics, row_gradients=chosen, columns=pairwise())
    return {"trees": trees, "saved_dtype": "input" if name == "batch_norm" else None}


def recipe(
    random: Random, variants: int, others: tuple[str, ...], *, needed: frozenset[str] = frozenset()
) -> Recipe:
    """Draw a case of up to 12 rows of up to 200 columns; others: hazards of all but the input.

    needed: tensors that are never left out.
    """

    def values(hazards: tuple[str, ...]) -> Values:
        hazard = "ordinary" if random.random() < 0.2 else str(random.choice(hazards))
        scale = int(random.integers(-12, 9)) if random.random() < 0.3 else 0
        return Values(
            hazard=hazard, strength=int(random.integers(8)), seed=int(random.integers(2**31)), scale=scale
        )

    return Recipe(
        rows=int(random.integers(1, 13)),
        columns=int(random.choice([1, 2, 3, 7, 16, 33, 64, 200])),
        variant=int(random.integers(variants)),
        input=values(hazard_names(finite_only=True)),
        weight=None if random.random() < 0.2 and "weight" not in needed else values(others),
        bias=None if random.random() < 0.3 and "bias" not in needed else values(others),
        grad_output=values(others),
        further=tuple((name, values(others)) for name in ("gate", "mask", "attn_bias", "alpha")),
        eps=float(random.choice(EPS_CHOICES)),
    )


def controls(random: Random) -> Iterator[Attacked]:
    """Yield results of torch's own CPU kernels, judged by the formula that they really have, without end."""
    warnings.simplefilter("ignore")  # torch warns of variances of one value
    torch.set_num_threads(1)
    subjects = [s for s in chain.from_iterable(map(load_subjects, builtin_files())) if _is_torchs_own(s)]
    place = backend("eager")
    while True:
        subject = subjects[random.integers(len(subjects))]
        dtype = str(random.choice(subject.dtypes))
        drawn = recipe(random, op(subject.op).variants, MODERATE)
        case = build(op(subject.op), subject, dtype, drawn, gradients=subject.differentiable)
        if case is None or any(d.where is None or d.where(case) for d in subject.known_defects):
            continue
        seen = execute(subject, case, backend=place, gradients=subject.differentiable)
        if seen.status != "ok":
            continue
        truth = Truth(subject=subject, case=case, setting=place.setting(subject, dtype))
        for outcome in judge(truth, seen, tuple(seen.outputs)):
            worst = 0.0 if outcome.worst is None or not outcome.decided else outcome.worst.utilisation
            yield Attacked(
                name=subject.name,
                result=outcome.output,
                utilisation=worst,
                checks=outcome.decided,
                what=(dtype, case.origin),
            )


def _is_torchs_own(subject: Subject) -> bool:
    """Return whether a subject is one of torch's functions, and no norm by hand in torch operators."""
    return subject.name == f"{subject.op}_torch"

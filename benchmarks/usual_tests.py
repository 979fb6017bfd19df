"""Usual tests of a kernel: torch's results on N(0, 1) data at natural shapes, within a tolerance."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch
from usual_references import DIFFERENTIABLE, composed

from strategies.values import Values
from verifier.audit.mutation.family import copied
from verifier.audit.mutation.kills import Fate, Question, fate
from verifier.audit.mutation.mutation import Mutation
from verifier.cases.recipe import Recipe, build
from verifier.execution import Runner
from verifier.execution.backends import default_backend
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.subject import Subject
from verifier.subjects.load_file import LoadError, load_subjects

NATURAL = ((64, 512), (41, 123))
"""Rows and columns of usual tests: a power of two, and one that is none."""
DTYPES = ("float32", "float16")
HABITS = {
    "torch": {"float32": (1.3e-6, 1e-5), "float16": (1e-3, 1e-5)},
    "1e-2": {"float32": (1e-2, 1e-2), "float16": (1e-2, 1e-2)},
    "Liger": {"float32": (1e-5, 1e-5), "float16": (1e-2, 1e-2)},
}
"""Relative and absolute tolerance by dtype: torch.testing's defaults, the guess most often seen, and what the
tests of Liger-Kernel take for its norms (its bfloat16 for float16)."""


def judged(path: str, mutation: Mutation | None, question: Question) -> tuple[Fate, tuple[str, ...]]:
    """Audit a mutant (the original if there is no mutation), and ask the usual tests."""
    usual = usual_tests(path, mutation)
    return fate(path, mutation, question), usual


def usual_tests(path: str, mutation: Mutation | None) -> tuple[str, ...]:
    """Return the habits that find a mutant: a difference beyond the tolerance, an error, or no answer."""
    found: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="norm-verifier-usual-") as folder:
        try:
            subjects = load_subjects(copied(Path(path), Path(folder), mutation))
        except LoadError:
            return tuple(HABITS)
        for subject, dtype, (rows, columns) in itertools.product(subjects, DTYPES, NATURAL):
            if dtype in subject.dtypes and len(found) < len(HABITS):
                found |= _beyond(subject, dtype, rows, columns)
    return tuple(name for name in HABITS if name in found)


def _beyond(subject: Subject, dtype: str, rows: int, columns: int) -> set[str]:
    case = natural(subject, dtype, rows, columns)
    place, _ = default_backend(subject)
    if case is None or place is None:
        return set()
    raw = not op(subject.op).differentiable
    with Runner(place, case_seconds=60.0) as runner:
        seen = runner.run(subject, case, gradients=not raw and subject.differentiable)
    if seen.status != "ok":
        return set(HABITS)
    wanted = reference(case)
    if not raw and not subject.differentiable:
        wanted = {"output": wanted["output"]}
    return {
        name
        for name, tolerances in HABITS.items()
        if any(not close(seen.outputs.get(key), value, *tolerances[dtype]) for key, value in wanted.items())
    }


def close(found: torch.Tensor | None, wanted: torch.Tensor, relative: float, absolute: float) -> bool:
    """Return whether a result has the form of what is wanted, and is near it."""
    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return False
    return torch.allclose(found, wanted, rtol=relative, atol=absolute)


def natural(subject: Subject, dtype: str, rows: int, columns: int) -> Case | None:
    """Return a contiguous case of N(0, 1) data with every tensor that the subject takes."""
    the_op = op(subject.op)
    recipe = Recipe(
        rows=rows, columns=columns, weight=Values(seed=1), bias=Values(seed=2), grad_output=Values(seed=3)
    )
    return build(the_op, subject, dtype, recipe, gradients=True)


def reference(case: Case) -> dict[str, torch.Tensor]:
    """Return torch's results and gradients, computed in float32 and rounded to the dtype of the case."""
    given = {name: t.float().clone() if t.is_floating_point() else t for name, t in case.given.items()}
    taken = {name: given[name].requires_grad_() for name in DIFFERENTIABLE if name in given}
    name, raw = case.op.removesuffix("_backward"), case.op.endswith("_backward")
    results = composed(name, given, case.scalars)
    wanted = {} if raw else {key: value.detach() for key, value in results.items()}
    incoming = {"output": given.get("grad_output"), "new_residual": given.get("grad_new_residual")}
    read = {key: grad for key, grad in incoming.items() if grad is not None}
    if read:
        found = torch.autograd.grad([results[key] for key in read], list(taken.values()), list(read.values()))
        wanted |= {f"grad_{key}": value for key, value in zip(taken, found, strict=True)}
    return {key: value.to(case.given["input"].dtype) for key, value in wanted.items()}

"""Says of a mutant that nothing killed at which shapes it computes what the original does, for all inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from strategies.values import Values
from verifier.cases.recipe import Recipe, build
from verifier.checks.support.equivalence import compared_codes
from verifier.execution import Runner
from verifier.execution.backend import Power
from verifier.execution.backends import can, default_backend
from verifier.execution.preloaded import StartError
from verifier.ops import op
from verifier.records.certificate import Refusal
from verifier.records.comparison import DEGREES, Degree
from verifier.records.subject import Subject
from verifier.subjects.load_file import LoadError, load_subjects

SHAPES = ((2, 8), (3, 70))
"""Rows and columns of what is compared: few, for each is recorded operation by operation. One is a power of
two, the other no multiple of a vector."""
_SHOWN = ("bits", "zeros")


def alike(original: Path, copy: Path, *, seconds: float) -> str:
    """Return shapes at which every result of two kernel files is the same for all inputs, in words.

    Nothing where that is not shown at a single shape: then nothing is known. What is shown holds for the
    layout, the dtype and the arguments of a case, and speaks of no other shape. seconds: limit of one run.
    """
    try:
        pairs = [*zip(load_subjects(original), load_subjects(copy), strict=True)]
        found = [_alike(*pair, seconds=seconds) for pair in pairs]
    except (LoadError, StartError, ValueError):
        return ""
    return "; ".join(found) if all(found) else ""


def _alike(first: Subject, second: Subject, *, seconds: float) -> str:
    place, _ = default_backend(first)
    if place is None or not can(place, Power.SHADOWS):
        return ""  # nothing is recorded there
    gradients = bool(op(first.op).differentiable) and first.differentiable
    with Runner(place, case_seconds=seconds) as runner:
        degrees = [_degree(first, second, shape, runner, gradients=gradients) for shape in SHAPES]
    if None in degrees:
        return ""
    shown = DEGREES[max((one for one in degrees if one is not None), key=[*DEGREES].index)]
    shapes = " and ".join(f"{rows} x {columns}" for rows, columns in SHAPES)
    return f"for all inputs of {shapes} in {first.dtypes[0]}: {shown}"


def _degree(
    first: Subject, second: Subject, shape: Sequence[int], runner: Runner, *, gradients: bool
) -> Degree | None:
    """Return how far all results are the same at a shape; None where one is not, or is not shown to be."""
    rows, columns = shape
    recipe = Recipe(rows=rows, columns=columns, weight=Values(seed=1), bias=Values(seed=2))
    case = build(op(first.op), first, first.dtypes[0], recipe, gradients=gradients)
    if case is None:
        return None
    found = compared_codes(first, second, case, runner=runner, gradients=gradients)
    if isinstance(found, Refusal) or found.alone or not found.results:
        return None
    degree = max((one.degree for one in found.results), key=[*DEGREES].index)
    return degree if degree in _SHOWN else None

"""peak_norm: a row divided by its largest magnitude, with a problem of its own for the oracle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from verifier.arithmetic.abstract_number import Form
from verifier.arithmetic.formats import INFLATION, Array
from verifier.ops import Bounded, Op, Setting, Shapes, Solved, Tensors
from verifier.ops.rows import results
from verifier.ops.rows.compose_bounds import case_array
from verifier.oracle.climb import Comparison
from verifier.oracle.enclosure import TINY, UNIT, Enclosure
from verifier.records.case import Case, Extents
from verifier.records.subject import Claim


@dataclass(frozen=True, kw_only=True)
class PeakSolution:
    output: Enclosure

    @property
    def enclosures(self) -> Mapping[str, Enclosure]:
        return {"output": self.output}


@dataclass(frozen=True, kw_only=True)
class PeakProblem:
    """Rows that are divided by their largest magnitude, which is one of them: one rounding of float64."""

    input: Array
    centred = False
    weight = None
    parameter = None
    compares = True

    def solve(self, rung="auto", bits=None) -> PeakSolution:
        with np.errstate(all="ignore"):
            high = self.input / np.max(np.abs(self.input), axis=1, keepdims=True, initial=0.0)
        return PeakSolution(
            output=Enclosure(high=high, low=np.zeros_like(high), radius=UNIT * np.abs(high) + TINY)
        )

    def rungs(self, name: str, first: Enclosure) -> Iterator[tuple[str, Comparison]]:
        yield "float64", lambda still: first[still]

    def in_field(self, field, form):
        raise NotImplementedError("the largest of a row has no counterpart in a field")


def shapes(rows: int, columns: int, variant: int) -> Shapes:
    return Shapes(tensors=dict.fromkeys(("input", "grad_output"), (columns, rows)))


def canonical(extents: Extents, name: str, array: Array) -> Array:
    return array.T


def extents(tensors: Tensors, scalars: Mapping[str, Any]) -> tuple[int, int, Mapping[str, Any]]:
    x = tensors["input"]
    assert x is not None
    return x.shape[1], x.shape[0], scalars


def links(tensors: Tensors, scalars: Mapping[str, Any]) -> Mapping[str, list[tuple[str, int]]]:
    names = [name for name in ("input", "grad_output") if tensors.get(name) is not None]
    return {f"axis {axis}": [(name, axis) for name in names] for axis in range(2)}


def problem(case: Case) -> PeakProblem:
    x = case_array(case, "input")
    assert x is not None
    return PeakProblem(input=x.T)


def exact(solution: PeakSolution) -> Mapping[str, Enclosure]:
    return solution.enclosures


def bounds(
    solved: Solved[PeakProblem, PeakSolution], claim: Claim, form: Form, setting: Setting
) -> Mapping[str, Bounded]:
    """Bound one division."""
    arithmetic, output = setting.arithmetic, solved.solution.output
    bound = (arithmetic.division * arithmetic.u * output.magnitude() + arithmetic.omega) * INFLATION
    return {"output": Bounded(bound=bound, covered=np.isfinite(bound), reasons=("a row is zero",))}


def forward(k, t):
    raise NotImplementedError("its bound is one line, and needs no form")


OP = Op(
    name="peak_norm",
    summary="x / max(abs(x)) over the first axis",
    tensors=("input",),
    differentiable=("input",),
    forms={"canonical": Form(name="canonical", forward=forward, backward=forward)},
    shapes=shapes,
    canonical=canonical,
    problem=problem,
    exact=exact,
    bounds=bounds,
    expected=results.expected,
    extents=extents,
    links=links,
    needs_variance=False,
)

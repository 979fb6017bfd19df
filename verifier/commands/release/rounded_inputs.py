"""What rounding an input to its dtype moves of the exact results: a price of the dtype, not of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from verifier.arithmetic.formats import FORMATS, Array
from verifier.arithmetic.simulated import round_to
from verifier.checks.support.output_verdict import row_scale
from verifier.checks.support.truth import Answer
from verifier.checks.support.worst_element import ulp_of
from verifier.commands.cost_of_dtype import BLAMED, SEEDS, swept_case
from verifier.commands.release.record import InputRounding
from verifier.ops.rows.compose_bounds import to_float64
from verifier.records.case import Case
from verifier.records.subject import Subject

WIDER = {"float16": "float32", "bfloat16": "float32", "float32": "float64"}
"""The dtype in which an input stands before it is rounded; nothing is wider than float64 here."""


def input_rounding(subject: Subject, dtype: str) -> Iterator[InputRounding]:
    """Yield by kappa and output the distance of exact results of an input and of what it is rounded to.

    In ulp of the dtype at the scale of the row, as all errors are. The unrounded input is drawn evenly from
    those that round to the one of the sweep; weight, bias and the gradient of the output stay.
    """
    for kappa in BLAMED if dtype in WIDER else ():
        case = swept_case(subject, dtype, kappa, 1.0, SEEDS[0])
        if case is None or (subject.domain is not None and subject.domain.excludes(case)):
            continue
        rounded = Answer(subject=subject, case=case).exact
        wide = Answer(subject=subject, case=unrounded(case)).exact
        for name in ("output", "grad_input", "grad_weight", "grad_bias"):
            if name not in rounded or name not in wide:
                continue
            exact = np.asarray(rounded[name].high)
            with np.errstate(all="ignore"):
                moved = (np.asarray(wide[name].high) - exact) + (
                    np.asarray(wide[name].low) - np.asarray(rounded[name].low)
                )
                size = np.abs(moved) / ulp_of(np.maximum(row_scale(exact), np.abs(exact)), dtype)
            size = size[np.isfinite(size)]
            if size.size:
                yield InputRounding(
                    kappa=case.kappa, output=name, worst=float(size.max()), mean=float(size.mean())
                )


def unrounded(case: Case) -> Case:
    """Return a case in a wider dtype whose input rounds to that of the case; all else is the same."""
    wide = WIDER[case.dtype]
    held = getattr(torch, wide)
    tensors = {name: None if t is None else t.to(held) for name, t in case.tensors.items()}
    values = to_float64(case.given["input"])
    tensors["input"] = torch.from_numpy(_before_rounding(values, case.dtype, wide)).to(held)
    return replace(case, dtype=wide, tensors=tensors)


def _before_rounding(values: Array, dtype: str, wide: str) -> Array:
    """Return numbers of a wider format that round to the given ones of a dtype."""
    shift = np.random.default_rng(SEEDS[0]).uniform(-0.5, 0.5, size=values.shape)
    near = round_to(FORMATS[wide], values + shift * ulp_of(np.abs(values), dtype))
    return np.where(round_to(FORMATS[dtype], near) == values, near, values)

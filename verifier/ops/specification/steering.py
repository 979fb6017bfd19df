"""The floats that steer a run in a finite field: they choose which element is the largest, not what it is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from verifier.arithmetic.formats import FORMATS
from verifier.ops import from_rows, op
from verifier.ops.rows.compose_bounds import to_float64
from verifier.oracle.softmax.problem import ADDED, SCALE

if TYPE_CHECKING:
    from verifier.records.case import Case
    from verifier.records.subject import Subject

EXACT = {"momentum": 0.25, SCALE: 0.5, "p": 0.75}
"""Scalars that every format holds, as it does 1 / (1 - p): no rounding of theirs is part of the formula."""
LARGEST_EXPONENT = 4.0
"""Of a softmax's inputs: exp(-8) is a normal number in every format."""
LARGEST_PART = LARGEST_EXPONENT / 2.0
"""Of a score's two parts, what is scaled and what is added."""
SCORE_BITS = 16
"""Of scores at most: float32 has eight more, enough to keep two apart that are multiplied with log2(e)."""
FEW_BITS = 5
"""Of scores that stay apart in every format. With l = log2(e) multiplied into both parts, a score is
x * (scale * l) + b * l, and each part is at most 2 * l: the roundings of l, of three products and of the sum
move it by 7 * 2 * l * 2**-8 = 0.08 at most in bfloat16, and two scores differ by 2**-3 * l = 0.18."""

GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
"""Multiples of it, modulo 1, are spread evenly."""


def steering(case: Case, subject: Subject) -> Case:
    """Return the case with scalars that every format holds, where the subject is told them, and tame numbers.

    subject: whose arguments these are.
    """
    told = {n: number for n, number in EXACT.items() if n in case.scalars and n in subject.signature}
    held = replace(case, scalars={**case.scalars, **told})
    return _tame(held) if op(case.op).compared is None else _on_steps(held, SCORE_BITS)


def far_apart(case: Case) -> Case | None:
    """Return the case with few scores, of which no kernel rounds two to one; None if none are compared."""
    the_op = op(case.op)
    posed = None if the_op.own else the_op.problem(case)
    return _on_steps(case, FEW_BITS) if posed is not None and posed.compares else None


def _tame(case: Case) -> Case:
    """Return small numbers where exponentials are taken: floats steer, and where they vanish so do elements.

    No exponential of a difference of these, nor one divided by their sum, vanishes in any format: those that
    do are of the finite numbers with which a kernel masks.
    """
    the_op = op(case.op)
    names = (*(() if the_op.needs_variance else ("input",)), *the_op.varied)
    held = (n for n in names if n in case.given and case.elements and case.given[n].is_floating_point())
    scaled = {n: _scaled(case.given[n], LARGEST_EXPONENT) for n in held}
    return replace(case, tensors={**case.tensors, **scaled})


def _on_steps(case: Case, most_bits: int) -> Case:
    """Return tame scores, input * scale + attn_bias, that no kernel rounds: each is a whole number of steps.

    Of numbers that are equal, a kernel may find any to be the largest, and another one in each lane. So
    elements must be the same where scores are the same *for the kernel*, however it computes them: in the
    input's format or in float32, with or without a fused operation, log2(e) multiplied into scale and
    attn_bias or not. Here all of that gives what exact arithmetic gives: both parts and every sum of them
    have no more bits than the narrowest format, and scores that differ do so by far more than float32 rounds.
    The input keeps its order in each row, and no two numbers of it are equal where there are steps enough:
    what are the same few numbers, or small beside other rows, would leave elements no freedom.
    What is added and is no -inf becomes numbers spread over all that may be added. Models add zeros, and -1e4
    to mask: neither would tell one formula from another in a run on the numbers' own elements.
    """
    if not case.elements:
        return case
    parts = {n: case.given[n] for n in ("input", ADDED) if n in case.given}
    bits = min(FORMATS[str(t.dtype).removeprefix("torch.")].precision for t in parts.values())
    step = 2.0 * LARGEST_PART * 2.0 ** -min(bits, most_bits)
    scale = float(case.scalars.get(SCALE, 1.0)) or 1.0
    x, steps = parts["input"], round(2.0 * LARGEST_PART / step)
    ranked = (_ranks(case, steps) * step - LARGEST_PART) / abs(scale)
    found = {"input": torch.where(x.isfinite(), ranked.to(x.dtype), x)}
    if ADDED in parts:
        added = parts[ADDED]
        places = torch.arange(added.numel(), dtype=torch.float64).reshape(added.shape)
        spread = (2.0 * (places * GOLDEN % 1.0) - 1.0) * LARGEST_PART
        found[ADDED] = torch.where(added.isfinite(), _rounded(spread, step).to(added.dtype), added)
    return replace(case, tensors={**case.tensors, **found})


def _ranks(case: Case, steps: int) -> torch.Tensor:
    """Return where each element of the input stands among those of its row, from 0 to so many steps.

    Where there are too few steps for all, the largest elements have one each, in half of the steps.
    """
    rows = op(case.op).canonical(case, "input", to_float64(case.given["input"]))
    places = np.argsort(np.argsort(rows, axis=1, kind="stable"), axis=1, kind="stable")
    below = case.columns - 1 - places
    single = 0 if case.columns <= steps + 1 else steps // 2
    shared = 1.0 - (below - single) / max(case.columns - 1 - single, 1)
    found = np.where(below < single, steps - below, np.round(shared * (steps - single)))
    return from_rows(op(case.op), case, "input", torch.from_numpy(found))


def _rounded(tensor: torch.Tensor, step: float) -> torch.Tensor:
    """Return the nearest multiples of a step."""
    return (tensor.double() / step).round() * step


def _scaled(tensor: torch.Tensor, largest: float) -> torch.Tensor:
    """Return the tensor by a power of two, such that no finite number in it is larger; itself if none is."""
    size = float(torch.where(tensor.isfinite(), tensor.abs(), 0.0).max())
    return tensor if size <= largest else tensor * 2.0 ** -math.ceil(math.log2(size / largest))

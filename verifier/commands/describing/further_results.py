"""What a function returns beside the output: statistics of the rows, the sum with the residual."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verifier.commands.describing.calling import Calling
from verifier.commands.describing.trials import Trials, executed, ordinary, session_of
from verifier.execution import Runner
from verifier.records.case import Case
from verifier.records.subject import Language

TOTAL = "total"
"""Name of the sum of input and residual, which the next layer adds to."""
TOLERANCE = 1.0 / 64
"""Difference from what a result is taken for, relative to the largest number of it."""


def further_results(
    trials: Trials, calling: Calling, language: Language, runner: Runner, dtype: str
) -> tuple[str, ...]:
    """Return the names of the results behind the output, up to the first that is none of those known."""
    case = ordinary(trials.subject(calling, language), dtype, 0.0)
    if case is None or calling.op not in {"layer_norm", "rms_norm", "unknown"}:
        return ()
    meanings = _meanings(case, calling.op)
    names: list[str] = []
    for index in range(1, calling.several):
        session = session_of(trials.subject(calling.picking(index), language), runner, case)
        seen, _ = executed(session)
        found = None if seen is None else seen.outputs.get("output")
        name = None if found is None else next((n for n, m in meanings.items() if _is(found, m)), None)
        if name is None or name in names:
            break
        names.append(name)
    return tuple(names)


def _meanings(case: Case, op: str) -> Mapping[str, torch.Tensor]:
    """Return what each further result of an op would be on a case of (rows, columns)."""
    x = case.given["input"].double()
    if op == "unknown":
        return {TOTAL: x + case.given["residual"].double()} if "residual" in case.given else {}
    mean = x.mean(-1)
    centred = x - mean[:, None] if op == "layer_norm" else x
    rstd = (centred.square().mean(-1) + case.eps).rsqrt()
    return {"mean": mean, "rstd": rstd} if op == "layer_norm" else {"rstd": rstd}


def _is(found: torch.Tensor, meant: torch.Tensor) -> bool:
    if found.numel() != meant.numel() or not found.is_floating_point():
        return False
    difference = (found.double().reshape(meant.shape) - meant).abs().max()
    return bool(difference <= TOLERANCE * meant.abs().max())

"""What ops over rows return: shapes and dtypes, and the statistics as a forward pass would save them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verifier.ops import Expected, Tensors
from verifier.records.case import Case, Scalars
from verifier.records.subject import Subject


def like(tensor: torch.Tensor) -> Expected:
    """Return the shape and dtype of a tensor."""
    return Expected(shape=tuple(tensor.shape), dtype=tensor.dtype)


def expected(case: Case, _subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of output and gradients; statistics may have any of PyTorch's shapes."""
    given = case.given
    gradients = {f"grad_{name}": like(given[name]) for name in ("input", "weight", "bias") if name in given}
    return {"output": like(given["input"]), **gradients}


def expected_backward(case: Case, subject: Subject) -> Mapping[str, Expected]:
    """Return the shape and dtype of the results of a raw backward op; grad_bias is like weight."""
    results = dict(expected(case, subject))
    del results["output"]
    if "grad_weight" in results:
        results["grad_bias"] = results["grad_weight"]
    return results


def statistics(rows: torch.Tensor, *, centred: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and population variance of (rows, columns) numbers in float64, each (rows,).

    Of no columns both are zeros. Without a mean (not `centred`) the first are zeros, the second mean squares.
    """
    if not rows.shape[1]:
        return rows.new_zeros(len(rows)), rows.new_zeros(len(rows))
    mean = rows.mean(1) if centred else rows.new_zeros(len(rows))
    return mean, (rows - mean[:, None]).square().mean(1)


def stored(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers in a dtype; what it does not hold is its largest number, and NaN is zero."""
    largest = torch.finfo(dtype).max
    return values.nan_to_num(0.0).clamp(-largest, largest).to(dtype)


def with_saved_statistics(
    tensors: Tensors,
    scalars: Scalars,
    subject: Subject,
    *,
    rows: torch.Tensor,
    shape: tuple[int, ...],
    centred: bool = True,
) -> dict[str, torch.Tensor | None]:
    """Add mean (if centred) and rstd in the format in which the forward pass would have saved them.

    rows: the input in canonical rows, (rows, columns) in float64. shape: that of the saved statistics.
    """
    done = dict(tensors)
    x = done["input"]
    assert x is not None
    dtype = str(x.dtype).removeprefix("torch.")
    saved = subject.claim.saved_dtype or subject.accumulation(dtype)
    held = getattr(torch, dtype if saved == "input" else saved)
    mean, square = statistics(rows, centred=centred)
    found = {"mean": mean, "rstd": (square + scalars["eps"]).rsqrt()}
    for name in found if centred else ("rstd",):
        done[name] = stored(found[name], held).reshape(shape)
    return done

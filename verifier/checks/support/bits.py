"""Compares results bit by bit, and reports what no guarantee demands as measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from strategies.placement import BITS
from verifier.records.observation import Deviation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

_BITS = {getattr(torch, name): kind for name, kind in BITS.items()}

BitNumbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Results = Mapping[str, torch.Tensor | None]


def bit_numbers(tensor: torch.Tensor) -> BitNumbers:
    """Return the bit patterns of a tensor of floats as integers, in its shape."""
    pattern = tensor.detach().cpu().contiguous().view(_BITS[tensor.dtype])
    return np.asarray(pattern.to(torch.int64).numpy())


def comparable(tensor: torch.Tensor | None) -> bool:
    """Whether there is anything whose bits can be compared."""
    return tensor is not None and tensor.dtype in _BITS and tensor.numel() > 0


def differing(name: str, first: Results, second: Results, words: str) -> str | None:
    """Say of a named result that its bits differ, and how, or return None; `words` says between what."""
    how = how_different(first.get(name), second.get(name), words)
    return None if how is None else f"{name}: {how}"


def how_different(a: torch.Tensor | None, b: torch.Tensor | None, words: str) -> str | None:
    """Say how the bits of two results differ, without a name, or return None; `words` says between what."""
    if (a is None) != (b is None):
        return f"present or None, {words}"
    if a is None or b is None or not comparable(a):
        return None
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"shape or dtype differs {words}"
    unequal = bit_numbers(a) != bit_numbers(b)
    if not unequal.any():
        return None
    at = tuple(int(i[0]) for i in np.nonzero(unequal))
    return (
        f"bits differ {words} in {int(unequal.sum())} of {a.numel()} elements, "
        f"first at {list(at)}: {a[at].item()!r} and {b[at].item()!r}"
    )


def demanded(
    subject: Subject, guarantee: str, deviations: Iterable[Deviation], *, holds: str, broken: str
) -> list[Outcome]:
    """Return a FAIL for each deviation where the guarantee is given; elsewhere report what was measured.

    holds, broken: what is seen without and with deviations, in words.
    """
    found = list(deviations)
    if guarantee not in subject.guarantees:
        why = f"{guarantee} is not guaranteed, hence not demanded"
        measured = Measured(seen=broken if found else holds, undemanded=why)
        evidence = tuple(one.text for one in found)
        return [Outcome(verdict=Verdict.SKIPPED, message=measured.text, measured=measured, evidence=evidence)]
    if not found:
        return [Outcome(verdict=Verdict.PASS, decided=1)]
    return [deviating(one) for one in found]


def deviating(one: Deviation) -> Outcome:
    """Return the FAIL that a deviation is."""
    return Outcome(verdict=Verdict.FAIL, output=one.about, message=one.text, decided=1, wrong=1)

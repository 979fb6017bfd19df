"""The few array operations whose names differ between NumPy and torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from verifier.arithmetic.formats import Array

Arrays = Any
"""A NumPy array or a torch tensor: both have the operators and methods that are used of them."""


@dataclass(frozen=True, kw_only=True)
class Kit:
    """What the fast rungs need besides operators; all arrays are float64 (bits: int64).

    largest(a, axis) and where have their usual meaning; magnitude(a) is the largest |a| of each row,
    never -0.0; bits and floats reinterpret; host copies to NumPy and device copies from it.
    totals(a, index, entries) sums the elements of each index, tops(a, index, entries) takes the
    largest of them (at least 0).
    """

    largest: Callable[[Arrays, int], Arrays]
    magnitude: Callable[[Arrays], Arrays]
    where: Callable[[Arrays, Arrays, Arrays], Arrays]
    bits: Callable[[Arrays], Arrays]
    floats: Callable[[Arrays], Arrays]
    finite: Callable[[Arrays], Arrays]
    host: Callable[[Arrays], Array]
    device: Callable[[object], Arrays]
    totals: Callable[[Arrays, Arrays, int], Arrays]
    tops: Callable[[Arrays, Arrays, int], Arrays]


def _numpy_totals(values: Array, index: Arrays, entries: int) -> Array:
    counts = np.bincount(index.ravel(), weights=values.ravel(), minlength=entries)
    return np.asarray(counts, dtype=np.float64)


def _numpy_tops(values: Array, index: Arrays, entries: int) -> Array:
    tops = np.zeros(entries)
    np.maximum.at(tops, index.ravel(), values.ravel())
    return tops


NUMPY = Kit(
    largest=lambda a, axis: np.max(a, axis=axis),
    magnitude=lambda a: np.maximum(np.max(a, axis=1), -np.min(a, axis=1)) + 0.0,
    where=np.where,
    bits=lambda a: a.view(np.int64),
    floats=lambda a: a.view(np.float64),
    finite=np.isfinite,
    host=np.asarray,
    device=np.asarray,
    totals=_numpy_totals,
    tops=_numpy_tops,
)


@cache
def torch_kit(device: str) -> Kit:
    """Return the operations on a torch device, once its float64 arithmetic is seen to be IEEE 754.

    Raises:
        RuntimeError: the device rounds otherwise, contracts products or flushes subnormals.

    """
    import torch

    def totals(values: Arrays, index: Arrays, entries: int) -> Arrays:
        zero = torch.zeros(entries, dtype=torch.float64, device=device)
        return zero.index_add(0, index.reshape(-1), values.reshape(-1))

    def tops(values: Arrays, index: Arrays, entries: int) -> Arrays:
        zero = torch.zeros(entries, dtype=torch.float64, device=device)
        return zero.scatter_reduce(0, index.reshape(-1), values.reshape(-1), "amax")

    kit = Kit(
        largest=lambda a, axis: a.amax(axis),
        magnitude=lambda a: a.abs().amax(1),
        where=torch.where,
        bits=lambda a: a.view(torch.int64),
        floats=lambda a: a.view(torch.float64),
        finite=torch.isfinite,
        host=lambda a: np.asarray(a.cpu().numpy() if isinstance(a, torch.Tensor) else a),
        device=lambda a: torch.as_tensor(np.ascontiguousarray(a)).to(device),
        totals=totals,
        tops=tops,
    )
    _require_ieee(kit, device)
    return kit


def _require_ieee(kit: Kit, device: str) -> None:
    """Refuse a device whose eager float64 arithmetic the proofs do not cover."""
    a = kit.device(np.array([1.0, -1.0, 1.0 + 2.0**-52, 1.0 + 2.0**-30]))
    nearest = kit.host(a + 2.0**-53).tolist() == [1.0, -1.0 + 2.0**-53, 1.0 + 2.0**-51, 1.0 + 2.0**-30]
    squares = kit.host(a * a - 1.0)[3] == 2.0**-29  # contracted: 2**-29 + 2**-60
    products = kit.host(kit.device(np.array([2.0**-600])) * 2.0**-470)[0] == 2.0**-1070
    if not (nearest and squares and products):
        raise RuntimeError(f"float64 arithmetic on {device} is not IEEE 754 in eager mode: use NumPy arrays")

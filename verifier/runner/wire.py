"""Turns cases and observations into plain data for the pipe between verifier and child."""

from __future__ import annotations

from typing import Any

import torch

from strategies.layouts import Layout
from verifier.case import Case, from_bytes, raw_bytes
from verifier.runner.observation import Observation

Packed = tuple[str, tuple[int, ...], bytes] | None


def pack_tensor(tensor: torch.Tensor | None) -> Packed:
    """Return dtype, shape and bytes of a tensor on any device."""
    if tensor is None:
        return None
    flat = tensor.detach().cpu().contiguous()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw_bytes(flat.reshape(-1))


def unpack_tensor(packed: Packed) -> torch.Tensor | None:
    """Return the tensor, contiguous and on the CPU."""
    if packed is None:
        return None
    dtype, shape, data = packed
    return from_bytes(data, dtype, shape)


def pack_case(case: Case) -> dict[str, Any]:
    """Return a case as plain data."""
    return {
        "op": case.op,
        "dtype": case.dtype,
        "tensors": {name: pack_tensor(t) for name, t in case.tensors.items()},
        "layouts": {name: layout.to_json() for name, layout in case.layouts.items()},
        "scalars": dict(case.scalars),
        "rows": case.rows,
        "columns": case.columns,
    }


def unpack_case(packed: dict[str, Any]) -> Case:
    """Return the case that was packed, without what only the verifier needs."""
    tensors = {name: unpack_tensor(t) for name, t in packed["tensors"].items()}
    layouts = {name: Layout.from_json(value) for name, value in packed["layouts"].items()}
    return Case(**{**packed, "tensors": tensors, "layouts": layouts})


def pack_observation(seen: Observation) -> dict[str, Any]:
    """Return an observation as plain data."""
    return {
        "status": seen.status,
        "outputs": {name: pack_tensor(t) for name, t in seen.outputs.items()},
        "message": seen.message,
        "detail": seen.detail,
        "damage": tuple(seen.damage),
        "facts": dict(seen.facts),
    }


def unpack_observation(packed: dict[str, Any]) -> Observation:
    """Return the observation that was packed."""
    return Observation(**{**packed, "outputs": {n: unpack_tensor(t) for n, t in packed["outputs"].items()}})

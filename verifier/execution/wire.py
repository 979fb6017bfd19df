"""Turns observations into plain data for the pipe between verifier and child."""

from __future__ import annotations

from typing import Any

from verifier.records.case import as_bytes, tensor_document, tensor_of
from verifier.records.observation import Observation


def pack_observation(seen: Observation) -> dict[str, object]:
    """Return an observation as plain data."""
    return {
        "status": seen.status,
        "outputs": {n: t if t is None else tensor_document(n, t, as_bytes) for n, t in seen.outputs.items()},
        "message": seen.message,
        "detail": seen.detail,
        "damage": tuple(seen.damage),
        "unlaunched": seen.unlaunched,
        "lacking": seen.lacking,
        "compiled": seen.compiled,
        "reach": seen.reach,
        "settings": dict(seen.settings),
        "aftermath": seen.aftermath,
        "found": seen.found,
    }


def unpack_observation(packed: dict[str, Any]) -> Observation:
    """Return the observation that was packed; its tensors are contiguous and on the CPU."""
    outputs = {name: document and tensor_of(document) for name, document in packed["outputs"].items()}
    return Observation(**{**packed, "outputs": outputs})

"""Turns observations into plain data for the pipe between verifier and child."""

from __future__ import annotations

from typing import TypedDict

from verifier.records.case import TensorDocument, as_bytes, tensor_document, tensor_of
from verifier.records.compiled_code import CompiledCode
from verifier.records.observation import Aftermath, Deviation, Observation, Status
from verifier.records.reach import Reach


class PackedObservation(TypedDict):
    """The fields of an observation; its tensors as documents with their bytes."""

    status: Status
    outputs: dict[str, TensorDocument | None]
    message: str
    detail: str
    damage: tuple[Deviation, ...]
    unlaunched: str
    lacking: str
    compiled: CompiledCode | None
    reach: Reach
    settings: dict[str, str]
    aftermath: Aftermath
    found: object


def pack_observation(seen: Observation) -> PackedObservation:
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


def unpack_observation(packed: PackedObservation) -> Observation:
    """Return the observation that was packed; its tensors are contiguous and on the CPU."""
    return Observation(
        status=packed["status"],
        outputs={n: None if one is None else tensor_of(one) for n, one in packed["outputs"].items()},
        message=packed["message"],
        detail=packed["detail"],
        damage=packed["damage"],
        unlaunched=packed["unlaunched"],
        lacking=packed["lacking"],
        compiled=packed["compiled"],
        reach=packed["reach"],
        settings=packed["settings"],
        aftermath=packed["aftermath"],
        found=packed["found"],
    )

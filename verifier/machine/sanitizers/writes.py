"""Which bytes of each tensor a launch has written: inputs must stay, outputs must be complete."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.findings import InputWritten, Unwritten
from verifier.machine.execute.memory import Fault

if TYPE_CHECKING:
    import torch

    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.launch_record import LaunchRecord
    from verifier.machine.execute.memory import Located
    from verifier.machine.execute.wave import Wave
    from verifier.machine.model import Machine

SANITIZES = frozenset({"inputs", "outputs"})


class Writes:
    """Marks written bytes; `Machine.read_only` names inputs, `Machine.outputs` what has to be filled."""

    every_lane = False

    def __init__(self, machine: Machine) -> None:
        """Take the names of inputs and outputs."""
        self.machine = machine
        self.written: dict[int, Array] = {}

    def access(
        self,
        wave: Wave,
        site: int,
        kind: str,
        space: str,
        located: Located,
        lanes: Array,
        width: int,
        values: list[Array] | None,
    ) -> None:
        """Mark the bytes of a store; a store to an input is a fault at once."""
        if space != "global" or kind.endswith("read"):
            return
        region = located.region
        if "inputs" in self.machine.sanitize and set(region.name.split("/")) & self.machine.read_only:
            place = 0 if located.selection is None else int(np.flatnonzero(located.selection.reshape(-1))[0])
            raise Fault(
                "input_written",
                site,
                place,
                located.shape,
                f"a store to the input {region.name}",
                tensor=region.name,
            )
        if "outputs" in self.machine.sanitize and set(region.name.split("/")) & self.machine.outputs:
            marks = self.written.setdefault(region.number, np.zeros(region.size, dtype=bool))
            for byte in range(width):
                marks[located.offsets + byte] = True

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """Nothing to do."""

    def barrier_of_cluster(self, wave: Wave, lanes: Array) -> None:
        """Nothing to do."""

    def barrier_object(self, wave: Wave, site: int) -> None:
        """Nothing to do."""

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Nothing to do."""

    def finish(self, launch: LaunchRecord) -> None:
        """Report output elements that no thread wrote."""
        for region in launch.memory.regions.values():
            tensor = region.keep
            if not set(region.name.split("/")) & self.machine.outputs or not hasattr(tensor, "stride"):
                continue
            marks = self.written.get(region.number, np.zeros(region.size, dtype=bool))
            missing = unwritten(tensor, marks)
            if missing is not None:
                raise Unwritten(f"element {missing} is not written", kernel=launch.kernel, tensor=region.name)


def unwritten(tensor: torch.Tensor, marks: Array) -> tuple[int, ...] | None:
    """Index of the first element of a tensor with a byte that is not marked."""
    size = tensor.element_size()
    start = tensor.storage_offset() * size
    if tensor.numel() == 0:
        return None
    strides = tuple(s * size for s in tensor.stride())
    view = np.lib.stride_tricks.as_strided(marks[start:], shape=tuple(tensor.shape), strides=strides)
    if view.all():
        return None
    return tuple(int(n) for n in np.argwhere(~view)[0])


__all__ = ["InputWritten", "Unwritten", "Writes"]


def monitor(machine: Machine, *, replicated: bool) -> Writes:
    """Make what watches one launch."""
    return Writes(machine)

"""Accesses to shared memory between its variables: PTX leaves open what lies there, if anything does."""

# ruff: noqa: PLR0917 - these are called by position, many times a launch

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from verifier.machine.execute.memory import Fault

if TYPE_CHECKING:
    from verifier.machine.arithmetic.numerics import Array
    from verifier.machine.execute.memory import Located
    from verifier.machine.execute.wave import Wave
    from verifier.machine.model import Machine

SANITIZES = frozenset({"shared_bounds"})


class SharedBounds:
    """Reports the first byte that is in no variable; `lay_out` has put them apart."""

    every_lane = False

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
        """Compare the bytes of an access with the gaps between variables."""
        if space != "shared":
            return
        first = located.offsets.reshape(-1) % wave.shared.stride
        for start, end, variable in wave.gaps:
            beyond = np.flatnonzero((first < end) & (first + width > start))
            if beyond.size:
                place = int(beyond[0])
                byte = int(first[place]) + width - start
                if located.selection is not None:
                    place = int(np.flatnonzero(located.selection.reshape(-1))[place])
                message = (
                    f"an access of {width} bytes ends {byte} bytes behind the shared variable {variable}"
                )
                raise Fault("out_of_bounds", site, place, located.shape, message, tensor="shared memory")

    def barrier(self, wave: Wave, lanes: Array) -> None:
        """Nothing to do."""

    def barrier_of_cluster(self, wave: Wave, lanes: Array) -> None:
        """Nothing to do."""

    def barrier_object(self, wave: Wave, site: int) -> None:
        """Nothing to do."""

    def ordering(self, wave: Wave, site: int, lanes: Array, words: tuple[str, ...]) -> None:
        """Nothing to do."""

    def finish(self, launch: object) -> None:
        """Nothing is left to check."""


def monitor(machine: Machine, *, replicated: bool) -> SharedBounds | None:
    """Make what watches one launch."""
    return SharedBounds() if "shared_bounds" in machine.sanitize else None

"""When the machine, and not the subject, is what takes long: one launch ends after the other, but slowly.

A subject that hangs does not come to its next launch. One that does, long after it should have answered, is
too much for a machine in software, and nothing is said of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from verifier.machine.execute.findings import UnsupportedFeature
from verifier.machine.in_force import launched


class TooSlow(UnsupportedFeature):
    """A case takes more launches than the machine has time for."""

    def __str__(self) -> str:
        """Say how many launches took how long."""
        return f"the machine is too slow for this case: {self.what}"


class Pace:
    """How long an answer may take; where nobody says so, as long as it likes."""

    def __init__(self) -> None:
        """Set no limit."""
        self.seconds, self.until, self.before = math.inf, math.inf, 0

    def begin(self, seconds: float) -> None:
        """Expect an answer within so many seconds of this process's time."""
        self.seconds, self.until, self.before = seconds, time.process_time() + seconds, launched()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Count nothing of what this process does inside."""
        begun = time.process_time()
        try:
            yield
        finally:
            self.until += time.process_time() - begun

    def keep(self) -> None:
        """Go on with another launch.

        Raises:
            TooSlow: the time is over, and kernels have run in it.

        """
        if time.process_time() < self.until:
            return
        ran = launched() - self.before
        if ran:
            raise TooSlow(f"{ran} launches took {self.seconds:g} seconds of processor time")


PACE = Pace()
"""That of this process."""

"""The contract of a backend: a place where subjects run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import ClassVar, Protocol

from verifier.machine.execute.reached_code import ReachedCode
from verifier.machine.execute.tuning import TunedKernel, Tuning
from verifier.ops import Setting
from verifier.records.compiled_code import CompiledCode
from verifier.records.observation import Aftermath
from verifier.records.subject import Subject


class Power(StrEnum):
    """What only some backends can do; checks ask for it by these names."""

    SHADOWS = "has a shadow for every float of compiled code"
    WATCHES = "sees every access to memory and every device that a wrapper names"
    VARIES = "runs the same code under other admissible arithmetic and schedules: `varied`"
    READS_CODE = "has the code of what it launched: `compiled`"
    TUNES = "chooses configurations of autotuned kernels, and plays their tuners: `tuned`"
    REPEATS = "gives the same bits for the same call, unless the subject draws them at random"
    CHOOSES_ROWS = "runs the blocks of chosen rows alone"
    FAR_ROWS = "runs kernels on rows that lie 2^31 elements apart"
    FOLLOWS_TORCH = "has a shadow for every float of torch's own operators"


class PowerlessError(NotImplementedError):
    """A backend was asked for what it does not declare among its powers."""


class Backend(Protocol):
    """A place where subjects run; what a class that inherits leaves out is as for torch operators on the CPU.

    The first group of methods is called in the verifier's process, the second in the child's.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    """One line on what runs there."""
    languages: ClassVar[tuple[str, ...]]
    """The languages of subjects that it can run."""
    powers: ClassVar[frozenset[Power]] = frozenset()
    preference: ClassVar[int] = 100
    """Where several backends can run a subject, the one with the smallest number does."""
    copied: ClassVar[bool] = True
    """Whether its process may be a copy of one that has imported Triton to compile, and not to interpret."""
    shared_device: ClassVar[bool] = False
    """Whether kernels run on devices of which each process of several should have its own."""
    child_per_subject: ClassVar[bool] = False
    """Whether a failing subject can spoil the process for others of its file: each gets a child."""

    def unavailable(self) -> str | None:
        """Say why it cannot be used here and how to get it, or None."""
        return None

    def refuses(self, subject: Subject, dtype: str) -> str | None:
        """Say why it does not run this subject with this dtype, or None."""
        return None

    def setting(self, subject: Subject, dtype: str) -> Setting:
        """Return the arithmetic and the trees that are in force there."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return environment variables of its child processes."""
        return {}

    def preload(self) -> None:
        """Import what every child needs, before the first is forked."""
        return

    def prepare(self, **options: object) -> None:
        """Make this process ready to run subjects; options are the backend's own.

        Raises:
            TypeError: it has no such options.

        """
        if options:
            raise TypeError(f"the backend {self.name} has no options: {', '.join(options)}")

    def device(self) -> str:
        """Return the device that tensors are placed on."""
        return "cpu"

    def begin(self) -> None:
        """Start an execution."""
        return

    def finish(self) -> None:
        """Wait for the end of an execution, so that its errors surface here."""
        return

    def launches(self) -> int:
        """Count kernel launches since the start of the execution."""
        return 0

    def launched(self, subject: Subject) -> int | None:
        """Count the launches that the process has seen; None where kernels may run unseen."""
        return None

    def compiled(self, host: frozenset[str]) -> CompiledCode | None:
        """Say what the code consists of that was launched since the start of the execution, or None.

        host: names of torch operations that computed meanwhile. Needs `Power.READS_CODE`.
        """
        return None

    def notes_reached(self, reached: ReachedCode) -> bool:
        """Note from now on in `reached` which compiled code runs; return whether that is seen here."""
        return False

    def unfollowed(self) -> AbstractContextManager[object]:
        """Let torch's operations inside pass unseen: the verifier's own, on tensors of one place.

        They cost less so where a backend looks at each; where others look as well, nothing is changed.
        """
        return nullcontext()

    def varied(self, **changes: object) -> AbstractContextManager[None]:
        """Run what is inside under changed arithmetic or schedules. Needs `Power.VARIES`."""
        raise PowerlessError(f"{self.name} cannot vary what it runs")

    def tuned(
        self, *, forced: tuple[TunedKernel, str] | None = None, benched: TunedKernel | None = None
    ) -> AbstractContextManager[Tuning]:
        """Let autotuners choose anew inside; what they did is in what this returns. Needs `Power.TUNES`.

        forced: an autotuned kernel and the configuration that it runs. benched: the one whose tuner launches
        its configurations before it chooses.
        """
        raise PowerlessError(f"{self.name} leaves autotuners alone")

    def asked_processors(self) -> int:
        """Return how often wrappers in this process have read the number of multiprocessors."""
        return 0

    def unfilled(self) -> tuple[str, ...]:
        """Say where launches since `begin` load what is undefined in lanes that a mask leaves out."""
        return ()

    def followed(self) -> tuple[object, ...]:
        """Say how the grids of launches since `begin` followed the rows. Needs `Power.CHOOSES_ROWS`."""
        return ()

    def failed(self) -> Exception | None:
        """Return what the first failing launch since `begin` raised, if launches are seen to fail."""
        return None

    def lacks(self, error: BaseException) -> str | None:
        """Say which limit of the backend itself a failure comes from, or None."""
        return None

    def aftermath(self, error: BaseException) -> Aftermath:
        """Return what an error left behind."""
        return Aftermath()

"""Compiled Triton and CUDA C++ kernels on the CPU: the PTX machine executes what the compiler emitted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from strategies.registry import modules
from verifier.arithmetic.formats import ieee
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import _triton
from verifier.execution.backends.cuda import documented
from verifier.machine.culprit import said_by_subject
from verifier.machine.execute.reached_code import ReachedCode
from verifier.machine.execute.tuning import TunedKernel, Tuning
from verifier.ops import Setting
from verifier.records.compiled_code import CompiledCode
from verifier.records.files import cache_folder
from verifier.records.observation import Aftermath
from verifier.records.subject import Subject

_open = ExitStack()


@cache
def compiler_missing() -> str | None:
    """Say why CUDA C++ cannot be compiled here and how to change that, or None."""
    from verifier.subjects.nvrtc import MissingCompilerError, version

    try:
        version()
    except MissingCompilerError as error:
        return str(error)
    return None


_NEEDS_CUDA = (
    "Cannot access accelerator device",
    "not compiled with CUDA",
    "without ATen_cuda",
    "not linked with support for cuda",
    "from the 'CUDA' backend",
    "No CUDA GPUs are available",
    "Found no NVIDIA driver",
    "CUDA driver version is insufficient",  # of a build for CUDA where no driver is
    "no CUDA-capable device is detected",
    "CUDA_ERROR_NO_DEVICE",
    "Storage device not recognized: cuda",
    "no pinned memory allocator is available",
    "module 'torch._C' has no attribute '_cuda_",
)


def _asks_for_device(error: BaseException) -> bool:
    import torch

    if isinstance(error, getattr(torch, "AcceleratorError", ())):  # the machine raises none itself
        return True
    words = isinstance(error, RuntimeError | AssertionError | AttributeError)
    return words and any(part in str(error) for part in _NEEDS_CUDA)


class PtxMachine(Backend):
    """The PTX machine in the place of a device."""

    name = "machine"
    summary = "compiled PTX of Triton and CUDA C++ kernels, executed on the CPU"
    languages = ("triton", "cuda")
    powers = frozenset(
        {Power.CHOOSES_ROWS, Power.FAR_ROWS, Power.READS_CODE, Power.REPEATS}
        | {Power.SHADOWS, Power.TUNES, Power.VARIES, Power.WATCHES}
    )
    preference = 20

    def refuses(self, subject: Subject, dtype: str) -> str | None:
        """Refuse what cannot be compiled here."""
        if subject.language == "triton":
            return _triton.triton_missing()
        return compiler_missing() if subject.language == "cuda" else None

    def setting(self, subject: Subject, dtype: str) -> Setting:
        """Return the documented arithmetic of the device that the PTX is for, and the declared trees."""
        name = subject.accumulation(dtype)
        arithmetic = ieee(
            name,
            **documented(name),
            atomics=True,  # until the code is known
            evidence="documented errors of PTX's instructions, met by an H200 for every float32",
        )
        scalar = "float32" if subject.language == "triton" else None
        return Setting(arithmetic=arithmetic, trees=subject.claim.trees, scalar_format=scalar)

    def environment(self) -> dict[str, str]:
        """Let Triton compile instead of interpreting, and let nothing reach a real device."""
        return {"TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": "", **_triton.writable_cache()}

    def preload(self) -> None:
        """Import Triton's compiler, where it is, and what connects the machine with it."""
        if _triton.triton_missing() is not None:
            return
        for name in ("session", "triton_driver", "triton_cache", "without_assembly", "without_memory"):
            import_module(f"verifier.machine.device.{name}")
        for package in ("sanitizers", "shadow.arithmetics", "translate"):
            modules(f"verifier.machine.{package}")
        _triton.preload()

    def prepare(self, **options: Any) -> None:
        """Play a device for the rest of this process; options are fields of `verifier.machine.Machine`."""
        from verifier.machine import session
        from verifier.machine.kept_results import keep_results_in

        keep_results_in(cache_folder("translations"))

        # Bytes of ones are NaN in every float format: a value that nobody wrote is seen wherever it goes.
        _open.enter_context(session(**{"poison": 0xFF, "strict": True, **options}))

    def device(self) -> str:
        """Return the device that tensors are placed on: what they say, wherever their bytes lie."""
        from verifier.machine import current

        playing = current()
        assert playing is not None
        return str(playing.home)

    def begin(self) -> None:
        """Start an execution."""
        from verifier.machine import current

        playing = current()
        assert playing is not None
        playing.launches.clear()
        playing.redirected.clear()
        playing.current_device, playing.stream = 0, None
        playing.codes.clear()
        playing.unfilled.clear()
        playing.followed.clear()
        playing.failed.clear()

    def unfollowed(self) -> AbstractContextManager[object]:
        """Take away the modes of the machine, if there are no others."""
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from verifier.machine.device.dispatch_mode import DeviceMode
        from verifier.machine.device.launch import without_modes
        from verifier.machine.shadow.graph_host import HostGraph

        modes = _get_current_dispatch_mode_stack()
        own = modes and all(isinstance(mode, DeviceMode | HostGraph) for mode in modes)
        return without_modes() if own else nullcontext()

    @contextmanager
    def varied(self, **changes: Any) -> Iterator[None]:
        """Run what is inside on a machine that differs in these fields of `verifier.machine.Machine`."""
        from verifier.machine import current

        playing = current()
        assert playing is not None
        usual = playing.machine
        playing.machine = replace(usual, **changes)
        try:
            yield
        finally:
            playing.machine = usual

    @contextmanager
    def tuned(
        self, *, forced: tuple[TunedKernel, str] | None = None, benched: TunedKernel | None = None
    ) -> Iterator[Tuning]:
        """Let autotuners choose anew inside; returns what they did."""
        from verifier.machine import current

        playing = current()
        assert playing is not None
        usual = playing.tuning
        playing.tuning = Tuning(seed=usual.seed, forced=forced, benched=benched)
        try:
            yield playing.tuning
        finally:
            playing.tuning = usual

    def launches(self) -> int:
        """Count launches since the start of the execution."""
        from verifier.machine import current

        playing = current()
        return 0 if playing is None else len(playing.launches)

    def asked_processors(self) -> int:
        """Return what the session has counted."""
        from verifier.machine import current

        playing = current()
        return 0 if playing is None else playing.asked_processors

    def unfilled(self) -> tuple[str, ...]:
        """Say where launches since `begin` load what is undefined in lanes that a mask leaves out."""
        from verifier.machine import current

        playing = current()
        return tuple(playing.unfilled) if playing is not None else ()

    def followed(self) -> tuple[object, ...]:
        """Say how the grids of launches since `begin` followed the rows, where rows were chosen."""
        from verifier.machine import current

        playing = current()
        return tuple(playing.followed) if playing is not None else ()

    def failed(self) -> Exception | None:
        """Return what the first launch raised that ended with a finding, or that the machine could not do."""
        from verifier.machine import current

        playing = current()
        return playing.failed[0] if playing is not None and playing.failed else None

    def launched(self, subject: Subject) -> int | None:
        """Count what this process has launched: no kernel runs here but in the machine."""
        from verifier.machine.in_force import launched as count

        return count()

    def compiled(self, host: frozenset[str]) -> CompiledCode | None:
        """Say what the code launched since the start of the execution consists of.

        host: names of torch operations that computed meanwhile.
        """
        from verifier.execution.backends import _read_code
        from verifier.machine import current

        playing = current()
        return _read_code.of_codes(playing.codes if playing is not None else (), host)

    def notes_reached(self, reached: ReachedCode) -> bool:
        """Note from now on in `reached` which blocks run and how often loops turn."""
        from verifier.machine import current

        playing = current()
        if playing is None:
            return False
        playing.reached = reached
        return True

    def lacks(self, error: BaseException) -> str | None:
        """Say what the machine lacks where torch's own code asked for a real device, or None.

        What a subject raises is its own, whatever the text says, unless torch's failure made it raise that.
        """
        reason: BaseException | None = error
        while reason is not None:
            if _asks_for_device(reason) and not said_by_subject(reason):
                return f"the machine lacks the device that torch asks for here: {reason}".split("\n")[0]
            reason = reason.__cause__ or reason.__context__
        return None

    def aftermath(self, error: BaseException) -> Aftermath:
        """Say which kind of defect the machine found."""
        from verifier.machine import MachineFinding

        return Aftermath(machine_finding=error.kind if isinstance(error, MachineFinding) else "")


BACKEND = PtxMachine()

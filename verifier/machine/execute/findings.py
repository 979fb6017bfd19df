"""What the machine can find wrong in a kernel, as typed exceptions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Location:
    """A line of the user's source, and the chain of inlined calls that led to the instruction."""

    file: str
    line: int
    column: int = 0
    inlined: tuple[tuple[str, int], ...] = field(default=())

    def __str__(self) -> str:
        """Render as `file:line`."""
        return f"{self.file}:{self.line}"


class MachineError(Exception):
    """Anything the machine refuses or finds."""


class UnsupportedFeature(MachineError):  # noqa: N818 - as below
    """What the machine does not play: a refusal, never a guess, which says nothing about the kernel."""

    def __init__(self, what: str, kernel: str = "") -> None:
        """Name what is lacking, and the kernel that needs it."""
        self.what, self.kernel = what, kernel
        super().__init__(what, kernel)

    def __str__(self) -> str:
        """Say what is lacking, and where."""
        return f"the machine lacks {self.what}" + (f" (kernel {self.kernel})" if self.kernel else "")


class UnsupportedInstruction(UnsupportedFeature):
    """An instruction outside the machine's subset."""

    def __init__(
        self, opcode: str, kernel: str, line: int, reason: str = "", location: Location | None = None
    ) -> None:
        """Name the opcode, the kernel, the PTX line and the line of the user's source, if it is known."""
        self.opcode, self.line, self.reason, self.location = opcode, line, reason, location
        super().__init__(f"`{opcode}`", kernel)

    def __str__(self) -> str:
        """Say what is unsupported, and where."""
        words = meaning(self.opcode)
        what = f"{words}: {self.what}" if words else self.what
        reason = f", {self.reason}" if self.reason else ""
        source = f", source {self.location}" if self.location else ""
        return f"the machine lacks {what}{reason} (kernel {self.kernel}, PTX line {self.line}{source})"


_MEANINGS = (
    (("mma.", "wmma.", "wgmma.", "tcgen05."), "tensor cores"),
    (("mbarrier.", "cp.async.mbarrier"), "barriers in shared memory"),
    (("cp.async.bulk", "cp.reduce.async.bulk", "tensormap.", "fence.proxy.tensormap"), "bulk copies (TMA)"),
    (("barrier.cluster", "mapa", "getctarank"), "thread-block clusters"),
    (("discard.",), "memory that is left undefined"),
)


def meaning(opcode: str) -> str:
    """Return in words what an instruction is for, where its name does not say it."""
    return next((words for heads, words in _MEANINGS if opcode.startswith(heads)), "")


class ParseError(UnsupportedFeature):
    """The PTX text is not understood."""

    def __str__(self) -> str:
        """Say what stands there."""
        return f"the machine cannot read this PTX: {self.what}"


class LaunchError(MachineError):
    """A launch that no device would accept: arguments, grid or shared memory."""


class MachineFinding(MachineError):  # noqa: N818 - the name is the public word for it
    """A defect of the kernel that executing it has shown."""

    kind = "finding"

    def __init__(
        self,
        message: str,
        *,
        kernel: str,
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
        ptx_line: int | None = None,
        instruction: str | None = None,
        location: Location | None = None,
        tensor: str | None = None,
    ) -> None:
        """Keep every coordinate as an attribute."""
        self.message, self.kernel, self.block, self.thread = message, kernel, block, thread
        self.ptx_line, self.instruction, self.location, self.tensor = ptx_line, instruction, location, tensor
        super().__init__(message)

    @property
    def source(self) -> str | None:
        """The user's source line as `file:line`, if the PTX names it."""
        return str(self.location) if self.location else None

    def __str__(self) -> str:
        """One sentence with every coordinate that is known."""
        where = [f"kernel {self.kernel}"]
        for name, value in (("block", self.block), ("thread", self.thread)):
            if value is not None:
                where.append(f"{name} {value}")
        if self.ptx_line is not None:
            where.append(f"PTX line {self.ptx_line}")
        if self.instruction:
            where.append(f"`{self.instruction}`")
        if self.location:
            where.append(f"source {self.location}")
        if self.tensor:
            where.append(f"tensor {self.tensor}")
        return f"{self.kind}: {self.message} ({', '.join(where)})"


class OutOfBounds(MachineFinding):
    """An access outside every tensor, or outside shared or local memory."""

    kind = "out_of_bounds"


class Misaligned(MachineFinding):
    """An access whose address is no multiple of its size."""

    kind = "misaligned"


class StepLimit(MachineFinding):
    """The kernel did not finish within the step limit: a livelock or an endless loop."""

    kind = "step_limit"


class Deadlock(MachineFinding):
    """Threads wait for others that can never come."""

    kind = "deadlock"


class DivergentBarrier(MachineFinding):
    """Threads of a block wait at different barriers, or some have left the kernel."""

    kind = "divergent_barrier"


class DivergentCollective(MachineFinding):
    """A warp instruction names lanes that do not execute it."""

    kind = "divergent_collective"


class Uninitialised(MachineFinding):
    """A value that was never written reaches memory, an address or a branch."""

    kind = "uninitialised"


class SharedRace(MachineFinding):
    """Two threads of a block touch one shared word without a barrier between them."""

    kind = "shared_race"


class GlobalRace(MachineFinding):
    """Two blocks, or threads without a barrier, touch one word of global memory unsynchronised."""

    kind = "global_race"


class InputWritten(MachineFinding):
    """A tensor that was declared read-only has been written."""

    kind = "input_written"


class Unwritten(MachineFinding):
    """An output element that no thread wrote."""

    kind = "unwritten"


class DeviceAssertion(MachineFinding):
    """The kernel's own assertion failed, or it executed `trap`."""

    kind = "device_assertion"

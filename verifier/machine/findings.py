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


class UnsupportedInstruction(MachineError):  # noqa: N818 - the name is the public word for it
    """An instruction outside the machine's subset: a refusal, never a guess."""

    def __init__(self, opcode: str, kernel: str, line: int, reason: str = "") -> None:
        """Name the opcode, the kernel and the PTX line."""
        self.opcode, self.kernel, self.line, self.reason = opcode, kernel, line, reason
        super().__init__(opcode, kernel, line, reason)

    def __str__(self) -> str:
        """Say what is unsupported, and where."""
        tail = f": {self.reason}" if self.reason else ""
        return (
            f"the machine does not execute `{self.opcode}` (kernel {self.kernel}, PTX line {self.line}){tail}"
        )


class ParseError(MachineError):
    """The PTX text is not understood."""


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
        """The user's source line as `file:line`, if the PTX carries it."""
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

"""Streams and events of a device that finishes each launch before it returns."""

from __future__ import annotations

import itertools
from typing import Any, Self

import torch

from verifier.machine.culprit import passed_on
from verifier.machine.in_force import CurrentStream, MachineSession, current

_numbers = itertools.count(1)


def _session() -> MachineSession:
    opened = current()
    if opened is None:
        raise RuntimeError("streams of the machine were used outside of its session")
    return opened


def _done() -> bool:
    """Say yes, as the machine has it, and note that a device might still be at work."""
    if (opened := current()) is not None:
        opened.unwaited.add("question for what a device has done by now")
    return True


def index_of(device: object) -> int:
    """Return the number of a device, that of the current one for None or no number."""
    if isinstance(device, int):
        return device
    found = None if device is None else passed_on(torch.device, device).index
    return _session().current_device if found is None else found


class Stream:
    """A stream on which everything has happened already."""

    def __init__(self, device: object = None, priority: int = 0, **kwargs: Any) -> None:
        """Give it a number of its own unless it has one."""
        self.device = torch.device("cuda", index_of(device))
        self.device_index, self.device_type = self.device.index, 1
        self.priority = priority
        known = kwargs.get("stream_id", kwargs.get("stream_ptr"))
        self.stream_id: int = next(_numbers) << 5 if known is None else int(known)
        self._before: list[CurrentStream | None] = []

    @property
    def cuda_stream(self) -> int:
        """Handle that CUDA's functions take."""
        return self.stream_id

    native_handle = cuda_stream

    def query(self) -> bool:
        """Whether all of its work is done."""
        return _done()

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_event(self, event: object) -> None:
        """Order what follows behind an event that has happened."""

    def wait_stream(self, stream: object) -> None:
        """Order what follows behind a stream that is done."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        """Whether a graph is recorded."""
        return False

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Give the least and the greatest priority."""
        return 0, -5

    def __enter__(self) -> Self:
        """Make it the current stream."""
        opened = _session()
        self._before.append(opened.stream)
        _choose(opened, self)
        return self

    def __exit__(self, *error: object) -> None:
        """Go back to the stream that was current."""
        _session().stream = self._before.pop()

    def __eq__(self, other: object) -> bool:
        """Streams are the same if their handles are."""
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        """Hash as streams compare."""
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        """Write it as torch does."""
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """A stream that somebody else has made."""

    def __init__(self, stream_ptr: int, device: object = None, **kwargs: Any) -> None:
        """Take its handle."""
        super().__init__(device, stream_ptr=stream_ptr, **kwargs)


class Event:
    """An event that has happened as soon as it is recorded."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take what torch takes."""
        self.device = torch.device("cuda", index_of(None))
        self.event_id = self.cuda_event = next(_numbers)

    def record(self, stream: object = None) -> None:
        """Record nothing."""

    def wait(self, stream: object = None) -> None:
        """Wait for nothing."""

    def synchronize(self) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Whether it has happened."""
        return _done()

    def elapsed_time(self, other: object) -> float:
        """Milliseconds; the machine has no clock."""
        _done()
        return 1.0


class StreamContext:
    """`torch.cuda.stream(...)`: the stream is current inside; nothing happens for None."""

    def __init__(self, stream: Stream | None) -> None:
        """Keep the stream."""
        self.stream = stream

    def __enter__(self) -> None:
        """Make it current."""
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        """Go back."""
        if self.stream is not None:
            self.stream.__exit__(*error)


def default_stream(device: object = None) -> Stream:
    """Give the stream with number 0."""
    return Stream(device, stream_id=0)


def current_stream(device: object = None) -> Stream:
    """Give the stream that is current on a device."""
    chosen = _session().stream
    if isinstance(chosen, Stream) and chosen.device_index == index_of(device):
        return chosen
    return default_stream(device)


def set_stream(stream: Stream | None) -> None:
    """Make a stream current."""
    if stream is not None:
        _choose(_session(), stream)


def _choose(opened: MachineSession, stream: Stream) -> None:
    opened.stream = stream
    opened.streamed |= stream.stream_id != 0

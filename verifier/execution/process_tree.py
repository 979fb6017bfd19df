"""Process trees as Linux tells of them: what a process started, what it used, and its end.

Where there is no /proc, a process is known alone and with its group.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2), from linux/prctl.h."""
_STATE, _USER, _SYSTEM, _USER_REAPED, _SYSTEM_REAPED = 0, 11, 12, 13, 14
"""Fields of /proc/PID/stat behind the name, see proc_pid_stat(5); times are in clock ticks."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True, kw_only=True)
class Use:
    """What processes used so far: seconds of processor time, and whether any wants a processor now."""

    seconds: float
    wanting: bool


def children(pid: int) -> list[int]:
    """Return the processes that this process started, or adopted, and that were not waited for."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it, parents first."""
    found = [pid]
    for one in found:  # it grows meanwhile
        found += [child for child in children(one) if child not in found]
    return found


def use(pid: int) -> Use:
    """Return what a process and its descendants used, with those that it waited for."""
    ticks, wanting = 0, False
    for one in tree(pid):
        fields = _stat(Path(f"/proc/{one}/stat"))
        ticks += sum(int(fields[i]) for i in (_USER, _SYSTEM, _USER_REAPED, _SYSTEM_REAPED) if fields)
        threads = Path(f"/proc/{one}/task").glob("*/stat")
        # Running, or waiting for a disk: neither is idle, however long it takes on a busy host.
        wanting |= any(_stat(thread)[:1] in (["R"], ["D"]) for thread in threads)
    return Use(seconds=ticks / os.sysconf("SC_CLK_TCK"), wanting=wanting)


def _stat(path: Path) -> list[str]:
    """Return the fields behind the name, which may hold anything; nothing for a process that is gone."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").rpartition(")")[2].split()
    return []


def kill(pids: Iterable[int]) -> None:
    """Kill processes, each with its group if it leads one, and all that descend from them."""
    for root in pids:
        for one in tree(root):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(one, signal.SIGKILL)


class Copy:
    """A process that `os.fork` made of this one, asked as a `subprocess.Popen` is."""

    def __init__(self, pid: int) -> None:
        """Remember its number."""
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal, or None while it runs."""
        if self._status is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else has waited for it
                self._status = 0
            else:
                self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended.

        Raises:
            subprocess.TimeoutExpired: it runs longer than so many seconds.

        """
        end = time.monotonic() + (math.inf if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return status


def single_threaded() -> bool:
    """Return whether this process has one thread, those of libraries counted."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends; nothing where there is no such thing."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int) -> None:
    """Be killed when the parent ends; end now if it has ended already."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)


def death_message(code: int | None) -> str:
    """Say how a process ended, by its exit status; a negative one is a signal's, None is not known."""
    if code is None:
        return "the process ended"
    if code < 0:
        named = {s.value: s.name for s in signal.Signals}  # those of real time have numbers alone
        return f"the process was killed by {named.get(-code, f'signal {-code}')}"
    return f"the process ended with exit status {code}"

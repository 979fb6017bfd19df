"""Process trees as Linux tells of them: what a process started, what it used, and its end.

Where there is no /proc, a process is known alone and with its group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
"""Of prctl(2), from linux/prctl.h."""
_STATE, _USER, _SYSTEM, _USER_REAPED, _SYSTEM_REAPED = 0, 11, 12, 13, 14
"""Fields of /proc/PID/stat behind the name, see proc_pid_stat(5); times are in clock ticks."""


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

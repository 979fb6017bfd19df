"""Whether the process is the command's alone: then it may be copied, to save the imports of others."""

from __future__ import annotations

_own = [False]


def call_own(own: bool) -> None:
    """Note whether it is known that nothing else runs in this process."""
    _own[0] = own


def copy_ahead(*backends: str, workers: int = 1) -> None:
    """Copy this process, while it has loaded no kernel, for several workers, or else for these backends."""
    from verifier.audit.worker_pool import WORKERS
    from verifier.execution.preloaded import copy_ahead as copy

    if not _own[0]:
        return
    if workers > 1:
        copy(children=WORKERS)
    else:
        copy(*backends)

"""Which of several GPUs a worker's kernels run on: each worker of a machine takes one that no other has."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
_claimed: list[str] = []
_held: list[int] = []


def claim_device() -> str:
    """Let kernels that this process starts see one GPU alone, the first that no other worker has.

    To be called before the first of them is started; a second call changes nothing. Returns its number or
    name, or nothing where there are not several. Where every GPU is taken, workers share them.
    """
    if not _claimed:
        _claimed.append(_chosen(visible_devices()))
        if _claimed[0]:
            os.environ[VISIBLE] = _claimed[0]
    return _claimed[0]


def visible_devices() -> list[str]:
    """Return the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get(VISIBLE)
    if named is not None:
        return [one.strip() for one in named.split(",") if one.strip()]
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking CUDA itself would take a context
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def _chosen(devices: list[str]) -> str:
    if len(devices) < 2:
        return ""
    for device in devices:
        if _lock(device):
            return device
    return devices[os.getpid() % len(devices)]


def _lock(device: str) -> bool:
    """Hold the lock of a GPU until this process ends; return whether nobody else holds it."""
    folder = Path(tempfile.gettempdir()) / f"norm-verifier-devices-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    held = os.open(folder / device.replace("/", "_"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return False
    _held.append(held)
    return True

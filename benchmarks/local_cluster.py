"""A scheduler and workers of dask on the loopback of this machine, and batches that say where they ran."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NAME = "NORM_VERIFIER_WORKER"
"""In the environment of a worker: its name."""
PROBE = "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
START_SECONDS = 120.0


class LocalCluster:
    """Processes with their logs in a folder; all are killed at the end, with what they started."""

    def __init__(self, folder: Path) -> None:
        """Choose a free port; start nothing."""
        self.folder = folder
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def start(self, kind: str, name: str, *words: str, **environment: str) -> None:
        """Start a scheduler or a worker; its log has its name."""
        paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words, "--no-dashboard"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                command,
                env={**own, NAME: name, **environment},
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def scheduler(self, name: str = "scheduler") -> None:
        """Start the scheduler, on the port that was chosen."""
        self.start("scheduler", name, "--host", "127.0.0.1", "--port", str(self.port))

    def worker(self, name: str, **environment: str) -> None:
        """Start a worker that runs one batch at a time."""
        place = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder / "dask"))
        self.start("worker", name, self.address, *place, **environment)

    def wait_for(self, workers: int) -> None:
        """Wait until so many workers are there."""
        from distributed import Client

        with Client(self.address, timeout=START_SECONDS, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=START_SECONDS)

    def kill(self, name: str) -> None:
        """Kill a process of the cluster with -9, and it alone; wait until it is gone."""
        os.kill(self.started[name].pid, signal.SIGKILL)
        self.started[name].wait()

    def close(self) -> None:
        """Kill all, with what they started."""
        for one in self.started.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()


class Watched:
    """Workers whose batches write into a file where they ran; all else is that of the workers."""

    def __init__(self, workers: Any, log: Path, *, claims: bool = False) -> None:
        """Take workers; claims: whether each takes a device for itself although the backend has none."""
        self._workers, self._log, self._claims = workers, log, claims

    def __getattr__(self, name: str) -> Any:
        """Return what the workers have."""
        return getattr(self._workers, name)

    def begin(self, function: Callable[..., Any], argument: Any) -> Future[Any]:
        """Begin a batch that is watched."""
        found: Future[Any] = self._workers.begin(watched, (function, argument, str(self._log), self._claims))
        return found


def watched(given: tuple[Callable[..., Any], Any, str, bool]) -> Any:
    """Run a batch; add a line to the log: the worker, its device, the batch and its cases."""
    function, batch, log, claims = given
    if claims:
        from verifier.audit.fuzzing.devices import claim_device

        claim_device()
    began = time.time()
    result = function(batch)
    told = {
        "worker": os.environ.get(NAME, "this process"),
        "process": os.getpid(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        "device": device_of_kernels() if batch.job.backend == "cuda" else "",
        "place": list(batch.place),
        "cases": result.cases,
        "seconds": round(time.time() - began, 3),
    }
    append(Path(log), told)
    return result


@cache
def device_of_kernels() -> str:
    """Return the GPU that a process sees which is started here, as every process of a kernel is."""
    with tempfile.TemporaryDirectory() as folder:
        seen = subprocess.run(
            [sys.executable, "-c", PROBE], cwd=folder, capture_output=True, text=True, check=False
        )
    return seen.stdout.strip() or seen.stderr.strip()[-200:]


def append(log: Path, told: Mapping[str, object]) -> None:
    """Add a line to a file that several processes write."""
    held = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(held, (json.dumps(told) + "\n").encode())
    finally:
        os.close(held)

"""A dask cluster for tests, whose processes can be killed one by one."""

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path

from waiting import gone, until

SUPPORT = Path(__file__).parent


class Cluster:
    """A scheduler and workers of this machine, on the loopback alone, forked from a warm process."""

    def __init__(self, folder, warm):
        self.folder, self.warm, self.started = folder, warm, []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def start(self, kind, *words):
        """Start a program; return where it writes its number as soon as it runs."""
        number = self.folder / f"{len(self.started)}.pid"
        own = ("--no-nanny", "--local-directory", self.folder) if kind == "worker" else ()
        program = [SUPPORT / "cluster_program.py", kind, number, *words, *own, "--no-dashboard"]
        with number.with_suffix(".txt").open("wb") as log:
            one = subprocess.Popen(self.warm.asking(*program), stdout=log, stderr=log, cwd=self.folder)
        self.started.append((one, number))
        return number

    def scheduler(self):
        return self.start("scheduler", "--host", "127.0.0.1", "--port", str(self.port))

    def worker(self):
        light = ("--preload", str(SUPPORT / "light_worker.py"))
        return self.start("worker", self.address, "--nthreads", "1", *light)

    @staticmethod
    def kill(number):
        """Kill a program with -9, and wait until it is gone."""
        assert until(number.exists)
        pid = int(number.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert until(lambda: gone(pid))

    def close(self):
        for one, number in self.started:
            self.kill(number)
            one.wait()

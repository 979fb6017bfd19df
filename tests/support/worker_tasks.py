"""What tests give to workers: tasks that say where they run, and tasks that kill their process."""

import os
import signal
import time
from pathlib import Path


def place(_):
    """Return the number of the process."""
    return os.getpid()


def meet(task):
    """Return the number of the process once as many as said have come to the same folder."""
    folder, count = task
    (Path(folder) / str(os.getpid())).touch()
    while len(list(Path(folder).iterdir())) < count:
        time.sleep(0.01)
    return os.getpid()


def die_once(file):
    """Kill this process with -9, unless one before it has done so."""
    if not Path(file).exists():
        Path(file).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def die(_):
    """Kill this process with -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def run(task):
    """Do one of these by its name."""
    name, argument = task
    return globals()[name](argument)

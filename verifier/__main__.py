"""The command norm-verifier, also as `python -m verifier`."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def main() -> NoReturn:
    """Run the command, and end without taking apart all that was imported: of torch that takes a second."""
    for library in ("OMP", "MKL", "OPENBLAS"):  # a process with threads of theirs could not be copied
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    try:
        from verifier.commands.command_line import main as command
        from verifier.records.files import cache_folder
        from verifier.records.garbage import keep_freed_memory, look_for_circles_seldom

        look_for_circles_seldom()
        keep_freed_memory()
        with suppress(RuntimeError):  # a user without a home
            os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(cache_folder("hypothesis")))

        command(own_process=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:  # while the command itself was imported
        sys.stderr.write("norm-verifier: interrupted\n")
        status = 130
    atexit._run_exitfuncs()
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:  # as Python itself ends where its last words cannot be written
        status = 120
    os._exit(status)


if __name__ == "__main__":
    main()

"""Is a scheduler or a worker of dask: `cluster_program.py KIND FILE WORDS...`; its number is in the file."""

import os
import runpy
import sys
from pathlib import Path

kind, file, *words = sys.argv[1:]
Path(f"{file}.new").write_text(str(os.getpid()))
Path(f"{file}.new").rename(file)
sys.argv = [kind, *words]
runpy.run_module(f"distributed.cli.dask_{kind}", run_name="__main__")

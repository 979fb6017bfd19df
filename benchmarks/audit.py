"""Measure audits in a pipe: seconds to the first line, to the first finding, to the end, and by phase.

    python benchmarks/audit.py --out audits.jsonl [--kernel PATH:DTYPE ...] [--planted PATH:DTYPE ...]
    python benchmarks/audit.py --table audits.jsonl [more.jsonl ...]

Each kernel is audited twice, by one worker: with empty caches of compiled code and of dry runs (cold), then
with what the first audit left there (warm). One line of JSON an audit. Seconds are those after Enter: of the
clock, from the start of the process to when the line can be read from the pipe. Phases are of the clock, too,
in the process of the command, which waits while the kernel's process runs; what is done to find shapes by dry
runs, to shrink a failing case and to find its cause counts for that alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ("kernels/rms_norm_triton.py:float32", "kernels/layer_norm_two_pass_triton.py:float16")
PLANTED = (
    "tests/faulty_kernels/masked_lanes_counted_triton.py:float32",
    "tests/faulty_kernels/bias_read_as_weight_triton.py:float16",
    "tests/faulty_kernels/grad_weight_without_rstd.py:float32",
    "tests/faulty_kernels/column_stride_assumed.py:float32",
)
FINDING = re.compile(r"(FAIL|CRASH|TIMEOUT|REFUSED|NO_THEOREM)  \S+  \S+  \S+  on ")
"""How the text of a finding begins."""
START, OTHER = "start, imports", "other"
WHOLE = frozenset({"dry runs", "shrinking", "causes"})
"""Phases in which nothing is told apart."""


class Phases:
    """Seconds of each phase; a phase inside another takes its seconds from it."""

    def __init__(self) -> None:
        """Begin with none."""
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = time.monotonic()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose seconds count for a phase of this name."""

        @wraps(function)
        def inner(*args: Any, **options: Any) -> Any:
            if WHOLE.intersection(self._open):
                return function(*args, **options)
            self._turn()
            self._open.append(name)
            try:
                return function(*args, **options)
            finally:
                self._turn()
                self._open.pop()

        return inner

    def _turn(self) -> None:
        now = time.monotonic()
        self.seconds[self._open[-1] if self._open else OTHER] += now - self._since
        self._since = now

    def end(self) -> dict[str, float]:
        """Return the seconds of all phases."""
        self._turn()
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}


def inside(file: Path, arguments: Sequence[str]) -> None:
    """Be the command, with its phases measured and written to a file."""
    phases = Phases()
    phases.timed(START, _measure)(phases)
    from verifier.commands.command_line import main

    sys.argv = ["norm-verifier", *arguments]
    try:
        main(own_process=True)
    finally:
        file.write_text(json.dumps(phases.end()), encoding="utf-8")


def _measure(phases: Phases) -> None:
    from verifier.audit import causes, shrink, sweep
    from verifier.audit.examination import Examination
    from verifier.audit.search import Search
    from verifier.audit.trial import Trial
    from verifier.checks.support.truth import Answer, Truth
    from verifier.execution import Runner

    places = (
        (Examination, "_steering", "choosing shapes"),
        (sweep, "seen_around", "dry runs"),
        (Search, "_built", "making cases"),
        (Runner, "run", "running the kernel"),
        (Answer, "solved", "exact results"),
        (Truth, "bounds", "bounds"),
        (Trial, "judge", "judging"),
        (shrink, "shrunk", "shrinking"),
        (causes, "explained", "causes"),
    )
    for owner, name, phase in places:
        found = vars(owner)[name]
        if isinstance(found, cached_property):
            found.func = phases.timed(phase, found.func)
        else:
            setattr(owner, name, phases.timed(phase, found))


def run(arguments: argparse.Namespace) -> None:
    """Audit each kernel with cold and with warm caches; a line each."""
    asked = [(text, False) for text in arguments.kernel or ([] if arguments.planted else KERNELS)]
    asked += [(text, True) for text in arguments.planted or ([] if arguments.kernel else PLANTED)]
    with arguments.out.open("a", encoding="utf-8") as out:
        for text, planted in asked:
            path, _, dtype = text.rpartition(":")
            with tempfile.TemporaryDirectory() as folder:
                for caches in ("cold", "warm"):
                    told = {"kernel": Path(path).stem, "dtype": dtype, "planted": planted, "caches": caches}
                    out.write(json.dumps({**told, **audited(ROOT / path, dtype, Path(folder))}) + "\n")
                    out.flush()


def audited(path: Path, dtype: str, folder: Path) -> dict[str, Any]:
    """Audit a kernel with caches in a folder, and say when it printed what."""
    phases = folder / "phases.json"
    command = [sys.executable, __file__, "--inside", str(phases), "audit", str(path), "--dtype", dtype]
    command += ["--workers", "1", "--findings", str(folder / "findings")]
    caches = {"TRITON_CACHE_DIR": str(folder / "triton"), "XDG_CACHE_HOME": str(folder / "cache")}
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {**os.environ, **caches, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    before, began = _processor_seconds(), time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = moments((time.monotonic() - began, line) for line in process.stdout)
    whole = time.monotonic() - began
    if not phases.exists() or "first_line" not in seen:
        raise SystemExit(f"{path}: the audit ended with status {process.returncode}")
    found = json.loads(phases.read_text(encoding="utf-8"))
    found[START] = round(found.get(START, 0.0) + whole - sum(found.values()), 3)
    took = {"whole": whole, "processor": _processor_seconds() - before}
    return {**{name: round(value, 2) for name, value in {**seen, **took}.items()}, "phases": found}


def moments(lines: Iterable[tuple[float, str]]) -> dict[str, float]:
    """Return when the first line came, and the first finding if there is one."""
    seen: dict[str, float] = {}
    for seconds, line in lines:
        seen.setdefault("first_line", seconds)
        if FINDING.match(line):
            seen.setdefault("first_finding", seconds)
    return seen


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of two tables in Markdown: when what was printed, and where the time went."""
    columns = ("first_line", "first_finding", "whole", "processor")
    yield f"| kernel | dtype | caches | {' | '.join(c.replace('_', ' ') for c in columns)} |"
    yield "|---|---|---|---|---|---|---|"
    for one in records:
        cells = (f"{one[c]:.1f}" if c in one else "-" for c in columns)
        yield f"| `{one['kernel']}` | {one['dtype']} | {one['caches']} | {' | '.join(cells)} |"
    phases = list(dict.fromkeys((START, *(name for one in records for name in one["phases"]))))
    yield ""
    yield f"| kernel | dtype | caches | {' | '.join(phases)} |"
    yield f"|---|---|---|{'---|' * len(phases)}"
    for one in records:
        cells = (f"{one['phases'].get(name, 0.0):.1f}" for name in phases)
        yield f"| `{one['kernel']}` | {one['dtype']} | {one['caches']} | {' | '.join(cells)} |"


def main() -> None:
    """Be the command that is measured, audit kernels, or print the table of what was measured."""
    if sys.argv[1:2] == ["--inside"]:
        inside(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    todo = parser.add_mutually_exclusive_group(required=True)
    todo.add_argument("--out", type=Path, help="file to which a line of JSON is added for each audit")
    todo.add_argument("--table", type=Path, nargs="+", help="such files, of which a table is printed")
    parser.add_argument("--kernel", nargs="*", metavar="PATH:DTYPE", help="right kernels")
    parser.add_argument("--planted", nargs="*", metavar="PATH:DTYPE", help="kernels with a planted fault")
    arguments = parser.parse_args()
    if arguments.out:
        run(arguments)
        return
    for line in table([json.loads(line) for file in arguments.table for line in file.open(encoding="utf-8")]):
        print(line)


if __name__ == "__main__":
    main()

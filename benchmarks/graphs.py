"""Replays the recorded expressions of all built-in kernels on other inputs, and times the recording.

    python benchmarks/graphs.py [part of a name] [rows] [columns]
    python benchmarks/graphs.py --replays > benchmarks/results/replays.md
    python benchmarks/graphs.py --costs [names of kernel files ...] > benchmarks/results/graphs.md

Of each kernel and dtype: results of which every bit is that of a run, of which some are unknown, and those
that differ (there must be none); what decides on data; times of a plain run and of one that records.
With `--replays` a page of them. With `--costs` a page of what recording and certifying each kernel costs,
against what it may cost (`graph_costs.py` says what is measured, and how).
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import triton

from verifier.cases.recipe import Values, build, recorded_recipe
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.record_graph import bits_of, record
from verifier.machine import session
from verifier.ops import op
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

T = TypeVar("T")
MOST_TIMES, MOST_BYTES, MOST_SECONDS = 5.0, 2 << 30, 2.0
"""What a recording may cost beside a plain run, what it may hold, and what a certificate may cost."""
_COSTS = Path(__file__).with_name("graph_costs.py")
ROOT = f"{Path(__file__).resolve().parents[1]}/"
"""How the path of a source begins, which a page leaves out."""


def main(part: str = "", rows: str = "4", columns: str = "33") -> int:
    """Print a line for each kernel and dtype; 1 if a result differs."""
    wrong = 0
    for file in builtin_files():
        if file.stem.endswith("_torch") or part not in file.stem:
            continue
        for subject in load_subjects(file):
            for dtype in subject.dtypes:
                for line, differs in replayed(subject, dtype, int(rows), int(columns)):
                    print(line, flush=True)
                    wrong += differs
    return int(wrong > 0)


def replays(rows: int = 4, columns: int = 33) -> int:
    """Print the page of replays of all kernels; 1 if a result differs."""
    wrong = 0
    print("# Recorded expressions, evaluated on other inputs\n")
    print(_made("--replays"))
    print(
        f"Each kernel is recorded on one input, of {rows} rows of {columns} columns, forward and backward, "
        "and run on another: so many of its results have every bit of that run when the recorded expressions "
        "are evaluated on the other input. A result that is not known is none that differs. Masks are left "
        "out where they may be.\n"
    )
    print("| kernel | results with every bit | not known |\n|---|---|---|")
    for file in builtin_files():
        for subject in load_subjects(file) if not file.stem.endswith("_torch") else ():
            told = [one for dtype in subject.dtypes for one in replayed(subject, dtype, rows, columns)]
            wrong += sum(differs for _, differs in told)
            lines = [line.removeprefix(f"{subject.name} ").replace(ROOT, "") for line, _ in told]
            parts = [line.replace(":", "", 1).split("; ") for line in lines]
            equal = ", ".join(notes[0].removesuffix(" results equal") for notes in parts)
            unknown = "; ".join(dict.fromkeys(note for notes in parts for note in notes[1:-2]))
            print(f"| `{subject.name}` | {equal} | {unknown} |", flush=True)
    return int(wrong > 0)


def costs(names: list[str], dtype: str = "float16") -> int:
    """Print the page of costs: of the kernels that are named, or of all."""
    for line in page(_measured(names, dtype)):
        print(line, flush=True)
    return 0


def _measured(names: list[str], dtype: str) -> Iterator[dict[str, Any]]:
    for file in builtin_files():
        if file.stem.endswith("_torch") or (names and file.stem not in names):
            continue
        for subject in load_subjects(file):
            if dtype not in subject.dtypes:
                continue
            arguments = [sys.executable, str(_COSTS), str(file), subject.name, dtype]
            child = subprocess.run(arguments, capture_output=True, text=True, check=False)
            if child.returncode:
                print(f"{subject.name}: {child.stderr[-500:]}", file=sys.stderr)
            else:
                yield json.loads(child.stdout)


def page(measured: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a Markdown page of what `graph_costs.py` measured; what costs more than it may is in bold."""
    yield "# What recording and certifying costs\n"
    yield _made("--costs")
    yield (
        f"Recording is to take at most {MOST_TIMES:g} times a plain run, a certificate at most "
        f"{MOST_SECONDS:g} s at 2 x 4096 when all is compiled, and a recording at 2 x 65536 is to hold "
        f"at most {MOST_BYTES / 2**30:g} GiB. What takes more is in bold."
    )
    yield (
        "Times are processor time, of all processes; those of certificates are in seconds of the machine on "
        "which a plain forward pass of layer_norm_two_pass_triton takes 2.6 ms, which is timed beside them: "
        "*slowness* is how many times as long it took here. Memory is that of the whole process, which holds "
        "the number in parentheses before it records.\n"
    )
    heads = ("kernel", "dtype", "pass", "plain ms", "recorded ms", "times", "certificate s", "slowness")
    yield f"| {' | '.join(heads)} | MiB at 2 x 65536 |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for one in measured:
        for way, label in (("forward", "forward"), ("gradients", "with gradients")):
            if way in one:
                yield f"| {one['kernel']} | {one['dtype']} | {label} | {_cells(one[way])} |"


def _made(option: str) -> str:
    return (
        f"Made by `python benchmarks/graphs.py {option}` on {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, "
        f"{os.cpu_count()} cores of {_processor()}, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, torch {torch.__version__}, Triton {triton.__version__}.\n"
    )


def _cells(found: Mapping[str, Any]) -> str:
    refused = f", refused: {found['refused']}" if found["refused"] else ""
    memory = "none"
    if "memory" in found:
        memory = (
            f"{_marked(found['memory'] / 2**20, MOST_BYTES / 2**20, '.0f')} ({found['base'] / 2**20:.0f})"
        )
    cells = (
        f"{1e3 * found['plain']:.1f}",
        f"{1e3 * found['recorded']:.1f}",
        _marked(found["recorded"] / found["plain"], MOST_TIMES, ".1f"),
        _marked(found["certificate"], MOST_SECONDS, ".2f") + refused,
        f"{found['slowness']:.1f}",
        memory,
    )
    return " | ".join(cells)


def _marked(value: float, most: float, form: str) -> str:
    return f"**{value:{form}}**" if value > most else f"{value:{form}}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def replayed(subject: Subject, dtype: str, rows: int, columns: int) -> Iterator[tuple[str, bool]]:
    """Give what a replay shows, in a line, and whether a result differs."""
    the_op, place = op(subject.op), backend("machine")
    grad = bool(the_op.differentiable) and subject.differentiable
    recipes = (recorded_recipe(the_op, subject, rows, columns, Values(seed=n)) for n in (0, 1))
    one, other = (build(the_op, subject, dtype, recipe, gradients=grad) for recipe in recipes)
    with session() as opened:
        seen, plain = _second(lambda: execute(subject, other, backend=place, gradients=grad))
        recording, recorded = _second(lambda: record(subject, one, backend=place, gradients=grad))
        if recording.seen.status != "ok":
            yield f"{subject.name} {dtype}: {recording.seen.status} {recording.seen.message}", False
            return
        found = recording.replay(other, opened.machine.approximation)
    wanted = {n: bits_of(t) for n, t in seen.outputs.items() if t is not None and t.is_floating_point()}
    unknown = [name for name in wanted if found[name] is None]
    different = [n for n in wanted if (bits := found[n]) is not None and (bits != wanted[n]).any()]
    equal = len(wanted) - len(unknown) - len(different)
    notes = [f"{equal} of {len(wanted)} results equal"]
    notes += [f"unknown: {', '.join(unknown)}"] if unknown else []
    notes += [f"DIFFERENT: {', '.join(different)}"] if different else []
    decisions = [str(decision) for _, decision in recording.decisions]
    notes += [f"{len(decisions)} decisions on data, the first {decisions[0]}"] if decisions else []
    notes += [f"torch's {', '.join(recording.uncovered)} not followed"] if recording.uncovered else []
    times = f"plain {1e3 * plain:.1f} ms, recorded {1e3 * recorded:.1f} ms ({recorded / plain:.1f} times)"
    yield (
        f"{subject.name} {dtype}: {'; '.join(notes)}; {times}; {recording.nodes.count} nodes",
        bool(different),
    )


def _second(run: Callable[[], T]) -> tuple[T, float]:
    """Run twice, the first time to compile; return what the second gave, and its seconds."""
    run()
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    first, *more = sys.argv[1:] or [""]
    sys.exit(costs(more) if first == "--costs" else replays() if first == "--replays" else main(first, *more))

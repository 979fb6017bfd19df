"""Replays the recorded expressions of all built-in kernels on other inputs, and times the recording.

    python benchmarks/graphs.py [part of a name] [rows] [columns]

Of each kernel and dtype: results of which every bit is that of a run, of which some are unknown, and those
that differ (there must be none); what decides on data; times of a plain run and of one that records.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from verifier.cases.recipe import Recipe, Values, build
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.record_graph import bits_of, record
from verifier.machine import session
from verifier.ops import op
from verifier.records.subject import Subject
from verifier.subjects.load_file import builtin_files, load_subjects

T = TypeVar("T")


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


def replayed(subject: Subject, dtype: str, rows: int, columns: int) -> Iterator[tuple[str, bool]]:
    """Give what a replay shows, in a line, and whether a result differs."""
    the_op, place = op(subject.op), backend("machine")
    grad = bool(the_op.differentiable) and subject.differentiable
    one, other = (
        build(
            the_op, subject, dtype, Recipe(rows=rows, columns=columns, input=Values(seed=n)), gradients=grad
        )
        for n in (0, 1)
    )
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
    sys.exit(main(*sys.argv[1:]))

"""What recording and certifying one kernel costs, measured in a process of its own; prints a line of JSON.

    python benchmarks/graph_costs.py FILE SUBJECT DTYPE

plain, recorded: processor seconds of a run at 2 x 4096 and of one that records it, forward and, where there
is a backward pass, with gradients; the least of three. certificate: processor seconds of a certificate there,
of the process of the machine too, the second in one process, so that nothing is compiled in them. memory: the
most bytes that a fresh process held (`ru_maxrss`) that records the kernel at 2 x 65536, Python, torch and
Triton among them; base: what they hold before.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from verifier.checks.support.certificate_at_shape import certified
from verifier.commands.explain import case_for
from verifier.execution import Runner
from verifier.execution.backends import backend
from verifier.execution.call_subject import execute
from verifier.execution.process_tree import use
from verifier.execution.record_graph import record, recorded_graph
from verifier.machine import session
from verifier.ops import op
from verifier.records.case import Case
from verifier.records.certificate import Certificate
from verifier.records.subject import Subject
from verifier.subjects.load_file import load_subject

ROWS, COLUMNS, WIDE = 2, 4096, 65536
MEMORY_FIELD = "memory"


def main(path: str, name: str, dtype: str, what: str = "", gradients: str = "") -> None:
    """Print what was measured; what: "memory" alone, in the process that is measured."""
    torch.set_num_threads(1)
    subject = load_subject(path, name)
    if what == MEMORY_FIELD:
        print(json.dumps(memory(subject, dtype, gradients=bool(gradients))))
        return
    found: dict[str, object] = {"kernel": name, "dtype": dtype}
    has = subject.differentiable and bool(op(subject.op).differentiable)
    for way in (False, True) if has else (False,):
        case = case_for(subject, dtype, ROWS, COLUMNS, 0.0, 0, recorded=True)
        arguments = [sys.executable, __file__, path, name, dtype, MEMORY_FIELD, *(["yes"] if way else [])]
        child = subprocess.run(arguments, capture_output=True, text=True, check=False)
        wide = json.loads(child.stdout) if child.returncode == 0 else {}
        found["gradients" if way else "forward"] = {
            **recording(subject, case, gradients=way),
            **certificate(subject, case, gradients=way),
            **wide,
        }
    print(json.dumps(found))


def recording(subject: Subject, case: Case, *, gradients: bool) -> dict[str, float]:
    """Return processor seconds of a plain run and of one that records."""
    place = backend("machine")
    with session():
        plain = _least(lambda: execute(subject, case, backend=place, gradients=gradients))
        recorded = _least(lambda: record(subject, case, backend=place, gradients=gradients))
    return {"plain": plain, "recorded": recorded}


def certificate(subject: Subject, case: Case, *, gradients: bool) -> dict[str, object]:
    """Return processor seconds of a certificate, where nothing is left to compile."""
    with Runner("machine", case_seconds=600.0) as runner:
        certified(subject, case, runner=runner, gradients=gradients)
        before = use(os.getpid()).seconds
        given = certified(subject, case, runner=runner, gradients=gradients)
        seconds = use(os.getpid()).seconds - before
    return {"certificate": seconds, "refused": "" if isinstance(given, Certificate) else given.stage}


def memory(subject: Subject, dtype: str, *, gradients: bool) -> dict[str, int]:
    """Return the most bytes that this process has held before and after it records a wide case."""
    place, before = backend("machine"), _most()
    case = case_for(subject, dtype, ROWS, WIDE, 0.0, 0, recorded=True)
    with session():
        seen = recorded_graph(subject, case, backend=place, gradients=gradients)
    assert seen.status == "ok", seen.message
    return {MEMORY_FIELD: _most(), "base": before}


def _most() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _least(run: Callable[[], object]) -> float:
    """Return the least processor seconds of three runs, after one that compiles."""
    run()
    found = []
    for _ in range(3):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
